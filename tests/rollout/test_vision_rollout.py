"""The torch engine with pictures in prompts: against transformers, and on ranks against one."""

import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from rollouts import make_groups, run, sampling
from rollouts_on_ranks import ARGUMENTS, grid_of, run_on_ranks
from tool_samples import Echo, drawn_ids, how
from transformers import GenerationConfig
from vision_models import (
    PICTURE,
    VISION_FAMILIES,
    make_pictured_batch,
    make_vision_reference,
    reference_inputs,
)

from rljob_runtime.errors import ConfigError
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.tower import VisionTower
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.worker.rollout_replica import pack, unpack

FEW = {"max_response_length": 10, "eos_ids": tuple(range(3, 9))}
SAMPLED = sampling(temperature=0.8, **FEW)


@pytest.fixture(params=sorted(VISION_FAMILIES))
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """A random model of each family, and its directory."""
    reference = make_vision_reference(request.param)
    reference.save_pretrained(tmp_path / "model")
    return reference, tmp_path / "model"


def make_engine(path: Path, **changes: Any) -> TorchRollout:
    arguments: dict[str, Any] = {"max_sequences": 64, "max_length": 96, "pictures": True}
    return TorchRollout(path, dtype=torch.float32, **(arguments | changes))


def pictured_groups(samples: int = 3) -> list[PromptGroup]:
    """Prompts with no, one and several pictures."""
    batch = make_pictured_batch()
    return [
        PromptGroup(
            group=str(group),
            token_ids=prompt.tolist(),
            uids=[f"{group}/{sample}" for sample in range(samples)],
            seeds=[zlib.crc32(f"{group}/{sample}".encode()) << 20 for sample in range(samples)],
            pictures=batch.pictures[group],
        )
        for group, prompt in enumerate(batch.prompts)
    ]


def batch_of(groups: list[PromptGroup], found: dict[str, Generated]) -> SampleBatch:
    """What was generated, as the update gets it."""
    samples = [found[uid] for group in groups for uid in group.uids]
    turns = any(sample.drawn for sample in samples)
    whole = [torch.tensor(sample.token_ids) for sample in samples]
    return SampleBatch(
        prompts=[torch.tensor(group.token_ids) for group in groups],
        group_of_B=torch.tensor([g for g, group in enumerate(groups) for _ in group.uids]),
        responses=[torch.tensor(drawn_ids(sample)) for sample in samples] if turns else whole,
        full_responses=whole if turns else [],
        drawn=[torch.tensor(sample.drawn) for sample in samples] if turns else [],
        pictures=[group.pictures for group in groups],
    )


