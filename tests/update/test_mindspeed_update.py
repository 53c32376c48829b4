"""The update engine `mindspeed` over Megatron's public signatures: whole GRPO steps, beside `torch`.

No NPU and no MindSpeed is needed; what this cannot show is in docs/ascend.md.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fake_megatron import fake_megatron, signatures
from forked_ranks import on_ranks
from model_configs import SMALL
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
from rljob_runtime.update.update_mindspeed.megatron import CALLS
from rljob_runtime.update.update_mindspeed.megatron_weights import to_hf, to_megatron
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import make_torch, make_update

ALIKE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-6}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 24,
        "tie_word_embeddings": True,
    },
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
                "engine": "mindspeed",
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
    folder: Path, spec: ResolvedSpec | None = None, ranks: UpdateRanks = ALONE
) -> UpdateSetup:
    return UpdateSetup(
        spec=spec or spec_of(),
        model=folder,
        policy=load_policy(folder, dtype=torch.float32),
        total_steps=4,
        ranks=ranks,
        ledger=MemoryLedger(device="test"),
    )


def weights_of(engine: UpdateEngine[Any]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in engine.weights()}


def step(engine: UpdateEngine[Any], batches: list[Any], loss: Any) -> dict[str, float]:
    begun = engine.begin(loss)
    for batch in batches:
        begun.add(batch)
    return engine.finish(begun, groups_with_signal=len(batches))


def assert_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            torch.as_tensor(found[name]), torch.as_tensor(value), msg=name, **ALIKE
        )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(tmp_path / "model", MODELS["qwen2"])


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean"])
def test_two_optimizer_steps_are_those_of_the_engine_torch(
    both: Any, tmp_path: Path, family: str, aggregation: str
) -> None:
    build = both[0]
    folder = save_model(tmp_path / "model", MODELS[family])
    batches = [build.make_batch(2, 2, seed=seed) for seed in (1, 2)]
    loss = build.make_loss(kl_coefficient=0.1, loss_aggregation=aggregation)
    expected = make_torch(setup_of(folder))

    with fake_megatron() as calls:
        engine = make_update(setup_of(folder))
        before = engine.logprobs(batches[0])
        found = [step(engine, batches, loss) for _ in range(2)]

        torch.testing.assert_close(before, expected.logprobs(batches[0]), **ALIKE)
        for metrics in found:
            assert_alike(metrics, step(expected, batches, loss))
        assert_alike(weights_of(engine), weights_of(expected))
    assert (engine.step, engine.version) == (2, 2)
    assert set(calls) >= {f"{module}.{name}" for name, module in CALLS.items()}


def test_every_call_has_a_signature_and_every_signature_is_called(both: Any, model: Path) -> None:
    with fake_megatron() as calls:
        engine = make_update(setup_of(model))
        step(engine, [both[0].make_batch(2, 2)], both[0].make_loss())
        engine.load_state_dict(engine.state_dict())

    assert set(calls) == set(signatures())


def test_the_page_on_ascend_lists_every_call() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ascend.md").read_text()

    listed = page[page.index("## The update engine") :]

    for name in signatures():
        assert f"{name.rsplit('.', 1)[1]}`" in listed, name


@pytest.mark.parametrize(
    "argument",
    [
        "tensor_model_parallel_size", "num_query_groups", "calculate_per_token_loss", "qk_layernorm",
        "parallel_output", "rotary_base", "attention_mask", "grad_reduce_in_fp32", "ddp_config",
        "adam_eps", "model_chunks",
    ],
)  # fmt: skip
def test_an_argument_that_megatron_calls_otherwise_fails(
    both: Any, model: Path, argument: str
) -> None:
    with (
        fake_megatron(rename=(argument, "renamed")),
        pytest.raises(TypeError, match=f"'{argument}'|missing a required argument: 'renamed'"),
    ):
        step(make_update(setup_of(model)), [both[0].make_batch(2, 2)], both[0].make_loss())


def test_two_ranks_train_as_one(both: Any, model: Path) -> None:
    build = both[0]
    batches = [build.make_batch(2, 2, seed=seed) for seed in (1, 2)]

    def train(rank: int) -> tuple[dict[str, float], dict[str, Tensor]]:
        with fake_megatron():
            engine = make_update(setup_of(model, ranks=UpdateRanks(everyone=dist.group.WORLD)))
            return step(engine, [batches[rank]], build.make_loss()), weights_of(engine)

    ranks = on_ranks(2, train)

    alone = make_torch(setup_of(model))
    metrics = step(alone, batches, build.make_loss())
    for found, weights in ranks:
        assert_alike(found, metrics)
        assert_alike(weights, weights_of(alone))


def test_a_resumed_engine_goes_on_as_if_it_had_never_stopped(both: Any, model: Path) -> None:
    batch, loss = both[0].make_batch(4, 2), both[0].make_loss()
    with fake_megatron():
        whole = make_update(setup_of(model))
        step(whole, [batch], loss)
        saved, weights = whole.state_dict(), weights_of(whole)
        step(whole, [batch], loss)

        setup = setup_of(model)
        resumed = make_update(setup)
        for name, tensor in setup.policy.named_hf_parameters():
            tensor.detach().copy_(weights[name])
        resumed.load_state_dict(saved)
        step(resumed, [batch], loss)

    assert (resumed.step, resumed.version) == (2, 2)
    for name, tensor in resumed.weights():
        assert torch.equal(tensor, dict(whole.weights())[name]), name


def test_a_checkpoint_of_another_engine_is_refused(model: Path) -> None:
    with fake_megatron(), pytest.raises(CheckpointError, match="another engine made it"):
        make_update(setup_of(model)).load_state_dict(make_torch(setup_of(model)).state_dict())


def test_a_step_without_signal_changes_no_weight(both: Any, model: Path) -> None:
    with fake_megatron():
        engine = make_update(setup_of(model))
        before = weights_of(engine)
        begun = engine.begin(both[0].make_loss())
        begun.add(both[0].make_batch(2, 2))
        metrics = engine.finish(begun, groups_with_signal=1, min_groups_with_signal=2)

    assert (metrics["skipped"], engine.step, engine.version) == (1.0, 1, 0)
    assert all(torch.equal(before[name], tensor) for name, tensor in engine.weights())


def test_a_loss_that_is_not_finite_changes_no_weight(both: Any, model: Path) -> None:
    batch = both[0].make_batch(2, 2)
    batch.scalars["advantage"][:] = torch.inf
    with fake_megatron():
        engine = make_update(setup_of(model))
        before = weights_of(engine)

        metrics = step(engine, [batch], both[0].make_loss())

    assert math.isnan(metrics["gradient_norm"])
    assert metrics["skipped"] == 1

    assert all(torch.equal(before[name], tensor) for name, tensor in engine.weights())


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
        "decoder.layers.0.self_attention.linear_qkv.weight"
    ]

    query, key, value = (weights[f"model.layers.0.self_attn.{p}_proj.weight"] for p in "qkv")
    assert torch.equal(
        packed,
        torch.cat([query[:32], key[:16], value[:16], query[32:], key[16:], value[16:]]),
    )


def test_without_mindspeed_the_remedy_is_named(model: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        make_update(setup_of(model))

    assert "spec.update.engine is 'mindspeed'" in str(refused.value)
    assert "No module named 'mindspeed'" in str(refused.value)
    assert "or use update.engine: torch" in str(refused.value)


@pytest.mark.parametrize(
    ("model_config", "told"),
    [
        (LLAMA | {"mlp_bias": True}, "biases of the feed-forward"),
        (
            LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            "rope_type linear",
        ),
    ],
)
def test_a_model_that_cannot_be_translated_is_refused(
    tmp_path: Path, model_config: dict[str, Any], told: str
) -> None:
    folder = save_model(tmp_path / "model", model_config)

    with pytest.raises(ConfigError, match=told):
        make_update(setup_of(folder))


@pytest.mark.parametrize(
    ("update", "path"),
    [
        ({"dtype": "bfloat16"}, "spec.update.dtype is bfloat16"),
        ({"parallelism": {"zero": 1}}, "spec.update.parallelism.zero is 1"),
        ({"recompute": "full"}, "spec.update.recompute is full"),
        ({"offload": "optimizer"}, "spec.update.offload is optimizer"),
    ],
)
def test_settings_that_the_engine_lacks_are_refused_by_name(
    model: Path, update: dict[str, Any], path: str
) -> None:
    with fake_megatron(), pytest.raises(ConfigError, match=path):
        make_update(setup_of(model, spec_of(**update)))
