"""The update engine `megatron`: whole GRPO steps on the real Megatron Core, beside the engine `torch`."""

import copy
import math
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from engine_steps import (
    ALIKE,
    ALONE,
    EXPERTS,
    LLAMA,
    MODELS,
    assert_alike,
    save_model,
    setup_of,
    spec_of,
    step,
)
from forked_ranks import on_ranks
from parallel_training import grid_of
from safetensors.torch import load_file
from shared_steps import ranks_of
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.distributed_c10d import _get_default_store
from transformers import AutoModelForCausalLM

from rljob_runtime.devices.meetings import SignedStore, Signer
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.devices.world_connections import CONNECTIONS
from rljob_runtime.errors import CheckpointError, ConfigError, WorkerError
from rljob_runtime.models.loading import load_policy
from rljob_runtime.update.update_engine import UpdateEngine
from rljob_runtime.update.update_megatron import core
from rljob_runtime.update.update_table import make_torch, make_update
from rljob_runtime.weights.held_policy import load_local_policy
from rljob_runtime.worker.device_ranks import leave

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def one_thread() -> None:
    torch.set_num_threads(1)


def weights_of(engine: UpdateEngine[Any]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.weights()}


def all_in_one(engine: UpdateEngine[Any]) -> Tensor:
    return torch.cat([weight.float().flatten() for weight in weights_of(engine).values()])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", MODELS["qwen2"])


@pytest.mark.parametrize(
    "family",
    ["llama", "qwen2", "qwen3", "experts", "balanced", "latent", "plain queries"],
)
@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean"])
def test_steps_are_those_of_the_engine_torch(
    both: Any, tmp_path: Path, family: str, aggregation: str
) -> None:
    build = both[0]
    folder = save_model(tmp_path / "model", MODELS[family])
    batches = [build.make_batch(2, 2, seed=seed) for seed in (1, 2)]
    loss = build.make_loss(kl_coefficient=0.1, loss_aggregation=aggregation)

    def train(_: int) -> Any:
        engine = make_update(setup_of(folder))
        before = engine.logprobs(batches[0])
        found = [step(engine, batches, loss) for _ in range(3)]
        return before, found, weights_of(engine), (engine.step, engine.version)

    ((before, found, weights, counters),) = on_ranks(1, train)

    expected = make_torch(setup_of(folder))
    torch.testing.assert_close(before, expected.logprobs(batches[0]), **ALIKE)
    for metrics in found:
        assert_alike(metrics, step(expected, batches, loss))
    assert_alike(weights, weights_of(expected))
    assert counters == (3, 3)


def surrogate(policy: Any, batches: list[Any]) -> Tensor:
    """GRPO's clipped surrogate, a mean over tokens, of one forward pass a sample without padding."""
    losses = []
    for batch in batches:
        for row, response in enumerate(batch.responses):
            prompt = batch.prompts[int(batch.group_of_B[row])]
            logits_TV = policy(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
            logprobs_T = logits_TV.log_softmax(-1).gather(1, response[:, None])[:, 0]
            ratio_T = (logprobs_T - batch.fields["old_logprobs"][row]).exp()
            advantage = batch.scalars["advantage"][row]
            losses.append(-torch.minimum(ratio_T * advantage, ratio_T.clamp(0.8, 1.2) * advantage))
    return torch.cat(losses).mean()


def trained_by_transformers(folder: Path, batches: list[Any]) -> tuple[list[Any], Path]:
    """Loss and gradient's norm of three steps of torch's autograd and AdamW, and the weights after them."""
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    matrices = [parameter for parameter in policy.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in policy.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.9, 0.95),
        eps=1e-3,
    )
    found = []
    for _ in range(3):
        loss = surrogate(policy, batches)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.05)
        found.append({"loss": loss.detach(), "gradient_norm": norm})
        optimizer.step()
        optimizer.zero_grad()
    policy.save_pretrained(folder / "trained")
    return found, folder / "trained/model.safetensors"


