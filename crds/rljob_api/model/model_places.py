"""Where the Hugging Face directory of a model lies: a folder of its own, a checkpoint, or in a run's folder.

Called wherever a path names a model: `spec.model.path` may be another run's folder (a warm start).
"""

import re
from pathlib import Path

CHECKPOINTS, MODEL = "checkpoints", "model"
STEP_PATTERN = re.compile(r"step-(\d{6,})")


def model_folder(place: Path) -> Path | None:
    """The directory with the model's config.json: `place` itself, a checkpoint's, or a run's newest one's;
    None where there is none."""
    checkpoints = place / CHECKPOINTS
    steps = {
        int(match.group(1)): folder
        for folder in (checkpoints.iterdir() if checkpoints.is_dir() else ())
        if (match := STEP_PATTERN.fullmatch(folder.name))
    }
    newest = [steps[max(steps)] / MODEL] if steps else []
    found = (place, place / MODEL, *newest)
    return next((folder for folder in found if (folder / "config.json").is_file()), None)
