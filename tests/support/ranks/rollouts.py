"""Prompt groups, sampling, and an engine's whole output by uid, for tests of rollout engines."""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, RolloutEngine, Sampling

PLAIN = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_response_length=24, eos_ids=(3, 4))


def make_groups(
    prompt_lengths: Sequence[int] = (5, 1, 17, 9, 2), samples: int = 4
) -> list[PromptGroup]:
    """Groups of random prompts over ids 5 and up; seeds depend on the uid alone."""
    generator = torch.Generator().manual_seed(3)
    groups = []
    for index, length in enumerate(prompt_lengths):
        uids = [f"{index}/{sample}" for sample in range(samples)]
        groups.append(
            PromptGroup(
                group=str(index),
                token_ids=torch.randint(5, 71, (length,), generator=generator).tolist(),
                uids=uids,
                seeds=[zlib.crc32(uid.encode()) << 20 for uid in uids],
            )
        )
    return groups


def sampling(**changes: Any) -> Sampling:
    """Plain sampling with changes."""
    return replace(PLAIN, **changes)


def run(
    engine: RolloutEngine, groups: Iterable[PromptGroup], how: Sampling = PLAIN
) -> dict[str, Generated]:
    """Everything that the engine generates, by uid; each uid once."""
    samples = [sample for chunk in engine.generate(list(groups), how) for sample in chunk]
    found = {sample.uid: sample for sample in samples}
    assert len(found) == len(samples)
    return found
