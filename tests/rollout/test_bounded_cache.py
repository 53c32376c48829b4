"""The torch engine's KV cache: never above its bytes, a prompt held once a group, the same tokens."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_models import FAMILIES
from rollouts import make_groups, run, sampling

from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.errors import ConfigError
from rljob_runtime.rollout import cache_layout, rollout_torch
from rljob_runtime.rollout.cache_layout import CacheLayout, choose_layout
from rljob_runtime.rollout.prompts import SharedPrompts
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.rollout.slots import Seat, Slots

MakeEngine = Callable[..., TorchRollout]
SaveReference = Callable[..., tuple[Any, Path]]
SHORT = sampling(max_response_length=12, eos_ids=tuple(range(3, 9)))
"""Few tokens, and yet many a row is free before the others."""
QWEN3_TOKEN_BYTES = 3 * 2 * 2 * 16 * 4  # layers, k and v, heads, width, float32


@pytest.fixture
def always_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are held once a group, however short."""
    monkeypatch.setattr(cache_layout, "SHARE_FROM_BYTES", 0)


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[CacheLayout]]:
    """The layouts of the calls so far."""
    chosen: list[CacheLayout] = []

    def choose(*arguments: Any, **named: Any) -> CacheLayout:
        chosen.append(choose_layout(*arguments, **named))
        return chosen[-1]

    monkeypatch.setattr(rollout_torch, "choose_layout", choose)
    yield chosen


def assert_same(found: dict[str, Generated], expected: dict[str, Generated]) -> None:
    assert found.keys() == expected.keys()
    for uid, sample in found.items():
        assert sample.token_ids == expected[uid].token_ids, uid
        assert sample.logprobs == pytest.approx(expected[uid].logprobs, abs=1e-5), uid
        assert sample.finish == expected[uid].finish


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_prompts_held_once_give_the_same_tokens(
    family: str,
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    layouts: list[CacheLayout],
) -> None:
    engine, groups = make_engine(family, max_sequences=7), make_groups(samples=3)
    expected = run(engine, groups, SHORT)

    monkeypatch.setattr(cache_layout, "SHARE_FROM_BYTES", 0)
    found = run(engine, groups, SHORT)

    assert [layout.in_rows for layout in layouts] == [True, False]
    assert_same(found, expected)


@pytest.mark.parametrize("tokens", [64, 65, 100, 150, 300, 1000])
@pytest.mark.parametrize("samples", [1, 2, 4])
def test_a_small_cache_generates_every_sample_once_with_the_same_tokens(
    tokens: int, samples: int, make_engine: MakeEngine
) -> None:
    groups = make_groups([5, 1, 40, 2], samples=samples)
    expected = run(make_engine(), groups, SHORT)
    ledger = MemoryLedger(device="cpu:0")

    engine = make_engine(cache_tokens=tokens, ledger=ledger)

    assert_same(run(engine, groups, SHORT), expected)
    assert ledger.report().kind_peak_bytes[MemoryKind.KV_CACHE] == tokens * QWEN3_TOKEN_BYTES


