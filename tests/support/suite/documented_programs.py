"""Readers of the documentation's commands: each asks the program that a command names whether it takes it.

Nothing is carried out. A reader raises AssertionError, or the error of the program's own parser.
"""

import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from documented import ROOT, Command
from programs import require
from typer.exceptions import TyperException

from rljob_runtime.cli.main import app

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = set(PROJECT["project"]["optional-dependencies"])
MAKEFILE = (ROOT / "Makefile").read_text()
E2E_SCRIPT = (ROOT / "scripts" / "e2e.sh").read_text()
CI = (ROOT / ".ci" / "run").read_text()
IMAGES_SCRIPT = (ROOT / "images" / "build.sh").read_text()
RLJOB = typer.main.get_command(app)
SUBCOMMANDS = RLJOB.commands  # type: ignore[attr-defined]
CLIENTS = ("kubectl", "helm")
NUMBERS = {"N": "2"}
"""Placeholders that stand for a number."""
Refused = (AssertionError, TyperException)


def read_rljob(command: Command) -> None:
    """By the command line's own parser; nothing is carried out."""
    name, *arguments = command.words[1:]
    SUBCOMMANDS[name].make_context(name, arguments).close()
    assert all((ROOT / word).is_file() for word in arguments if word.startswith("examples/"))


def read_make(command: Command) -> None:
    for word in command.words[1:]:
        variable, is_variable, value = word.partition("=")
        if is_variable and "images" in command.words:
            assert f"${{{variable}:-" in IMAGES_SCRIPT
        elif is_variable:
            assert f"$({variable})" in MAKEFILE
            assert variable == "VERSION" or any((ROOT / name).exists() for name in value.split())
        else:
            assert re.search(rf"^{re.escape(word)}:", MAKEFILE, re.MULTILINE), word


def read_mention(command: Command) -> None:
    """A command of rljob within a sentence, whose arguments may be left out."""
    name, *words = command.words[1:]
    program, words = (RLJOB, [name]) if name.startswith("-") else (SUBCOMMANDS[name], words)
    known = [option for parameter in program.params for option in parameter.opts]
    known += RLJOB.context_settings["help_option_names"]
    assert [word for word in words if word.startswith("-") and word not in known] == []


