"""How often one policy's response beats another's, on prompts that training never saw. Called by
`preferences.py`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import torch

from rljob_api.spec.rljob import RLJob
from rljob_runtime.rollout.rollout_engine import PromptGroup, Sampling
from rljob_runtime.rollout.rollout_torch import make_torch_rollout
from rljob_runtime.samples.seeds import derive_seed
from rljob_runtime.task.data.source import Prompt, PromptSource
from rljob_runtime.task.rewards.scorer_pool import RewardPool, RewardRequest
from rljob_runtime.task.tokenizer import load_tokenizer

AT_A_TIME = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class WinRate:
    """share: of the prompts, ties half. stderr: of the share, over prompts."""

    share: float
    stderr: float


def win_rate(ours: Sequence[float], theirs: Sequence[float]) -> WinRate:
    """Of one response each to the same prompts, by their rewards."""
    points = [
        1.0 if our > their else 0.5 if our == their else 0.0
        for our, their in zip(ours, theirs, strict=True)
    ]
    return WinRate(share=mean(points), stderr=stdev(points) / len(points) ** 0.5)


def held_out_prompts(job: RLJob, model: Path) -> PromptSource:
    """The job's prompts. The job has an evaluation, and no paths of its own."""
    assert job.spec.evaluation is not None, "held-out prompts are those of spec.evaluation"
    return PromptSource(
        job.spec.data,
        batch=job.spec.batch,
        tokenizer=load_tokenizer(model),
        seed=job.spec.seed,
        base_dir=model,
        held_out=job.spec.evaluation.prompts,
    )


def held_out_rewards(job: RLJob, model: Path, *, noise: str = "eval") -> list[float]:
    """Reward of one response to each held-out prompt. noise: `eval` draws what the job's evaluations draw,
    any other word something else."""
    spec, tokenizer = job.spec, load_tokenizer(model)
    prompts = held_out_prompts(job, model).heldout()
    texts = [tokenizer.decode(ids) for ids in responses(job, model, prompts, noise=noise)]
    pool = RewardPool(spec.rewards, spec.data, processes=1, base_dir=model)
    try:
        scored = pool.score(
            [
                RewardRequest(
                    prompt=prompt.text, response=text, answer=prompt.answer, entry=prompt.entry
                )
                for prompt, text in zip(prompts, texts, strict=True)
            ]
        )
    finally:
        pool.close()
    return [result.total for result in scored]


def responses(
    job: RLJob, model: Path, prompts: Sequence[Prompt], *, noise: str, temperature: float = 1.0
) -> list[list[int]]:
    """One response to each prompt, as token ids; with its end token, if it has ended."""
    spec, tokenizer = job.spec, load_tokenizer(model)
    engine = make_torch_rollout(
        model,
        dtype=torch.float32,
        max_sequences=AT_A_TIME,
        max_length=spec.batch.max_prompt_length + spec.batch.max_response_length,
    )
    groups = [
        PromptGroup(
            group=str(number),
            token_ids=prompt.token_ids,
            uids=[str(number)],
            seeds=[derive_seed(spec.seed, noise, 0, number, 0)],
        )
        for number, prompt in enumerate(prompts)
    ]
    sampling = Sampling(
        temperature=temperature,
        top_p=1.0,
        top_k=0,
        max_response_length=spec.batch.max_response_length,
        eos_ids=tokenizer.eos_ids,
    )
    drawn = {
        sample.uid: list(sample.token_ids)
        for ended in engine.generate(groups, sampling)
        for sample in ended
    }
    return [drawn[str(number)] for number in range(len(prompts))]
