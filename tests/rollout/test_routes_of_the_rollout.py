"""Routes that a rollout keeps of its tokens: what the update would choose, and replays where it would not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rollouts import make_groups, run, sampling
from rollouts_on_ranks import ARGUMENTS, grid_of, run_on_ranks
from tool_samples import Echo, how

from rljob_runtime.errors import ConfigError
from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.routes import unpack_routes
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup
from rljob_runtime.rollout.rollout_torch import TorchRollout, make_torch_rollout
from rljob_runtime.samples.sample import SampleBatch

SaveReference = Callable[..., tuple[Any, Path]]
KEPT = ARGUMENTS | {"keeps_routes": True}


def batch_of(
    groups: Sequence[PromptGroup], found: Mapping[str, Generated], *, routed: bool = True
) -> SampleBatch:
    """All samples, with the tokens that were put between turns."""
    samples = [found[uid] for group in groups for uid in group.uids]
    drawn = [torch.tensor(s.drawn or [True] * len(s.token_ids)) for s in samples]
    whole = [torch.tensor(sample.token_ids) for sample in samples]
    rows = [torch.frombuffer(bytearray(s.routes), dtype=torch.uint8) for s in samples]
    return SampleBatch(
        prompts=[torch.tensor(group.token_ids) for group in groups],
        group_of_B=torch.arange(len(groups)).repeat_interleave(len(groups[0].uids)),
        responses=[text[kept] for text, kept in zip(whole, drawn, strict=True)],
        full_responses=whole,
        drawn=drawn,
        routes=rows if routed else [],
    )


def mismatch(path: Path, batch: SampleBatch, found: Mapping[str, Generated]) -> float:
    """KL of the rollout from the update by its tokens, in nats (k3, as the metric `mismatch/kl`)."""
    with torch.no_grad():
        said = load_policy(path, dtype=torch.float32).logprobs(batch, temperature=1.0)
    drawn_T = torch.tensor([x for sample in found.values() for x in sample.logprobs])
    apart_T = said.logprobs_T.double() - drawn_T
    return float((apart_T.exp() - 1 - apart_T).mean())


def in_order(groups: Sequence[PromptGroup], found: Mapping[str, Generated]) -> dict[str, Generated]:
    return {uid: found[uid] for group in groups for uid in group.uids}


@pytest.mark.parametrize("family", ["qwen3-moe-some-dense", "deepseek-v3"])
def test_the_update_chooses_what_the_rollout_kept(
    family: str, save_reference: SaveReference
) -> None:
    path, groups = save_reference(family)[1], make_groups()

    found = in_order(groups, run(TorchRollout(path, **KEPT), groups))

    assert mismatch(path, batch_of(groups, found), found) < 1e-10
    plain = in_order(groups, run(TorchRollout(path, **ARGUMENTS), groups))
    assert {u: replace(s, routes=b"") for u, s in found.items()} == plain


def test_eight_bits_are_nearer_with_the_rollouts_routes(save_reference: SaveReference) -> None:
    path, groups = save_reference("qwen3-moe")[1], make_groups((5, 1, 17, 9, 2), samples=8)

    found = in_order(groups, run(TorchRollout(path, **KEPT, quantization="int8"), groups))

    alone = mismatch(path, batch_of(groups, found, routed=False), found)
    replayed = mismatch(path, batch_of(groups, found), found)
    assert replayed < 0.4 * alone  # measured: 0.00025 and 0.00114


@pytest.mark.parametrize(
    ("family", "degrees"),
    [
        ("qwen3-moe-deep", {"pipeline": 2, "tensor": 2}),
        ("deepseek-v3", {"data": 2, "expert": 2}),
    ],
)
def test_ranks_keep_the_routes_of_one(
    family: str, degrees: dict[str, int], save_reference: SaveReference
) -> None:
    path, groups = save_reference(family)[1], make_groups(samples=2)
    expected = run(TorchRollout(path, **KEPT), groups)

    [models] = run_on_ranks(path, grid_of(**degrees), groups, [sampling()], keeps_routes=True)

    found = {uid: sample for model in models for uid, sample in model.items()}
    assert found.keys() == expected.keys()
    for uid, sample in found.items():
        assert sample.token_ids == expected[uid].token_ids
        assert sample.routes == expected[uid].routes


def test_a_sample_in_parts_has_the_routes_of_one_in_one(save_reference: SaveReference) -> None:
    path, groups = save_reference("qwen3-moe")[1], make_groups(samples=1)
    engine = TorchRollout(path, **KEPT)
    experts = load_policy(path, dtype=torch.float32).architecture.experts  # type: ignore[attr-defined]
    whole = run(engine, groups)

    first = run(engine, [replace(group, budget=4) for group in groups])
    going_on = [
        replace(
            group,
            begun=first[group.uids[0]].token_ids,
            routed=len(unpack_routes(_bytes(first[group.uids[0]]), experts)),
        )
        for group in groups
        if first[group.uids[0]].finish == "budget"
    ]
    second = run(engine, going_on)

    assert len(second) > 2
    for uid, rest in second.items():
        assert first[uid].routes + rest.routes == whole[uid].routes


def _bytes(sample: Generated) -> torch.Tensor:
    return torch.frombuffer(bytearray(sample.routes), dtype=torch.uint8)


def test_answers_of_tools_have_routes_too(save_reference: SaveReference) -> None:
    path = save_reference("qwen3-moe")[1]
    groups = make_groups(samples=8)

    found = in_order(groups, run(TorchRollout(path, **KEPT), groups, how(Echo())))

    assert any(False in sample.drawn for sample in found.values())
    assert mismatch(path, batch_of(groups, found), found) < 1e-10


def test_models_that_run_through_transformers_are_refused(save_reference: SaveReference) -> None:
    path = save_reference("llama-rope-longrope")[1]

    with pytest.raises(ConfigError, match=r"spec\.update\.routerReplay: transformers computes"):
        make_torch_rollout(path, **KEPT)
