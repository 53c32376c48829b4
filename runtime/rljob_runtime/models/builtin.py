"""Which directory a job's policy starts from: the user's own, or a built-in made and cached here."""

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
    """Hugging Face directories of the job's models by name; raises and progress as `policy_path`."""
    policy = policy_path(job, base_dir=base_dir, cache_dir=cache_dir, progress=progress)
    paths = {"policy": policy}
    if job.spec.has_critic:
        own = job.spec.critic.path if job.spec.critic else None
        paths["critic"] = _own(base_dir, own, "spec.critic.path") if own else policy
        if job.spec.model.vision is not None:
            _check_picture_token(policy, paths["critic"], what="critic")
    if (scorer := job.spec.reward_model) is not None:
        paths["reward-model"] = _own(base_dir, scorer.path, "the reward model's path, spec.rewards")
        _check_tokens(policy, paths["reward-model"], what="reward model")
    if job.spec.teacher is not None:
        paths["teacher"] = _own(base_dir, job.spec.teacher.path, "spec.teacher.path")
        _check_tokens(policy, paths["teacher"], what="teacher")
        if job.spec.model.vision is not None:
            _check_picture_token(policy, paths["teacher"], what="teacher")
    return paths


def policy_path(
    job: RLJob, *, base_dir: Path, cache_dir: Path, progress: Callable[[str], None]
) -> Path:
    """Hugging Face directory of the starting policy. Raises ConfigError when there is none.

    progress: called with a line for the user while a built-in is being made.
    """
    spec = job.spec
    if spec.model.path is not None:
        return _own(base_dir, spec.model.path, "spec.model.path")
    if spec.model.builtin == "smollm2-135m-instruct":
        from rljob_runtime.models.smollm2 import make_smollm2

        return make_smollm2(cache_dir)
    from rljob_runtime.models.tiny import make_tiny

    return make_tiny(job, base_dir=base_dir, cache_dir=cache_dir, progress=progress)


def _own(base_dir: Path, path: str, field: str) -> Path:
    """The user's directory."""
    found = model_folder(base_dir / path)
    if found is None:
        raise ConfigError(
            f"{base_dir / path} holds no config.json ({field}); name a Hugging Face directory, or the folder "
            "of a run that has saved a checkpoint"
        )
    return found.resolve()


def _check_picture_token(policy: Path, other: Path, *, what: str) -> None:
    """Raise ConfigError where another token stands for pictures."""
    known, own = (read_config(path).get("image_token_id") for path in (policy, other))
    if known != own:
        raise ConfigError(
            f"the {what} {other} has pictures in place of token {own} (image_token_id in config.json), "
            f"the policy {policy} of {known}; use a {what} of the policy's family"
        )


def _check_tokens(policy: Path, scorer: Path, *, what: str) -> None:
    """Raise ConfigError where the same ids are other text for a model that gets the policy's ids."""
    from rljob_runtime.task.tokenizer import load_tokenizer

    known, own = load_tokenizer(policy), load_tokenizer(scorer)
    if known.vocab_size != own.vocab_size or known.encode(PROBE) != own.encode(PROBE):
        raise ConfigError(
            f"the {what} {scorer} has another tokenizer than the policy {policy}, and gets the "
            f"policy's token ids; use a {what} that was trained from the same base model"
        )
