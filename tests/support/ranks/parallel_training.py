"""Two optimizer steps of GRPO by a whole decoder, and by one rank's part of it, for comparison."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rljob_api.model.architecture import Shape, read_shape
from rljob_api.spec.algorithms.grpo import GRPOParams
from rljob_api.spec.engines import Optimizer
from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.algorithms import algorithm_of
from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.devices.collectives import sum_over_ranks
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.models.config import read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.expert_names import split_experts
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.policy_model import PolicyModel, TokenLogprobs
from rljob_runtime.parallel.decoder.parameters import purposes
from rljob_runtime.parallel.decoder.pipeline_passes import run_micro_batches
from rljob_runtime.parallel.decoder.policy import load_parallel
from rljob_runtime.parallel.fully_sharded import full_weight
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose, RankGrid
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.adamw import AdamW
from rljob_runtime.update.parallel_optimizer import ParallelOptimizer
from rljob_runtime.update.step_gradients import GradientBuffer

SETTINGS = Optimizer(learning_rate=1e-3, epsilon=1e-3, gradient_clip=0.5, weight_decay=0.1)

STEPS, TEMPERATURE = 2, 0.8
Weights = dict[str, Tensor]
Prepare = Callable[[Decoder], None]


def make_batch(seed: int) -> SampleBatch:
    """Groups of unequal sizes and lengths, with an empty and a one-token response."""
    random = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> Tensor:
        return torch.randint(0, 71, (count,), generator=random)

    responses = [tokens(n) for n in (4, 9, 1, 0, 5 + seed % 3, 1, 7)]
    near = [torch.randn(len(r), generator=random).mul(0.3).sub(4.0) for r in responses]
    return SampleBatch(
        prompts=[tokens(n) for n in (5, 1, 12)],
        group_of_B=torch.tensor([0, 2, 1, 0, 2, 2, 0]),
        responses=responses,
        fields={"rollout_logprobs": near, "old_logprobs": near, "reference_logprobs": near},
        scalars={"advantage": torch.randn(7, generator=random)},
    )


def grpo(logprobs_T: Tensor, batch: SampleBatch, totals: Totals) -> LossOutput:
    return algorithm_of("grpo").loss(logprobs_T, batch, GRPOParams(kl_coefficient=0.1), totals)


def undivided_loss(found: TokenLogprobs, batch: SampleBatch) -> tuple[Tensor, list[Tensor]]:
    """The algorithm's, with that of the routers' balance where the model has one; and the entropies
    and the experts' tokens."""
    assert found.entropy_T is not None
    seen = [found.entropy_T]
    loss = grpo(found.logprobs_T, batch, Totals(num_tokens=1, num_sequences=1)).loss
    if found.router_load is not None:
        loss = loss + 0.05 * batch.num_tokens * found.router_load.balance_loss()
        seen.append(found.router_load.tokens_ME())
    return loss, seen


def gradients_of(model: Any) -> Weights:
    parameters = [(n, p.grad) for n, p in model.trained_parameters() if p.grad is not None]
    return {n: g.clone() for n, g in split_experts(parameters, first=model.first_expert)}


class OneRank:
    """Losses a token, gradients of the first step, norms and weights after the last. prepare: is given the
    loaded model."""

    def __init__(
        self, path: Path, batches: list[SampleBatch], prepare: Prepare = lambda model: None
    ) -> None:
        model = load_decoder(path, dtype=torch.float32)
        prepare(model)
        parameters = dict(model.trained_parameters())
        adamw = AdamW(parameters, SETTINGS)
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.seen: list[list[Tensor]] = []
        self.gradients: Weights = {}
        for _ in range(STEPS):
            buffer = GradientBuffer(parameters, MemoryLedger(device="unlimited"))
            self.losses.append(0.0)
            for batch in batches:
                loss, seen = undivided_loss(said_of(model, batch), batch)
                loss.backward()  # type: ignore[no-untyped-call]
                self.seen.append([x.detach() for x in seen])
                self.losses[-1] += float(loss.detach())
            tokens = sum(batch.num_tokens for batch in batches)
            self.losses[-1] /= tokens
            means = {name: gradient / tokens for name, gradient in gradients_of(model).items()}
            self.gradients = self.gradients or means
            buffer.divide(tokens)
            self.norms.append(buffer.clip(SETTINGS.gradient_clip))
            adamw.step(SETTINGS.learning_rate)
        self.seen = self.seen[: len(batches)]
        self.weights = {n: w.detach() for n, w in model.named_hf_parameters()}


