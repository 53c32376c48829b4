"""The vLLM engine, with real vLLM, against Hugging Face's forward pass."""

# T tokens, V vocabulary

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore
from vllm_model import EOS, small_model

from rljob_api.model.architecture import read_shape
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_plan.resharding.layouts import rollout_layout, update_layout
from rljob_plan.resharding.resharding_plan import make_reshard_plan
from rljob_plan.resharding.widths import Widths
from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.errors import ConfigError, WeightsError, WorkerError
from rljob_runtime.models.loading import load_policy
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, Sampling
from rljob_runtime.rollout.rollout_vllm import VllmRollout
from rljob_runtime.rollout.sync_probe import check_probe, probe_gap
from rljob_runtime.weights.reshard.executor import Resharder
from rljob_runtime.weights.reshard.strategies import AllgatherSwap

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("vllm")]

MAX_LENGTH = 64
PROMPTS = [[257, 10, 20, 30], [257, 99], [257, *range(40)]]


@pytest.fixture(scope="module")
def reference() -> Any:
    return small_model()


@pytest.fixture(scope="module")
def engine(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmRollout]:
    path = tmp_path_factory.mktemp("model")
    reference.save_pretrained(path)
    engine = VllmRollout(
        path, dtype=torch.float32, max_sequences=128, max_length=MAX_LENGTH, seed=1, threads=1
    )
    yield engine
    engine.close()


def sampling(**changes: object) -> Sampling:
    values: dict[str, Any] = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "max_response_length": 12,
        "eos_ids": (EOS,),
    } | changes
    return Sampling(**values)


def groups(samples: int = 4) -> list[PromptGroup]:
    return [
        PromptGroup(
            group=f"train/0/{g}",
            token_ids=prompt,
            uids=[f"train/0/{g}/{s}" for s in range(samples)],
            seeds=[2**62 + 100 * g + s for s in range(samples)],
        )
        for g, prompt in enumerate(PROMPTS)
    ]


def generate(engine: VllmRollout, wanted: list[PromptGroup], how: Sampling) -> dict[str, Generated]:
    samples = [sample for chunk in engine.generate(wanted, how) for sample in chunk]
    assert len({sample.uid for sample in samples}) == len(samples)
    return {sample.uid: sample for sample in samples}


def teacher_forced(
    model: torch.nn.Module, prompt: list[int], response: list[int], temperature: float = 1.0
) -> torch.Tensor:
    with torch.no_grad():
        logits_TV = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    logprobs_TV = (logits_TV / temperature).log_softmax(-1)
    return logprobs_TV.gather(-1, torch.tensor(response)[:, None])[:, 0]


def prompt_of(uid: str) -> list[int]:
    return PROMPTS[int(uid.split("/")[2])]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_sampled_temperature(engine, reference, temperature):
    how = sampling(temperature=temperature)

    samples = generate(engine, groups(), how)

    assert len(samples) == 12
    for sample in samples.values():
        expected = teacher_forced(reference, prompt_of(sample.uid), sample.token_ids, temperature)
        torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=1e-4, rtol=0)


def test_sampled_tokens_follow_the_distribution(engine, reference):
    wanted = PromptGroup(
        group="g", token_ids=[257, 5], uids=[str(i) for i in range(4000)], seeds=list(range(4000))
    )

    samples = generate(engine, [wanted], sampling(max_response_length=1))

    with torch.no_grad():
        expected_V = reference(torch.tensor([[257, 5]])).logits[0, -1].softmax(-1)
    drawn_V = torch.bincount(
        torch.tensor([s.token_ids[0] for s in samples.values()]), minlength=259
    )
    # Pearson's chi-squared over the tokens that are likely enough for it; 5 sigma.
    likely = expected_V * 4000 >= 5
    gap = (drawn_V - expected_V * 4000)[likely] ** 2 / (expected_V * 4000)[likely]
    degrees = int(likely.sum())
    assert gap.sum() < degrees + 5 * (2 * degrees) ** 0.5