def test_sequences_in_flight_follow_from_the_caches_tokens(
    make_engine: MakeEngine, layouts: list[CacheLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, most = make_groups([30, 30], samples=8), [0]
    add = Slots.add

    def counted(slots: Slots, seats: list[Seat]) -> slice:
        rows = add(slots, seats)
        most[-1] = max(most[-1], len(slots.seats))
        return rows

    monkeypatch.setattr(Slots, "add", counted)

    for tokens in (64, 2 * (30 + 23), 30 + 5 * 23, 2 * 30 + 16 * 23):
        run(make_engine(cache_tokens=tokens), groups, sampling(eos_ids=()))
        most.append(0)

    assert [(layout.rows, layout.prefixes) for layout in layouts] == [
        (1, 1),
        (3, 1),
        (4, 1),
        (16, 2),
    ]
    assert most[:-1] == [1, 3, 4, 16]


def test_shared_prompts_let_more_sequences_in() -> None:
    groups = make_groups([1024] * 64, samples=16)
    alone = make_groups([1024] * 128, samples=1)

    shared, apart = (
        choose_layout(
            chosen,
            sampling(max_response_length=1024),
            tokens=262_144,
            max_sequences=1024,
            layer_token_bytes=1,
        )
        for chosen in (groups, alone)
    )

    assert (shared.rows, shared.prefixes) == (227, 29)
    assert (apart.rows, apart.prefixes) == (128, 0)


@pytest.mark.usefixtures("always_shared")
def test_samples_that_go_on_share_what_they_begin_with(make_engine: MakeEngine) -> None:
    groups = make_groups([9, 30], samples=4)
    whole = run(make_engine(), groups, sampling(eos_ids=()))
    begun = whole["0/2"].token_ids[:10]
    rest = PromptGroup(
        group="0",
        token_ids=groups[0].token_ids,
        uids=["a", "b", "c"],
        seeds=[groups[0].seeds[2]] * 3,
        begun=begun,
    )

    found = run(make_engine(cache_tokens=90), [rest, groups[1]], sampling(eos_ids=()))

    for uid in rest.uids:
        assert begun + found[uid].token_ids == whole["0/2"].token_ids
    assert found["1/3"].token_ids == whole["1/3"].token_ids


def test_a_layout_never_takes_more_than_the_cache_has() -> None:
    generator = torch.Generator().manual_seed(0)
    shared = 0
    for _ in range(500):
        numbers = torch.randint(1, 40, (6,), generator=generator).tolist()
        groups = make_groups(numbers[:4], samples=numbers[4] % 9 + 1)
        groups[0].begun.extend([7] * (numbers[5] % 24))
        tokens = int(torch.randint(64, 2000, (), generator=generator))

        layout = choose_layout(
            groups, sampling(), tokens=tokens, max_sequences=numbers[5], layer_token_bytes=2**14
        )

        longest = max(len(group.prefix) for group in groups)
        assert layout.tokens <= tokens
        assert 1 <= layout.rows <= numbers[5]
        if layout.in_rows:
            assert layout.row_tokens >= longest
        else:
            assert layout.row_tokens >= 23 and layout.prefix_tokens == longest
            shared += 1
    assert 50 < shared < 450


@pytest.mark.usefixtures("always_shared")
def test_a_prompt_lies_once_in_the_cache_until_its_last_sample_ends(
    make_engine: MakeEngine, layouts: list[CacheLayout], monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = make_groups([30, 20, 25], samples=6)
    held: list[tuple[set[str], set[str]]] = []
    prefixes = SharedPrompts.prefixes

    def seen(prompts: SharedPrompts, running: list[PromptGroup]) -> Any:
        held.append(({g.group for g in prompts.groups}, {g.group for g in running}))
        assert len(prompts.groups) == len({g.group for g in prompts.groups})
        return prefixes(prompts, running)

    monkeypatch.setattr(SharedPrompts, "prefixes", seen)
    engine = make_engine(max_sequences=18)

    run(engine, groups)

    assert layouts[0].tokens == 18 * 23 + 3 * 30  # instead of 18 * (30 + 23)
    assert held[0] == ({"0", "1", "2"},) * 2
    assert all(kept == running for kept, running in held)
    assert len(held[-1][0]) < 3


@pytest.mark.usefixtures("always_shared")
def test_a_half_seated_groups_prompt_stays(make_engine: MakeEngine) -> None:
    groups = make_groups([30, 5, 9], samples=10)

    found = run(make_engine(max_sequences=3), groups, sampling(max_response_length=3))

    assert_same(found, run(make_engine(), groups, sampling(max_response_length=3)))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("rows", [2, 3, 30])
def test_a_prompt_is_computed_once_for_its_samples(
    shared: bool, rows: int, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_layout, "SHARE_FROM_BYTES", 0 if shared else 2**40)
    engine, groups, computed = make_engine(max_sequences=rows), make_groups(samples=6), []
    model = engine._share.model
    prefill = model.prefill

    def counted(tokens_BP: torch.Tensor, lengths_B: torch.Tensor, *more: Any) -> torch.Tensor:
        computed.extend(lengths_B.tolist())
        return prefill(tokens_BP, lengths_B, *more)

    monkeypatch.setattr(model, "prefill", counted)

    run(engine, groups, sampling(max_response_length=6))

    prompts = [len(group.token_ids) for group in groups]
    if shared or rows == 30:
        assert computed == prompts
    else:  # again where no sample runs any more from whose row it could be taken
        assert set(computed) == set(prompts)
        assert len(computed) < 6 * len(prompts)


@pytest.mark.usefixtures("always_shared")
def test_sleep_and_new_weights_between_calls_leave_shared_prompts_right(
    make_engine: MakeEngine, save_reference: SaveReference
) -> None:
    engine, groups = make_engine(max_sequences=5), make_groups()
    other = save_reference("qwen3", seed=1)[0]
    run(engine, groups)

    engine.sleep()
    engine.wake()
    engine.load_weights(other.state_dict().items(), version=1)

    expected = TorchRollout(
        save_reference("qwen3", seed=1)[1], dtype=torch.float32, max_sequences=64, max_length=64
    )
    assert_same(run(engine, groups), run(expected, groups))


def test_a_cache_without_room_for_one_sequence_is_refused(make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigError, match="63 tokens has no room for one sequence of 64; raise"):
        make_engine(cache_tokens=63)
