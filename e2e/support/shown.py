"""Commands as the documentation shows them, carried out in a folder and a namespace of the test."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml
from documented import ROOT, SHELLS, blocks_of, commands_of
from support.cluster import Cluster


def shown(page: str, containing: str) -> list[list[str]]:
    """Words of the commands of the page's one block with this text, in its order."""
    (block,) = [
        block
        for block in blocks_of(ROOT / page)
        if block.language in SHELLS and containing in block.text
    ]
    return [list(command.words) for command in commands_of(block)]


@dataclass(frozen=True, slots=True)
class Shell:
    """folder: where commands are run."""

    folder: Path
    kubeconfig: Path

    @classmethod
    def of(cls, cluster: Cluster, folder: Path) -> "Shell":
        """With the cluster's namespace as the one that kubectl and rljob take by themselves."""
        config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
        for context in config["contexts"]:
            context["context"]["namespace"] = cluster.namespace
        file = folder / "kubeconfig"
        file.write_text(yaml.safe_dump(config))
        file.chmod(0o600)
        return cls(folder, file)

    def __call__(self, words: list[str], *, seconds: float) -> str:
        """Output of a command, which ends well."""
        programs = f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig), "PATH": programs},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        said = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}:\n{said}"
        return done.stdout