def test_seeds_repeat_and_differ(engine):
    first = generate(engine, groups(), sampling())
    again = generate(engine, groups(), sampling())

    assert {uid: s.token_ids for uid, s in first.items()} == {
        uid: s.token_ids for uid, s in again.items()
    }
    assert len({tuple(s.token_ids) for s in first.values()}) > len(PROMPTS)


def test_eos_ends_a_response_and_belongs_to_it(engine):
    likely = generate(engine, groups(1), sampling(greedy=True))["train/0/0/0"].token_ids
    eos = likely[3]

    stopped = generate(engine, groups(1), sampling(greedy=True, eos_ids=(eos,)))["train/0/0/0"]

    assert stopped.token_ids == likely[: likely.index(eos) + 1]
    assert stopped.finish == "stop"
    assert len(stopped.logprobs) == len(stopped.token_ids)


def test_eos_of_the_model_directory_has_no_say(engine):
    likely = generate(engine, groups(), sampling(eos_ids=(), temperature=2.0))

    assert all(len(sample.token_ids) == 12 for sample in likely.values())
    assert {sample.finish for sample in likely.values()} == {"length"}


def test_a_stop_rule_ends_a_response_after_the_token_that_met_it(engine):
    calls: list[list[int]] = []

    def third_token(token_ids: list[int]) -> bool:
        calls.append(token_ids)
        return len(token_ids) == 3

    samples = generate(engine, groups(), sampling(eos_ids=(), stopped=third_token))

    assert [len(sample.token_ids) for sample in samples.values()] == [3] * 12
    assert [len(sample.logprobs) for sample in samples.values()] == [3] * 12
    assert {sample.finish for sample in samples.values()} == {"stop"}


def test_greedy_takes_the_likeliest_token(engine, reference):
    sample = generate(engine, groups(1), sampling(greedy=True, eos_ids=()))["train/0/1/0"]

    ids = list(PROMPTS[1])
    with torch.no_grad():
        for _ in range(12):
            ids.append(int(reference(torch.tensor([ids])).logits[0, -1].argmax()))
    assert sample.token_ids == ids[len(PROMPTS[1]) :]


def test_a_greedy_sample_in_parts_is_the_sample_of_one_part(engine):
    how = sampling(greedy=True, stopped=lambda ids: sum(ids) % 31 == 0)
    whole = generate(engine, groups(1), how)

    first = generate(engine, [replace(group, budget=5) for group in groups(1)], how)
    rest = [
        replace(group, begun=first[uid].token_ids)
        for group in groups(1)
        for uid in group.uids
        if first[uid].finish == "budget"
    ]
    second = generate(engine, rest, how)

    assert second, "no sample was longer than the budget"
    for uid, sample in whole.items():
        begun, end = first[uid], second.get(uid)
        assert begun.token_ids + (end.token_ids if end else []) == sample.token_ids
        logprobs = begun.logprobs + (end.logprobs if end else [])
        assert logprobs == pytest.approx(sample.logprobs, abs=1e-4)
        assert (end or begun).finish == sample.finish


def test_a_sample_that_goes_on_does_not_repeat_its_first_draws(engine, reference):
    flat = {name: torch.zeros(shape) for name, shape in engine._shapes.items()}
    engine.load_weights(flat.items(), version=1)  # every token is as likely whatever comes before
    group = replace(groups(1)[0], budget=6)

    first = generate(engine, [group], sampling(eos_ids=()))["train/0/0/0"]
    second = generate(engine, [replace(group, begun=first.token_ids)], sampling(eos_ids=()))
    engine.load_weights(reference.named_parameters(), version=2)

    assert second["train/0/0/0"].token_ids != first.token_ids