def test_steps_are_those_of_transformers_autograd_and_adamw(both: Any, tmp_path: Path) -> None:
    families = ["llama", "qwen2", "qwen3", "experts"]
    folders = {name: save_model(tmp_path / name, MODELS[name]) for name in families}
    batches = [both[0].make_batch(2, 2, seed=seed) for seed in (1, 2)]

    def train(_: int) -> Any:  # all in one process, which imports Megatron once
        trained = {}
        for name, folder in folders.items():
            engine = make_update(setup_of(folder))
            found = [step(engine, batches, both[0].make_loss()) for _ in range(3)]
            trained[name] = found, weights_of(engine)
        return trained

    (trained,) = on_ranks(1, train)

    for name, (found, weights) in trained.items():
        expected, file = trained_by_transformers(folders[name], batches)
        for own, theirs in zip(found, expected, strict=True):  # found: 2e-6 apart at most
            torch.testing.assert_close(own["loss"], float(theirs["loss"]), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(
                own["gradient_norm"], float(theirs["gradient_norm"]), rtol=1e-5, atol=1e-6
            )
        given = {name: load_file(file)}
        torch.testing.assert_close({name: weights}, given, rtol=1e-5, atol=1e-6)  # 1e-7 apart


LAYOUTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "data": ("qwen3", {"data": 2}, {}),
    "zero": ("qwen3", {"data": 2, "zero": 1}, {}),
    "tensor": ("qwen3", {"tensor": 2}, {}),
    "ulysses": ("qwen3", {"context": 2}, {}),
    "ring": ("qwen3", {"context": 2, "context_algorithm": "ring"}, {}),
    "recompute": ("qwen3", {"tensor": 2}, {"recompute": "full"}),
    "tensor, data and zero": ("qwen3", {"tensor": 2, "data": 2, "zero": 1}, {}),
    "pipeline": ("llama", {"pipeline": 2}, {}),
    "pipeline, tied": ("qwen3", {"pipeline": 2}, {}),
    "virtual stages": ("deep", {"pipeline": 2, "virtual_pipeline": 2}, {}),
    "pipeline and tensor": ("qwen3", {"pipeline": 2, "tensor": 2}, {}),
    "experts in a pipeline": ("experts", {"pipeline": 2, "data": 2, "expert": 2, "zero": 1}, {}),
    "experts by number": ("experts", {"data": 2, "expert": 2}, {}),
    "experts by number, zero": ("experts", {"data": 2, "expert": 2, "zero": 1}, {}),
    "experts by number, tensor": ("experts", {"tensor": 2, "data": 2, "expert": 2}, {}),
    "latent": ("latent", {"data": 2, "expert": 2, "zero": 1}, {}),
    "latent, tensor": ("latent", {"tensor": 2}, {}),
    "latent, all": ("latent", {"tensor": 2, "data": 2, "expert": 2, "zero": 1}, {}),
    "latent, ring": ("latent", {"context": 2, "context_algorithm": "ring"}, {}),
    "experts cut as matrices": ("balanced", {"tensor": 2}, {"recompute": "full"}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_train_as_one(both: Any, tmp_path: Path, layout: str) -> None:
    build = both[0]
    name, degrees, update = LAYOUTS[layout]
    folder = save_model(tmp_path / "model", MODELS[name])
    grid = grid_of(folder, **degrees)
    batches = [build.make_batch(2, 2, seed=seed) for seed in (1, 2)]

    def train(rank: int) -> Any:
        ranks = ranks_of(grid)
        held = load_local_policy(folder, ranks, dtype=torch.float32)
        engine = make_update(setup_of(folder, spec_of(**update), ranks, held))
        replica, replicas = ranks.share
        own = batches[replica::replicas]
        found = [step(engine, own, build.make_loss()) for _ in range(3)]
        return found, {name: weight.clone() for name, weight in held.full_weights()}

    ranks = on_ranks(grid.size, train)

    alone = make_torch(setup_of(folder))
    metrics = [step(alone, batches, build.make_loss()) for _ in range(3)]
    for found, weights in ranks:
        for own, expected in zip(found, metrics, strict=True):
            assert_alike(own, expected)
        assert_alike(weights, weights_of(alone))


@pytest.mark.parametrize("update", [{}, {"dtype": "bfloat16"}, {"parallelism": {"zero": 1}}])
def test_a_resumed_engine_goes_on_as_if_it_had_never_stopped(
    both: Any, model: Path, update: dict[str, Any]
) -> None:
    batch, loss = both[0].make_batch(4, 2), both[0].make_loss()
    dtype = torch.bfloat16 if "dtype" in update else torch.float32
    spec, grid = spec_of(**update), grid_of(model, data=2, **update.get("parallelism", {}))

    def train(rank: int) -> Any:
        ranks = ranks_of(grid)
        held = load_local_policy(model, ranks, dtype=dtype)
        whole = make_update(setup_of(model, spec, ranks, held))
        step(whole, [batch], loss)
        saved, weights = copy.deepcopy(whole.state_dict()), weights_of(whole)
        step(whole, [batch], loss)

        policy = load_local_policy(model, ranks, dtype=dtype)
        resumed = make_update(setup_of(model, spec, ranks, policy))
        for name, tensor in policy.model.named_hf_parameters():
            tensor.detach().copy_(weights[name])
        resumed.load_state_dict(saved)
        step(resumed, [batch], loss)
        return (resumed.step, resumed.version), weights_of(resumed), weights_of(whole)

    for counters, resumed, whole in on_ranks(2, train):
        assert counters == (2, 2)
        for name, tensor in resumed.items():
            assert torch.equal(tensor, whole[name]), name


def test_in_bfloat16_it_trains_what_the_engine_torch_trains(both: Any, model: Path) -> None:
    batch, loss = both[0].make_batch(4, 2), both[0].make_loss()
    spec = spec_of(dtype="bfloat16")

    def train(make: Any) -> tuple[Tensor, Tensor]:
        held = load_local_policy(model, ALONE, dtype=torch.bfloat16)
        engine = make(setup_of(model, spec, held=held))
        before = all_in_one(engine)
        for _ in range(3):
            step(engine, [batch], loss)
        return before, all_in_one(engine)

    ((before, found),) = on_ranks(1, lambda _: train(make_update))

    _, expected = train(make_torch)
    assert (found - expected).norm() < 0.2 * (expected - before).norm()


def test_a_checkpoint_of_another_engine_is_refused(model: Path) -> None:
    def load(_: int) -> str:
        with pytest.raises(CheckpointError) as refused:
            make_update(setup_of(model)).load_state_dict(make_torch(setup_of(model)).state_dict())
        return str(refused.value)

    assert "another engine made it" in on_ranks(1, load)[0]


def test_a_step_without_signal_changes_no_weight(both: Any, model: Path) -> None:
    def train(_: int) -> Any:
        engine = make_update(setup_of(model))
        before = weights_of(engine)
        begun = engine.begin(both[0].make_loss())
        begun.add(both[0].make_batch(2, 2))
        metrics = engine.finish(begun, groups_with_signal=1, min_groups_with_signal=2)
        same = all(torch.equal(before[name], tensor) for name, tensor in engine.weights())
        return metrics["skipped"], engine.step, engine.version, same

    assert on_ranks(1, train) == [(1.0, 1, 0, True)]


def test_a_loss_that_is_not_finite_changes_no_weight(both: Any, model: Path) -> None:
    batch = both[0].make_batch(2, 2)
    batch.scalars["advantage"][:] = torch.inf

    def train(_: int) -> Any:
        engine = make_update(setup_of(model))
        before = weights_of(engine)
        metrics = step(engine, [batch], both[0].make_loss())
        same = all(torch.equal(before[name], tensor) for name, tensor in engine.weights())
        return math.isnan(metrics["gradient_norm"]), metrics["skipped"], same

    assert on_ranks(1, train) == [(True, 1, True)]


@pytest.mark.parametrize("zero", [0, 1])
def test_the_policy_and_megatron_have_each_weight_once(
    both: Any, tmp_path: Path, zero: int
) -> None:
    folder = save_model(tmp_path / "model", MODELS["qwen2"])
    grid = grid_of(folder, data=2, zero=zero)
    loaded = dict(load_policy(folder, dtype=torch.float32).named_hf_parameters())

    def train(rank: int) -> Any:
        ranks = ranks_of(grid)
        held = load_local_policy(folder, ranks, dtype=torch.float32)
        engine = make_update(setup_of(folder, spec_of(parallelism={"zero": zero}), ranks, held))
        own = {weight.untyped_storage().data_ptr() for weight in engine._model.parameters()}  # type: ignore[attr-defined]
        before = {name: tensor.clone() for name, tensor in held.slices().items()}
        shared = {tensor.untyped_storage().data_ptr() for tensor in held.slices().values()}
        step(engine, [both[0].make_batch(4, 2)], both[0].make_loss())
        return own == shared, before, held.slices()["model.norm.weight"]

    for same, before, norm in on_ranks(2, train):
        assert same
        assert before.keys() == loaded.keys()
        assert all(torch.equal(before[name], tensor) for name, tensor in loaded.items())
        assert not torch.equal(norm, before["model.norm.weight"])


@pytest.mark.parametrize(
    ("engine", "module", "told"),
    [
        ("mindspeed", "mindspeed", "No module named 'mindspeed'"),
        ("megatron", "megatron.core", "pip install '.[megatron]'"),
    ],
)
def test_without_its_packages_the_remedy_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch, engine: str, module: str, told: str
) -> None:
    if engine == "megatron":
        monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(ConfigError) as refused:
        make_update(setup_of(model, spec_of(engine=engine)))

    assert f"spec.update.engine is {engine!r}" in str(refused.value)
    assert told in str(refused.value)
    assert "or use update.engine: torch" in str(refused.value)


def test_another_version_is_refused_in_one_sentence(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "VERSIONS", ("0.99",))

    def make(_: int) -> str:
        with pytest.raises(ConfigError) as refused:
            make_update(setup_of(model))
        return str(refused.value)

    (told,) = on_ranks(1, make)
    assert "is installed; it needs Megatron Core 0.12.1 or 0.16" in told


@pytest.mark.parametrize(
    ("model_config", "degrees", "told"),
    [
        (LLAMA | {"mlp_bias": True}, {}, "biases of the feed-forward"),
        (EXPERTS, {"data": 4, "expert": 2, "tensor": 2}, "use 4 or 1"),
        (LLAMA, {"tensor": 4}, "tensor is 4, which does not divide num_key_value_heads=2"),
    ],
)
def test_a_model_that_cannot_be_translated_is_refused(
    tmp_path: Path, model_config: dict[str, Any], degrees: dict[str, Any], told: str
) -> None:
    folder = save_model(tmp_path / "model", model_config)
    grid = grid_of(folder, **degrees)

    def make(_: int) -> str:
        ranks = ranks_of(grid)
        with pytest.raises(ConfigError) as refused:
            make_update(setup_of(folder, ranks=ranks))
        return str(refused.value)

    assert all(told in text for text in on_ranks(grid.size, make))


@pytest.mark.parametrize(
    ("update", "path"),
    [
        ({"parallelism": {"zero": 2}}, "spec.update.parallelism.zero is 2"),
        ({"offload": "optimizer"}, "spec.update.offload is optimizer"),
    ],
)
def test_settings_that_the_engine_lacks_are_refused_by_name(
    model: Path, update: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError, match=path):
        make_update(setup_of(model, spec_of(**update)))


def test_megatrons_groups_end_with_the_world_that_one_leaves(model: Path) -> None:
    """Who leaves holds them for longer, as Megatron does."""

    def run(rank: int) -> str:
        store = PrefixStore("own", _get_default_store())
        CONNECTIONS.begin(SignedStore(store, Signer("own")), rank, 2)
        ranks = ranks_of(grid_of(model, tensor=2))
        make_update(setup_of(model, ranks=ranks))
        group = import_module("megatron.core.parallel_state").get_tensor_model_parallel_group()
        dist.all_reduce(torch.ones(1), group=group)
        if rank == 1:
            CONNECTIONS.cut()
            store.get("heard")
            return ""
        with pytest.raises(RuntimeError) as heard:
            dist.all_reduce(torch.ones(1), group=group)
        store.set("heard", "")
        return str(heard.value)

    heard, _ = on_ranks(2, run)
    assert "closed" in heard


def test_a_step_that_was_cut_leaves_none_of_its_weights_with_the_world_that_one_leaves(
    both: Any, model: Path
) -> None:
    def cut(*_: Any) -> Any:
        raise WorkerError("a rank is gone")

    def run(_: int) -> int:
        held = load_local_policy(model, ALONE, dtype=torch.float32)
        setup = setup_of(model, held=held)
        engine, ledger = make_update(setup), setup.ledger
        try:
            step(engine, [both[0].make_batch(2, 2, seed=1)], cut)
        except WorkerError as error:
            cycle: list[Any] = [error]  # with the frames that were cut, and their graph
            cycle.append(cycle)
            del cycle
        del setup, engine, held

        leave()

        return ledger.kind_bytes(MemoryKind.UPDATE_WEIGHTS)

    assert on_ranks(1, run) == [0]
