"""The update engine `megatron`: whole GRPO steps on the real Megatron Core, beside the engine `torch`."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import on_ranks
from model_configs import SMALL
from parallel_training import grid_of
from shared_steps import ranks_of
from torch import Tensor

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import ResolvedSpec, resolve
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.errors import CheckpointError, ConfigError
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.weights import save_hf
from rljob_runtime.update.update_engine import UpdateEngine, UpdateSetup
from rljob_runtime.update.update_megatron import core
from rljob_runtime.update.update_megatron.weights import to_hf, to_megatron
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import make_torch, make_update
from rljob_runtime.weights.held_policy import HeldPolicy, load_held

ALIKE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-6}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
EXPERTS: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 24,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "mlp_only_layers": [1],
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 24,
        "tie_word_embeddings": True,
    },
    "experts": EXPERTS,
    "balanced": EXPERTS | {"output_router_logits": True, "router_aux_loss_coef": 0.1},
    "deep": LLAMA | {"num_hidden_layers": 4},
}
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def one_thread() -> None:
    torch.set_num_threads(1)


def spec_of(**update: Any) -> ResolvedSpec:
    sizes = {"globalBatchSize": 4, "samplesPerPrompt": 2}
    job = read_job({
        "apiVersion": "rljob.io/v1alpha1", "kind": "RLJob", "metadata": {"name": "a"},
        "spec": {
            "steps": 4,
            "model": {"path": "model"},
            "data": {"jsonl": {"path": "a"}},
            "rewards": [{"name": "r", "type": "exact"}],
            "batch": sizes | {"maxPromptLength": 16, "maxResponseLength": 8},
            "update": {
                "engine": "megatron",
                # epsilon: else the sign alone of gradients of rounding errors would move weights
                "optimizer": {
                    "learningRate": 1e-2, "weightDecay": 0.1, "gradientClip": 0.05, "epsilon": 1e-3,
                },
                **update,
            },
        },
    })  # fmt: skip
    return resolve(job).spec


def save_model(folder: Path, model: dict[str, Any]) -> Path:
    """A random model whose norms and biases are not their starting values."""
    config = SMALL | model
    decoder = Decoder(read_architecture(config))
    decoder.initialize(seed=5, std=0.1)
    random = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for _, tensor in decoder.named_hf_parameters():
            if tensor.ndim == 1:
                tensor += 0.1 * torch.randn(tensor.shape, generator=random)
    save_hf(decoder.named_hf_parameters(), folder=folder, config=config)
    return folder


ALONE = UpdateRanks()


def setup_of(
    folder: Path,
    spec: ResolvedSpec | None = None,
    ranks: UpdateRanks = ALONE,
    held: HeldPolicy | None = None,
) -> UpdateSetup:
    held = held or load_held(folder, ranks, dtype=torch.float32)
    return UpdateSetup(
        spec=spec or spec_of(),
        model=folder,
        policy=held.model,
        purposes=held.purposes,
        total_steps=4,
        ranks=ranks,
        ledger=MemoryLedger(device="test"),
    )


def weights_of(engine: UpdateEngine[Any]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.weights()}


def all_in_one(engine: UpdateEngine[Any]) -> Tensor:
    return torch.cat([weight.float().flatten() for weight in weights_of(engine).values()])


def step(engine: UpdateEngine[Any], batches: list[Any], loss: Any) -> dict[str, float]:
    begun = engine.begin(loss)
    for batch in batches:
        begun.add(batch)
    return engine.finish(begun, groups_with_signal=len(batches))


def assert_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            torch.as_tensor(found[name]),
            torch.as_tensor(value),
            msg=f"{name}: {found[name]}, {value}",
            **ALIKE,
        )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", MODELS["qwen2"])


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "experts", "balanced"])
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
        held = load_held(folder, ranks, dtype=torch.float32)
        engine = make_update(setup_of(folder, spec_of(**update), ranks, held))
        replica, replicas = ranks.share
        own = batches[replica::replicas]
        found = [step(engine, own, build.make_loss()) for _ in range(3)]
        return found, {name: weight.clone() for name, weight in held.whole_weights()}

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
        held = load_held(model, ranks, dtype=dtype)
        whole = make_update(setup_of(model, spec, ranks, held))
        step(whole, [batch], loss)
        saved, weights = whole.state_dict(), weights_of(whole)
        step(whole, [batch], loss)

        policy = load_held(model, ranks, dtype=dtype)
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
        held = load_held(model, ALONE, dtype=torch.bfloat16)
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


@pytest.mark.parametrize("family", MODELS)
def test_weights_go_to_megatron_and_back_bit_for_bit(tmp_path: Path, family: str) -> None:
    policy = load_policy(save_model(tmp_path, MODELS[family]), dtype=torch.float32)
    architecture = read_architecture(SMALL | MODELS[family])
    weights = dict(policy.named_hf_parameters())

    there = dict(to_megatron(weights, architecture))
    back = dict(to_hf(there, architecture))

    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], weights[name]) for name in weights)


def test_query_heads_lie_before_the_key_and_value_head_that_they_share() -> None:
    architecture = read_architecture(SMALL | LLAMA)  # 4 heads of 16, 2 keys
    policy = Decoder(architecture)
    policy.initialize(seed=1)
    weights = dict(policy.named_hf_parameters())

    packed = dict(to_megatron(weights, architecture))[
        "model.layers.0.of_core.self_attention.linear_qkv.weight"
    ]

    query, key, value = (weights[f"model.layers.0.self_attn.{p}_proj.weight"] for p in "qkv")
    assert torch.equal(
        packed,
        torch.cat([query[:32], key[:16], value[:16], query[32:], key[16:], value[16:]]),
    )


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
        (EXPERTS, {"data": 2, "expert": 2, "tensor": 2}, "shares experts by one of them"),
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