@pytest.mark.parametrize("shared", [False, True], ids=["in rows", "shared prompts"])
@pytest.mark.parametrize("rows", [64, 2])
def test_logprobs_equal_those_of_the_update_model(
    rows: int, shared: bool, saved: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if shared:
        monkeypatch.setattr("rljob_runtime.rollout.cache_layout.SHARE_FROM_BYTES", 0)
    path, groups = saved[1], pictured_groups()
    decoder = load_decoder(path, dtype=torch.float32)
    decoder.show(VisionTower.from_path(path, dtype=torch.float32))

    found = run(make_engine(path, max_sequences=rows), groups, SAMPLED)

    assert len({len(sample.token_ids) for sample in found.values()}) > 1
    with torch.no_grad():
        expected = decoder.logprobs(batch_of(groups, found), temperature=0.8).logprobs_T
    ours = [p for group in groups for uid in group.uids for p in found[uid].logprobs]
    torch.testing.assert_close(torch.tensor(ours), expected, atol=2e-5, rtol=0)


def test_turns_behind_pictures_have_the_logprobs_of_the_update_model(
    saved: tuple[Any, Path],
) -> None:
    path, groups = saved[1], pictured_groups(samples=6)
    decoder = load_decoder(path, dtype=torch.float32)
    decoder.show(VisionTower.from_path(path, dtype=torch.float32))

    found = run(make_engine(path), groups, how(Echo()))

    called = {uid.partition("/")[0] for uid, sample in found.items() if sample.calls}
    assert called == {"0", "1", "2"}, "a prompt with pictures has no sample that calls a tool"
    with torch.no_grad():
        expected = decoder.logprobs(batch_of(groups, found), temperature=1.0).logprobs_T
    ours = [p for group in groups for uid in group.uids for p in found[uid].logprobs]
    torch.testing.assert_close(torch.tensor(ours), expected, atol=2e-5, rtol=0)


def test_greedy_equals_transformers_generate(saved: tuple[Any, Path]) -> None:
    reference, path = saved
    groups = pictured_groups(samples=1)
    config = GenerationConfig(
        do_sample=False, max_new_tokens=24, eos_token_id=[3, 4], pad_token_id=0
    )

    found = run(make_engine(path), groups, sampling(greedy=True))

    for index, group in enumerate(groups):
        batch = make_pictured_batch().select([index])  # its first three samples have these prompts
        inputs = reference_inputs(batch, 0)
        length = len(group.token_ids)
        inputs |= {name: inputs[name][:, :length] for name in ("input_ids", "mm_token_type_ids")}
        with torch.no_grad():
            expected = reference.generate(
                **inputs,
                attention_mask=torch.ones_like(inputs["input_ids"]),
                generation_config=config,
            )
        assert found[group.uids[0]].token_ids == expected[0, length:].tolist()


def test_text_is_generated_the_same_with_and_without_a_tower(saved: tuple[Any, Path]) -> None:
    groups = make_groups(samples=2)

    plain = run(make_engine(saved[1], pictures=False), groups, SAMPLED)

    assert run(make_engine(saved[1]), groups, SAMPLED) == plain


def test_text_equals_transformers_generate(saved: tuple[Any, Path]) -> None:
    reference, path = saved
    groups = make_groups(samples=1)
    config = GenerationConfig(
        do_sample=False, max_new_tokens=24, eos_token_id=[3, 4], pad_token_id=0
    )

    found = run(make_engine(path, pictures=False), groups, sampling(greedy=True))

    for group in groups:
        prompt = torch.tensor([group.token_ids])
        with torch.no_grad():
            expected = reference.generate(
                prompt, attention_mask=torch.ones_like(prompt), generation_config=config
            )
        assert found[group.uids[0]].token_ids == expected[0, len(group.token_ids) :].tolist()


def test_a_sample_goes_on_behind_what_it_has_begun(saved: tuple[Any, Path]) -> None:
    engine, groups = make_engine(saved[1]), pictured_groups(samples=1)
    whole = run(engine, groups, sampling(max_response_length=12, eos_ids=()))

    for group in groups:
        made = whole[group.uids[0]]
        begun = PromptGroup(
            group=group.group,
            token_ids=group.token_ids,
            uids=group.uids,
            seeds=group.seeds,
            begun=made.token_ids[:3],
            pictures=group.pictures,
        )
        rest = run(engine, [begun], sampling(max_response_length=12, eos_ids=()))[group.uids[0]]
        assert rest.token_ids == made.token_ids[3:]
        assert rest.logprobs == pytest.approx(made.logprobs[3:], abs=1e-5)


def test_a_sample_goes_on_behind_a_picture_that_a_tool_showed(saved: tuple[Any, Path]) -> None:
    path, batch = saved[1], make_pictured_batch()
    group, begun = int(batch.group_of_B[6]), batch.full_responses[6][:-2]
    drawn = batch.drawn[6][:-2]
    asked = PromptGroup(
        group="2",
        token_ids=batch.prompts[group].tolist(),
        uids=["a"],
        seeds=[7 << 20],
        begun=begun.tolist(),
        drawn=drawn.tolist(),
        pictures=batch.pictures[group],
        begun_pictures=batch.text_pictures[6],
    )
    decoder = load_decoder(path, dtype=torch.float32)
    decoder.show(VisionTower.from_path(path, dtype=torch.float32))

    made = run(make_engine(path, max_length=160), [asked], sampling(max_response_length=50))["a"]

    new = torch.tensor(made.token_ids)
    whole = SampleBatch(
        prompts=[batch.prompts[group]],
        group_of_B=torch.tensor([0]),
        responses=[torch.cat([begun[drawn], new])],
        full_responses=[torch.cat([begun, new])],
        drawn=[torch.cat([drawn, torch.ones(len(new), dtype=torch.bool)])],
        pictures=[batch.pictures[group]],
        text_pictures=[batch.text_pictures[6]],
    )
    with torch.no_grad():
        expected = decoder.logprobs(whole, temperature=1.0).logprobs_T[-len(new) :]
    torch.testing.assert_close(torch.tensor(made.logprobs), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("family", "degrees"),
    [
        ("qwen2.5-vl-tied", {"tensor": 2}),
        ("qwen3-vl", {"pipeline": 3}),
        ("qwen3-vl-tied", {"tensor": 2, "pipeline": 2}),
    ],
)
def test_ranks_that_share_a_model_give_the_tokens_of_one(
    family: str, degrees: dict[str, int], tmp_path: Path
) -> None:
    make_vision_reference(family).save_pretrained(tmp_path / "model")
    path, groups = tmp_path / "model", pictured_groups(samples=2)
    arguments = ARGUMENTS | {"max_length": 96, "pictures": True}
    expected = run(TorchRollout(path, **arguments), groups, SAMPLED)

    [by_model] = run_on_ranks(
        path, grid_of(**degrees), groups, [SAMPLED], max_length=96, pictures=True
    )

    found = {uid: sample for of in by_model for uid, sample in of.items()}
    assert found.keys() == expected.keys()
    for uid, sample in found.items():
        assert sample.token_ids == expected[uid].token_ids, uid
        assert sample.logprobs == pytest.approx(expected[uid].logprobs, abs=1e-5), uid


def test_devices_tell_each_other_pictures_bit_for_bit() -> None:
    groups = pictured_groups()

    told = unpack(pack(groups))

    for ours, theirs in zip(groups, told, strict=True):
        assert theirs.token_ids == ours.token_ids
        for one, other in zip(ours.pictures, theirs.pictures, strict=True):
            assert other.grid == one.grid
            assert other.patches_PX.equal(one.patches_PX)


def test_pictures_that_nothing_stands_for_are_refused(saved: tuple[Any, Path]) -> None:
    group = pictured_groups(samples=1)[1]
    wrong = PromptGroup(
        group="1",
        token_ids=[PICTURE, *group.token_ids],
        uids=group.uids,
        seeds=group.seeds,
        pictures=group.pictures,
    )

    with pytest.raises(ConfigError, match="do not stand for 1 pictures of 6 tokens"):
        run(make_engine(saved[1]), [wrong], SAMPLED)