def train_on(
    groups: ProcessGroups,
    path: Path,
    batches: list[SampleBatch],
    prepare: Prepare = lambda model: None,
) -> dict[str, Any]:
    """The same of one rank's part; gradients are taken where all ranks have added them up."""
    shape = shape_of(path)
    model = load_parallel(path, groups, dtype=torch.float32)
    prepare(model)
    parameters, of = dict(model.trained_parameters()), purposes(model, shape)
    ledger = MemoryLedger(device="unlimited")
    everyone = dist.group.WORLD if groups.grid.size > 1 else None
    optimizer = ParallelOptimizer(
        parameters, of, SETTINGS, groups=groups, everyone=everyone, ledger=ledger
    )
    place, data = groups.grid.coordinates(groups.rank), groups.grid.degrees.data
    tokens = sum(batch.num_tokens for batch in batches)
    own = batches[place.data :: data]
    seen, gradients = summed_gradients(model, groups, of, own, tokens)
    losses, norms = [], []
    for _ in range(STEPS):
        begun = optimizer.begin()
        total = sum_of_losses(passes(model, groups, own, begun.end_pass), own)
        sum_over_ranks(total, groups[Purpose.DATA])
        losses.append(float(total) / tokens)
        begun.divide(tokens)
        begun.sum_over_ranks()
        norms.append(begun.clip(SETTINGS.gradient_clip))
        optimizer.step(SETTINGS.learning_rate)
        begun.free()
    held = [*model.named_parameters(), *model.named_buffers()]
    whole = [(name, full_weight(tensor.detach())) for name, tensor in held]
    weights = {n: w.clone() for n, w in split_experts(whole, first=model.first_expert)}
    found = {"losses": losses, "norms": norms, "gradients": gradients, "weights": weights}
    return found | {"seen": seen}


def summed_gradients(
    model: Any, groups: ProcessGroups, of: dict[str, Purpose], batches: list[SampleBatch], by: int
) -> tuple[list[list[Tensor]], Weights]:
    """What is seen with the starting weights, and their gradients, added up by hand over the group that
    each tensor names."""
    found = passes(model, groups, batches)
    seen = [
        [x.detach() for x in undivided_loss(said, batch)[1]]
        for said, batch in zip(found, batches, strict=True)
    ]
    summed = {}
    for name, parameter in model.trained_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        group = groups[of[name]]
        if hasattr(parameter, "full_tensor"):  # data × context ranks have added it up
            gradient = full_weight(gradient)
            group = groups[Purpose.TENSOR] if of[name] is Purpose.WHOLE_GRADIENTS else None
        sum_over_ranks(gradient.view(-1), group)
        summed[name] = gradient / by
        parameter.grad = None
    return seen, dict(split_experts(summed.items(), first=model.first_expert))


def passes(
    model: Any,
    groups: ProcessGroups,
    batches: list[SampleBatch],
    after_backward: Callable[[], None] = lambda: None,
) -> list[TokenLogprobs]:
    """All micro-batches forward and backward."""
    return run_micro_batches(
        model,
        groups,
        batches,
        temperature=TEMPERATURE,
        loss=lambda number, said: undivided_loss(said, batches[number])[0],
        after_backward=after_backward,
    )


def said_of(model: PolicyModel, batch: SampleBatch) -> TokenLogprobs:
    return model.logprobs(batch, temperature=TEMPERATURE, with_entropy=True)


def sum_of_losses(found: list[TokenLogprobs], batches: list[SampleBatch]) -> Tensor:
    pairs = zip(found, batches, strict=True)
    return torch.stack([undivided_loss(said, batch)[0].detach() for said, batch in pairs]).sum()[
        None
    ]


def shape_of(path: Path) -> Shape:
    shape = read_shape(read_config(path), name="config.json")
    assert shape is not None
    return shape


def grid_of(path: Path, **degrees: Any) -> RankGrid:
    parallelism = UpdateDegrees.model_validate({"data": 1, **degrees})
    return RankGrid(parallelism, kv_heads=shape_of(path).kv_heads)