def read_by_a_client_without_a_cluster(command: Command, folder: Path) -> None:
    """kubectl and Helm complain of words that they do not know before they miss a cluster."""
    program, *words = [NUMBERS.get(word, word) for word in command.words]
    require(program, shutil.which(program), f"there is no {program} on PATH")
    for name in ("job.yaml", "bring-up-pod.yaml", "bring-up.json"):
        (folder / name).write_text((ROOT / "examples" / "quickstart.yaml").read_text())
    for name in ("examples", "helm"):
        (folder / name).symlink_to(ROOT / name)
    own = dict.fromkeys(("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"), str(folder))
    nowhere = {"KUBECONFIG": str(kubeconfig_of_nobody(folder))}
    path = {"PATH": str(Path(shutil.which(program) or "").parent), "HOME": str(folder)}

    done = subprocess.run(
        [program, *words], cwd=folder, env=own | nowhere | path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert done.returncode != 0, done.stdout
    assert re.search(r"connection refused|connection to the server .* was refused", done.stderr), (
        done.stderr
    )


def kubeconfig_of_nobody(folder: Path) -> Path:
    """A kubeconfig of a server that is not there: nothing listens at port 9 of this machine."""
    cluster = {"name": "nobody", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "nobody", "context": {"cluster": "nobody"}}
    document = {"clusters": [cluster], "contexts": [context], "current-context": "nobody"}
    (folder / "kubeconfig").write_text(
        json.dumps({"apiVersion": "v1", "kind": "Config"} | document)
    )
    return folder / "kubeconfig"


def read_python(command: Command) -> None:
    """A module's name, or a script's; a benchmark's arguments are read together with all others'."""
    option, *_ = command.words[1:]
    if option.endswith(".py"):
        assert (ROOT / option).is_file()
        return
    name = command.words[2]
    assert option == "-m"
    if name.startswith("benchmarks."):
        assert (ROOT / name.replace(".", "/")).is_dir() or (
            ROOT / f"{name.replace('.', '/')}.py"
        ).is_file()
    else:
        assert importlib.util.find_spec(name), name


def read_pip(command: Command) -> None:
    what, named = command.words[1], command.words[2]
    assert what == "install"
    if extras := re.fullmatch(r"\.\[([\w,-]+)\]", named):
        assert set(extras[1].split(",")) <= EXTRAS
    else:
        assert (ROOT / named / "pyproject.toml").is_file()


def read_pytest(command: Command) -> None:
    option, marker, *paths = command.words[1:]
    assert option == "-m"
    declared = PROJECT["tool"]["pytest"]["ini_options"]["markers"]
    assert marker in {text.partition(":")[0] for text in declared}
    assert all((ROOT / path).is_dir() for path in paths)


def read_export(command: Command) -> None:
    name, equals, _ = command.words[1].partition("=")
    assert equals
    assert name in E2E_SCRIPT + CI


def read_package(command: Command) -> None:
    """Continuous integration takes the same package, by the same program; only its folder is another."""
    assert set(command.words[:3]) <= set(CI.split())


def read_setup(command: Command) -> None:
    assert set(command.words[1:]) <= EXTRAS


def read_image(command: Command) -> None:
    assert all((ROOT / "images" / f"{name}.Dockerfile").is_file() for name in command.words[1:])


def read_docker(command: Command) -> None:
    _, what, image = command.words
    assert what == "push"
    found = re.fullmatch(r"[a-z./]+/rljob-([a-z-]+):\w+", image)
    assert found
    assert (ROOT / "images" / f"{found[1]}.Dockerfile").is_file()


def read_source(command: Command) -> None:
    assert command.words[1:] == (".venv/bin/activate",)
    assert "venv .venv" in (ROOT / "scripts" / "setup.sh").read_text()


def read_copy(command: Command) -> None:
    assert (ROOT / command.words[1]).is_file()


def read_decoding(command: Command) -> None:
    done = subprocess.run(command.words, input=b"cmxqb2I=", capture_output=True, check=True)
    assert done.stdout == b"rljob"


def read_git(command: Command) -> None:
    """git prints which options a command takes."""
    said = subprocess.run(["git", command.words[1], "-h"], capture_output=True, text=True)
    known = set(re.findall(r"--[a-z-]+", said.stdout + said.stderr))
    assert known, f"git has no command {command.words[1]}"
    assert {word for word in command.words if word.startswith("--")} <= known


def read_script(command: Command) -> None:
    assert command.words[0] in PROJECT["project"]["scripts"]
    assert command.words[1:] == ("--help",)


def read_uv(command: Command) -> None:
    uv = shutil.which("uv") or str(ROOT / ".venv" / "bin" / "uv")
    if not Path(uv).is_file():
        pytest.skip("there is no uv on PATH")
    said = subprocess.run(
        [uv, command.words[1], "--help"], capture_output=True, text=True, check=True
    )
    options = set(re.findall(r"--[a-z-]+", said.stdout))
    assert {word for word in command.words if word.startswith("--")} <= options


READERS: dict[str, Callable[[Command], None]] = {
    "rljob": read_rljob, "make": read_make, "python": read_python, "pip": read_pip, "pytest": read_pytest,
    "export": read_export, "scripts/setup.sh": read_setup, "images/build.sh": read_image,
    "docker": read_docker,
    "source": read_source, "apt-get": read_package, "dpkg": read_package,
    "cp": read_copy, "base64": read_decoding, "uv": read_uv, "git": read_git,
    "rljob-operator": read_script, "rljob-device-plugin": read_script,
}  # fmt: skip
