"""Small policies, batches with everything that GRPO reads, and ranks to run engines on."""

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed import ProcessGroup
from transformers import Qwen3Config, Qwen3ForCausalLM

from rljob_api.spec.algorithms.grpo import GRPOParams
from rljob_api.spec.engines import Optimizer
from rljob_runtime.algorithms import ALGORITHMS
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.transformers_model import TransformersModel
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.accumulation import LossFn
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_torch import TorchUpdateEngine

Result = TypeVar("Result")
Policy = TransformersModel | Decoder
VOCABULARY = 48
GENERATOR = threading.Lock()  # the global one, which models are made with


def make_model(
    kind: str = "transformers", *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> Policy:
    """A random Qwen3 of about 20,000 parameters; both kinds of one seed have the same weights."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
        architectures=["Qwen3ForCausalLM"],
        max_position_embeddings=128,
    )
    with GENERATOR, torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).to(dtype)
        for parameter in model.parameters():  # beyond the starting values, where all is flat
            parameter.data += 0.1 * torch.randn_like(parameter)
    if kind == "transformers":
        return TransformersModel(model)
    decoder = Decoder(read_architecture(config.to_dict()), dtype=dtype)
    decoder.load_state_dict(dict(model.named_parameters()))
    return decoder


def make_batch(
    groups: int, samples: int, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> SampleBatch:
    """Ragged random samples; some responses are empty."""
    random = torch.Generator().manual_seed(seed)
    count = groups * samples

    def tokens(low: int, high: int) -> torch.Tensor:
        length = int(torch.randint(low, high, (), generator=random))
        return torch.randint(0, VOCABULARY, (length,), generator=random)

    responses = [tokens(0, 7) for _ in range(count)]

    def column() -> list[torch.Tensor]:
        rows = [torch.randn(len(r), generator=random, dtype=torch.float64) for r in responses]
        return [row.mul(0.3).sub(3.9).to(dtype) for row in rows]

    return SampleBatch(
        prompts=[tokens(1, 9) for _ in range(groups)],
        group_of_B=torch.arange(count) // samples,
        responses=responses,
        fields={n: column() for n in ("rollout_logprobs", "old_logprobs", "reference_logprobs")},
        scalars={"advantage": torch.randn(count, generator=random, dtype=torch.float64).to(dtype)},
    )


def make_loss(**params: object) -> LossFn:
    """GRPO's loss with these parameters."""
    settings = GRPOParams.model_validate(params)

    def loss(logprobs_T, batch, totals):
        return ALGORITHMS["grpo"].loss(logprobs_T, batch, settings, totals)

    return loss


def make_engine(
    model: Policy, group: ProcessGroup | None = None, **settings: float
) -> TorchUpdateEngine:
    """An engine with a learning rate that moves weights visibly."""
    return TorchUpdateEngine(
        model,
        optimizer=Optimizer.model_validate({"learning_rate": 1e-2, **settings}),
        total_steps=10,
        temperature=1.0,
        ranks=UpdateRanks(everyone=group),
    )


def on_ranks(size: int, function: Callable[[int, ProcessGroup | None], Result]) -> list[Result]:
    """Results of function(rank, group) by rank; ranks are threads, each with a gloo group."""
    if size == 1:
        return [function(0, None)]
    store = HashStore()
    results: dict[int, Result] = {}
    failures: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = function(rank, dist.ProcessGroupGloo(store, rank, size))  # type: ignore[arg-type, call-arg]
        except BaseException as error:
            failures[rank] = error

    threads = [threading.Thread(target=partial(run, rank)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failures:
        raise BaseExceptionGroup("ranks failed", [failures[rank] for rank in sorted(failures)])
    return [results[rank] for rank in range(size)]


class Bench:
    """The builders above, for tests. make_model: of this bench's kind."""

    def __init__(self, kind: str) -> None:
        self.make_model = partial(make_model, kind)

    make_batch = staticmethod(make_batch)
    make_loss = staticmethod(make_loss)
    make_engine = staticmethod(make_engine)
    on_ranks = staticmethod(on_ranks)


@pytest.fixture(scope="session", params=["decoder", "transformers"])
def bench(request: pytest.FixtureRequest) -> Bench:
    """Builders of models, batches, losses, engines and ranks, for each kind of model."""
    return Bench(request.param)


@pytest.fixture(scope="session")
def both() -> tuple[Bench, Bench]:
    """Benches of the two kinds of model."""
    return Bench("decoder"), Bench("transformers")