def test_probe_gives_the_logprobs_of_given_tokens(engine, reference):
    probed = engine.probe([*PROMPTS[:2], list(range(30))])

    for found, sequence in zip(probed, [*PROMPTS[:2], list(range(30))], strict=True):
        expected = teacher_forced(reference, sequence[:1], sequence[1:])
        torch.testing.assert_close(torch.tensor(found), expected, atol=1e-4, rtol=0)


def test_new_weights_change_the_output_and_its_version(engine, reference):
    before = generate(engine, groups(1), sampling(greedy=True))
    torch.manual_seed(7)
    old = {name: tensor.clone() for name, tensor in reference.named_parameters()}
    new = {name: torch.randn_like(tensor) * 0.2 for name, tensor in old.items()}

    engine.load_weights(new.items(), version=3)
    changed = generate(engine, groups(1), sampling(greedy=True))
    probed = engine.probe(PROMPTS)
    engine.load_weights(old.items(), version=4)
    restored = generate(engine, groups(1), sampling(greedy=True))

    assert {s.version for s in changed.values()} == {3}
    assert {s.version for s in restored.values()} == {4}
    assert [s.token_ids for s in changed.values()] != [s.token_ids for s in before.values()]
    assert [s.token_ids for s in restored.values()] == [s.token_ids for s in before.values()]
    fresh = type(reference)(reference.config).eval()
    fresh.load_state_dict(new, strict=False)
    for found, sequence in zip(probed, PROMPTS, strict=True):
        expected = teacher_forced(fresh, sequence[:1], sequence[1:])
        torch.testing.assert_close(torch.tensor(found), expected, atol=1e-4, rtol=0)


def test_a_probe_finds_a_single_stale_tensor(engine, reference, tmp_path):
    reference.save_pretrained(tmp_path)
    policy = load_policy(tmp_path, dtype=torch.float32)
    weights = dict(policy.named_hf_parameters())
    engine.load_weights(weights.items(), version=6)
    same = probe_gap(engine, policy, vocab_size=259)
    stale = weights | {
        "model.layers.1.mlp.up_proj.weight": 1.01 * weights["model.layers.1.mlp.up_proj.weight"]
    }

    engine.load_weights(stale.items(), version=7)
    different = probe_gap(engine, policy, vocab_size=259)
    engine.load_weights(weights.items(), version=8)

    check_probe(same, dtype=torch.float32, version=6)
    with pytest.raises(WeightsError, match="weights version 7 did not arrive"):
        check_probe(different, dtype=torch.float32, version=7)


def test_wrong_weights_are_all_named_and_change_nothing(engine, reference):
    before = engine.probe(PROMPTS)
    weights = dict(reference.named_parameters())
    norm = weights.pop("model.norm.weight")
    weights["model.embed_tokens.weight"] = norm
    weights["extra"] = norm

    with pytest.raises(WeightsError, match=r"model\.norm\.weight is missing") as error:
        engine.load_weights(weights.items(), version=9)

    assert "extra is not expected" in str(error.value)
    assert "model.embed_tokens.weight is [64], not [259, 64]" in str(error.value)
    assert engine.version != 9
    assert engine.probe(PROMPTS) == before


def test_more_sequences_than_places_are_all_generated(engine):
    wanted = groups(50)

    samples = generate(engine, wanted, sampling())

    assert set(samples) == {uid for group in wanted for uid in group.uids}


def test_prompts_of_more_tokens_than_one_pass_takes_are_generated(engine):
    wanted = [
        PromptGroup(group=str(g), token_ids=[g, *range(1, 50)], uids=[str(g)], seeds=[g])
        for g in range(128)
    ]

    assert len(generate(engine, wanted, sampling())) == 128


def test_a_caller_who_leaves_early_leaves_nothing_behind(engine):
    stream = engine.generate(groups(20), sampling(max_response_length=20))
    next(stream)

    stream.close()

    assert len(generate(engine, groups(), sampling())) == 12


