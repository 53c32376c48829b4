"""Locate the Hugging Face directory of a model: the path itself, a checkpoint, or a run's folder.

Called wherever a path names a model: `spec.model.path` may be another run's folder (a warm start).
"""

import re
from pathlib import Path

CHECKPOINTS, MODEL = "checkpoints", "model"
STEP_PATTERN = re.compile(r"step-(\d{6,})")


def model_folder(directory: Path) -> Path | None:
    """Return the directory with the model's config.json: `directory` itself, a checkpoint's, or that of a
    run's newest checkpoint. Return None if there is none."""
    checkpoints = directory / CHECKPOINTS
    steps = {
        int(match.group(1)): folder
        for folder in (checkpoints.iterdir() if checkpoints.is_dir() else ())
        if (match := STEP_PATTERN.fullmatch(folder.name))
    }
    newest = [steps[max(steps)] / MODEL] if steps else []
    candidates = (directory, directory / MODEL, *newest)
    return next((folder for folder in candidates if (folder / "config.json").is_file()), None)
