"""A model whose layers pipeline ranks share, on ragged micro-batches: one rank's losses and gradients."""

import subprocess
import sys
import time
from datetime import timedelta

import pytest
import torch
import torch.nn.functional as F
from forked_ranks import RanksFailed, on_ranks
from sent_bytes import SentBytes
from torch import Tensor, distributed

from rljob_api.model.layout import share
from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.parallel.pipeline import HiddenStates, pipeline_bytes, run_pipeline
from rljob_runtime.parallel.pipeline_schedule import PipelineSchedule
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose, RankGrid

VOCABULARY, WIDTH, LAYERS = 11, 6, 7
LENGTHS = [3, 9, 1, 5, 4]


class Model:
    """A tied embedding, layers and a loss; its parts may be on several ranks."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(8)
        self.embedding = torch.randn(VOCABULARY, WIDTH, generator=random).requires_grad_()
        self.layers = (torch.randn(LAYERS, WIDTH, WIDTH, generator=random) / 3).unbind()
        for layer in self.layers:
            layer.requires_grad_()
        self.tokens = [torch.randint(0, VOCABULARY, (n,), generator=random) for n in LENGTHS]

    def run(self, part: int, parts: int, micro_batch: int, given: Tensor | None) -> Tensor:
        """One of the parts that share the layers unevenly; the first embeds, the last gives the loss."""
        x = F.embedding(self.tokens[micro_batch], self.embedding) if given is None else given
        for layer in share(LAYERS, part, parts):
            x = x + (x @ self.layers[layer]).tanh()
        if part < parts - 1:
            return x
        targets = self.tokens[micro_batch].roll(-1)
        return F.cross_entropy(x @ self.embedding.T, targets, reduction="sum")

    def gradients(self) -> list[Tensor]:
        parameters = [self.embedding, *self.layers]
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]


def hidden() -> HiddenStates:
    shapes = [(length, WIDTH) for length in LENGTHS]
    return HiddenStates(shapes=shapes, dtype=torch.float32, device=torch.device("cpu"))


def one_rank() -> tuple[list[Tensor], list[Tensor]]:
    model = Model()
    losses = [model.run(0, 1, number, None) for number in range(len(LENGTHS))]
    torch.stack(losses).sum().backward()
    return [loss.detach() for loss in losses], model.gradients()


def chunks_of(model: Model, rank: int, ranks: int, chunks: int):
    parts = ranks * chunks
    return [
        lambda number, given, part=part: model.run(part, parts, number, given)
        for part in range(rank, parts, ranks)
    ]


def on_rank(rank: int, ranks: int, chunks: int, trains: bool = True):
    """Losses, gradients and bytes of a rank."""
    model, group = Model(), distributed.group.WORLD if ranks > 1 else None
    with SentBytes() as sent:
        losses = run_pipeline(chunks_of(model, rank, ranks, chunks), hidden(), group, trains=trains)
    return losses, model.gradients(), sent.total


@pytest.mark.parametrize(("ranks", "chunks"), [(1, 1), (1, 2), (2, 1), (2, 3), (3, 2), (4, 1)])
def test_losses_and_gradients_are_one_ranks(ranks, chunks):
    losses, gradients = one_rank()

    results = on_ranks(ranks, lambda rank: on_rank(rank, ranks, chunks))

    torch.testing.assert_close(results[-1][0], losses, rtol=1e-5, atol=1e-5)
    assert all(found == [] for found, *_ in results[:-1])
    summed = [torch.stack(parts).sum(0) for parts in zip(*(r[1] for r in results), strict=True)]
    torch.testing.assert_close(summed, gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("trains", [True, False])
def test_bytes_are_the_formulas(trains):
    schedule = PipelineSchedule(ranks=2, chunks=2, micro_batches=len(LENGTHS), trains=trains)

    results = on_ranks(2, lambda rank: on_rank(rank, 2, 2, trains))

    sent = [total for *_, total in results]
    assert sent == [pipeline_bytes(schedule, rank, hidden()) for rank in range(2)]
    tensor = sum(LENGTHS) * WIDTH * 4
    assert sum(sent) == (6 if trains else 3) * tensor


def test_a_forward_pass_alone_gives_the_outputs_and_no_gradients():
    losses, _ = one_rank()

    results = on_ranks(3, lambda rank: on_rank(rank, 3, 1, trains=False))

    torch.testing.assert_close(results[-1][0], losses, rtol=1e-5, atol=1e-5)
    assert not any(gradient.any() for _, gradients, _ in results for gradient in gradients)


def test_a_tied_embeddings_gradient_is_one_ranks_after_its_groups_sum():
    _, gradients = one_rank()
    grid = RankGrid(UpdateDegrees(data=1, pipeline=3))

    def embedding_gradient(rank: int) -> Tensor | None:
        model, groups = Model(), ProcessGroups(grid, timeout_seconds=30)
        run_pipeline(chunks_of(model, rank, 3, 1), hidden(), distributed.group.WORLD)
        if groups[Purpose.TIED_GRADIENTS] is not None:
            distributed.all_reduce(model.embedding.grad, group=groups[Purpose.TIED_GRADIENTS])
        return model.embedding.grad

    first, middle, last = on_ranks(3, embedding_gradient)

    assert middle is None and first.equal(last)
    torch.testing.assert_close(first, gradients[0], rtol=1e-5, atol=1e-5)


def test_a_rank_that_hangs_is_an_error_that_says_what_was_awaited():
    def hang(rank: int) -> None:
        group = distributed.new_group([0, 1], timeout=timedelta(seconds=2))
        if rank == 0:
            time.sleep(60)
        run_pipeline(chunks_of(Model(), rank, 2, 1), hidden(), group)

    with pytest.raises(RanksFailed) as caught:
        on_ranks(2, hang, seconds=30)

    said = "WorkerError: pipeline rank 1: rank 0 has not sent micro-batch 0 forward for stage 1"
    assert said in caught.value.reasons[1]


def test_a_pass_imports_nothing_of_torchs_compiler():
    code = """
import sys
import torch
from rljob_runtime.parallel.pipeline import HiddenStates, run_pipeline
weight = torch.ones(3, requires_grad=True)
chunks = [lambda number, given: 2 * weight, lambda number, given: (given * weight).sum()]
hidden = HiddenStates(shapes=[(3,)], dtype=torch.float32, device=torch.device("cpu"))
assert run_pipeline(chunks, hidden, None) == [6] and weight.grad.tolist() == [4, 4, 4]
assert not {"sympy", "torch._dynamo"} & sys.modules.keys()
"""

    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