def test_what_cannot_be_done_right_is_refused_by_name(engine):
    with pytest.raises(ConfigError, match=r"topP=0\.9 topK=0"):
        generate(engine, groups(), sampling(top_p=0.9))
    with pytest.raises(ConfigError, match=r"group train/0/2 needs 65 tokens .* max_length=64"):
        generate(engine, groups(), sampling(max_response_length=24))
    with pytest.raises(ConfigError, match=r"temperature=3\.0 .* 0\.01 to 2\.0"):
        generate(engine, groups(), sampling(temperature=3.0))
    assert len(generate(engine, groups(), sampling())) == 12


def test_the_job_can_make_its_own_process_group(engine):
    store = HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        value = torch.ones(3)
        torch.distributed.all_reduce(value)

        assert len(generate(engine, groups(), sampling())) == 12
        engine.load_weights([(n, torch.zeros(s)) for n, s in engine._shapes.items()], version=5)
    finally:
        torch.distributed.destroy_process_group()


def test_a_reshard_brings_weights_that_vllm_holds(engine, reference):
    held = {name: tensor.detach().clone() for name, tensor in reference.named_parameters()}
    shape = read_shape(reference.config.to_dict(), name="the reference")
    assert shape is not None
    plan = make_reshard_plan(
        update_layout(shape, UpdateDegrees(data=1)),
        rollout_layout(shape, RolloutDegrees(data=1)),
        Widths(update=4, rollout=4),
    )
    backend = CpuBackend(name="emulated:0")
    store = HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        resharder = Resharder(plan, backend, sent=torch.float32, timeout_seconds=30)
        way = AllgatherSwap(resharder, held, backend)
        engine.sleep()
        found = way.to_rollout(lambda piece: torch.empty(piece.tensor.shape))
        engine.load_weights(found, version=9)
        engine.wake()
    finally:
        torch.distributed.destroy_process_group()

    assert not any(tensor.untyped_storage().nbytes() for tensor in held.values())
    for found_logprobs, sequence in zip(engine.probe(PROMPTS), PROMPTS, strict=True):
        expected = teacher_forced(reference, sequence[:1], sequence[1:])
        torch.testing.assert_close(torch.tensor(found_logprobs), expected, atol=1e-4, rtol=0)


def test_weights_that_are_cut_off_leave_nothing_behind_for_the_next(engine, reference):
    held = {name: tensor.detach() for name, tensor in reference.named_parameters()}

    def cut_off() -> Iterator[tuple[str, Tensor]]:
        for number, (name, tensor) in enumerate(held.items()):
            if number == 5:
                raise WorkerError("update rank 1 is gone")
            yield name, tensor * 0.5

    with pytest.raises(WorkerError, match="update rank 1 is gone"):
        engine.load_weights(cut_off(), version=10)
    engine.load_weights(held.items(), version=11)

    for found_logprobs, sequence in zip(engine.probe(PROMPTS), PROMPTS, strict=True):
        expected = teacher_forced(reference, sequence[:1], sequence[1:])
        torch.testing.assert_close(torch.tensor(found_logprobs), expected, atol=1e-4, rtol=0)


class Calls:
    """Takes down what vLLM is called with."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def sleep(self, level: int) -> None:
        self.made.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        self.made.append(f"wake {tags[0]}")

    def collective_rpc(self, name: str, kwargs: object) -> None:
        self.made.append(name)

    def reset_prefix_cache(self) -> None:
        self.made.append("reset_prefix_cache")


def test_on_a_device_weights_come_before_the_cache(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    engine, calls = VllmRollout.__new__(VllmRollout), Calls()
    engine._engine, engine._asleep = calls, False
    engine._config, engine._sight = {}, None
    engine._shapes = {"model.embed_tokens.weight": torch.Size([2])}

    engine.sleep()
    engine.load_weights([("model.embed_tokens.weight", torch.zeros(2))], version=1)
    engine.wake()

    assert calls.made == [
        "sleep 2",
        "wake weights",
        "reload_weights",
        "reset_prefix_cache",
        "wake kv_cache",
    ]
