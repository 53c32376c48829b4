"""The built-in models `tiny`, 0.9M parameters over bytes, and `tiny-vl`, which also has a vision tower.

A seeded supervised warm-up (`warmup`) on the job's own task trains them. It is counted in steps, so that a
busy machine creates the same model as an idle one. The cache key contains everything that affects the model.
This module imports no torch, since most runs find the model in the cache. `builtin` calls it.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rljob_api.spec.rljob import RLJob
from rljob_api.spec.workload import Warmup
from rljob_runtime.models.one_maker import one_maker
from rljob_runtime.models.tiny_recipe import (
    CONFIG,
    PROCESSOR,
    VISION_CONFIG,
    VISION_RECIPE,
    VISION_STD,
    Recipe,
    num_held_out,
    shown_data,
)
from rljob_runtime.task.tokenizer import save_byte_tokenizer


def make_tiny(
    job: RLJob,
    *,
    base_dir: Path,
    cache_dir: Path,
    progress: Callable[[str], None],
    recipe: Recipe | None = None,
) -> Path:
    """Return the directory of the model for this job's task, created by one process.

    Raises ConfigError if the warm-up learns nothing.
    """
    pictures = job.spec.model.vision is not None
    recipe = recipe or (VISION_RECIPE if pictures else Recipe())
    folder = cache_dir / ("tiny-vl" if pictures else "tiny") / _key(job, recipe)
    with one_maker(folder.with_suffix(".lock"), progress):
        if not (folder / "config.json").is_file():
            with tempfile.TemporaryDirectory(dir=folder.parent) as draft:
                _make(job, Path(draft), folder, base_dir=base_dir, progress=progress, recipe=recipe)
    return folder


def _make(
    job: RLJob,
    draft: Path,
    folder: Path,
    *,
    base_dir: Path,
    progress: Callable[[str], None],
    recipe: Recipe,
) -> None:
    """Train the model and save it to `folder`. draft: receives all of the model's files except its
    weights."""
    from rljob_runtime.models.warmup import warm_up
    from rljob_runtime.models.weights import save_hf

    pictures = job.spec.model.vision is not None
    config = VISION_CONFIG if pictures else CONFIG
    save_byte_tokenizer(draft, pictures=pictures)
    (draft / "config.json").write_text(json.dumps(config))
    if pictures:
        (draft / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    decoder = warm_up(job, draft, base_dir=base_dir, progress=progress, recipe=recipe)
    save_hf(decoder.named_hf_parameters(), folder=folder, source=draft, config=config)


def _key(job: RLJob, recipe: Recipe) -> str:
    """Return a digest of everything that affects the model."""
    spec = job.spec
    decided = {
        "config": CONFIG,
        "recipe": asdict(recipe),
        "seed": spec.seed,
        "data": shown_data(spec.data).model_dump(mode="json"),
        "warmup": (spec.model.warmup or Warmup()).model_dump(mode="json"),
        "max_prompt_length": spec.batch.max_prompt_length,
        "held_out": num_held_out(job),
    }
    if spec.evaluation and spec.evaluation.suites:
        decided["suites"] = [suite.model_dump(mode="json") for suite in spec.evaluation.suites]
    if spec.rollout.tools or spec.rollout.agent is not None:
        decided["demonstrations"] = True
    if spec.model.vision is not None:
        decided |= {"config": VISION_CONFIG, "processor": PROCESSOR, "std": VISION_STD}
    text = json.dumps(decided, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
