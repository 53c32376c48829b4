"""Which directory a job's policy starts from: the user's own, or a built-in made and cached here."""

from collections.abc import Callable
from pathlib import Path

from rljob_api.rljob import RLJob
from rljob_runtime.errors import ConfigError


def policy_path(
    job: RLJob, *, base_dir: Path, cache_dir: Path, progress: Callable[[str], None]
) -> Path:
    """Hugging Face directory of the starting policy. Raises ConfigError when there is none.

    progress: called with a line for the user while a built-in is being made.
    """
    spec = job.spec
    if spec.model.path is not None:
        folder = base_dir / spec.model.path
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"{folder} holds no config.json (spec.model.path); name a Hugging Face directory"
            )
        return folder.resolve()
    if spec.model.builtin == "smollm2-135m-instruct":
        from rljob_runtime.models.smollm2 import make_smollm2

        return make_smollm2(cache_dir)
    from rljob_runtime.models.tiny import make_tiny

    return make_tiny(job, base_dir=base_dir, cache_dir=cache_dir, progress=progress)
