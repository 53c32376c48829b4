"""Resolve the directory that a job's policy starts from: the user's own, or a cached built-in model."""

from collections.abc import Callable
from pathlib import Path

from rljob_api.model.model_places import model_folder
from rljob_api.spec.rljob import RLJob
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.config import read_config

PROBE = "The 3 quick foxes; naïve über-日本語 = 12,345.67?\n\tdef f(x): return x"


def model_paths(
    job: RLJob, *, base_dir: Path, cache_dir: Path, progress: Callable[[str], None]
) -> dict[str, Path]:
    """Return the Hugging Face directories of the job's models by name; errors and progress as in
    `policy_path`."""
    policy = policy_path(job, base_dir=base_dir, cache_dir=cache_dir, progress=progress)
    paths = {"policy": policy}
    if job.spec.has_critic:
        critic_path = job.spec.critic.path if job.spec.critic else None
        paths["critic"] = (
            _model_directory(base_dir, critic_path, "spec.critic.path") if critic_path else policy
        )
        if job.spec.model.vision is not None:
            _check_picture_token(policy, paths["critic"], role="critic")
    if (scorer := job.spec.reward_model) is not None:
        paths["reward-model"] = _model_directory(
            base_dir, scorer.path, "the reward model's path, spec.rewards"
        )
        _check_tokens(policy, paths["reward-model"], role="reward model")
    if job.spec.teacher is not None:
        paths["teacher"] = _model_directory(base_dir, job.spec.teacher.path, "spec.teacher.path")
        _check_tokens(policy, paths["teacher"], role="teacher")
        if job.spec.model.vision is not None:
            _check_picture_token(policy, paths["teacher"], role="teacher")
    return paths


def policy_path(
    job: RLJob, *, base_dir: Path, cache_dir: Path, progress: Callable[[str], None]
) -> Path:
    """Return the Hugging Face directory of the starting policy. Raises ConfigError if there is none.

    progress: called with a line for the user while a built-in model is created.
    """
    spec = job.spec
    if spec.model.path is not None:
        return _model_directory(base_dir, spec.model.path, "spec.model.path")
    if spec.model.builtin == "smollm2-135m-instruct":
        from rljob_runtime.models.smollm2 import make_smollm2

        return make_smollm2(cache_dir)
    from rljob_runtime.models.tiny import make_tiny

    return make_tiny(job, base_dir=base_dir, cache_dir=cache_dir, progress=progress)


def _model_directory(base_dir: Path, path: str, field: str) -> Path:
    """Return the user's model directory, or raise ConfigError if it holds no config.json."""
    folder = model_folder(base_dir / path)
    if folder is None:
        raise ConfigError(
            f"{base_dir / path} holds no config.json ({field}); name a Hugging Face directory, or the folder "
            "of a run that has saved a checkpoint"
        )
    return folder.resolve()


def _check_picture_token(policy: Path, other: Path, *, role: str) -> None:
    """Raise ConfigError if the two models mark pictures with different tokens."""
    expected, actual = (read_config(path).get("image_token_id") for path in (policy, other))
    if expected != actual:
        raise ConfigError(
            f"the {role} {other} has pictures in place of token {actual} (image_token_id in config.json), "
            f"the policy {policy} of {expected}; use a {role} of the policy's family"
        )


def _check_tokens(policy: Path, scorer: Path, *, role: str) -> None:
    """Raise ConfigError if the policy's token ids mean other text to the model that receives them."""
    from rljob_runtime.task.tokenizer import load_tokenizer

    policy_tokenizer, scorer_tokenizer = load_tokenizer(policy), load_tokenizer(scorer)
    if policy_tokenizer.vocab_size != scorer_tokenizer.vocab_size or policy_tokenizer.encode(
        PROBE
    ) != scorer_tokenizer.encode(PROBE):
        raise ConfigError(
            f"the {role} {scorer} has another tokenizer than the policy {policy}, and gets the "
            f"policy's token ids; use a {role} that was trained from the same base model"
        )
