"""The states of one device: made once from the spec and the device's seat, then called in turn."""

import collections
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from rljob_api.engines import UpdateParallelism
from rljob_api.rljob import RLJobSpec
from rljob_runtime.backends.base import Backend
from rljob_runtime.backends.collectives import rank_of, size_of
from rljob_runtime.backends.ledger import MemoryKind
from rljob_runtime.checkpoint import MODEL_FOLDER, optimizer_file
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.stats import Traffic
from rljob_runtime.engines.base import Sampling
from rljob_runtime.engines.rollout import DTYPES, make_rollout
from rljob_runtime.engines.update_ranks import UpdateRanks
from rljob_runtime.engines.update_torch import UpdateEngine
from rljob_runtime.models.tokenizer import Tokenizer, load_tokenizer, make_stopped
from rljob_runtime.models.weights import save_hf
from rljob_runtime.parallel.groups import ProcessGroups
from rljob_runtime.parallel.ranks import RankGrid
from rljob_runtime.states.generate import Generate
from rljob_runtime.states.held_policy import HeldPolicy, load_held, shape_of
from rljob_runtime.states.partial_rollout import PartialRollout
from rljob_runtime.states.reference import Reference
from rljob_runtime.states.update import Update
from rljob_runtime.states.weight_sync import WeightSync

if TYPE_CHECKING:
    from rljob_runtime.actors.device import Seat

GRACE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStates:
    """The states that a seat has; None where it has not."""

    spec: RLJobSpec
    source: Path
    policy: HeldPolicy | None
    engine: UpdateEngine | None
    generate: Generate | None
    partial_rollout: PartialRollout | None
    reference: Reference | None
    update: Update | None
    weight_sync: WeightSync
    tokenizer: Tokenizer
    ranks: UpdateRanks

    def sampling(self, *, held_out: bool) -> Sampling:
        """How responses are drawn: the rollout's way in training, the evaluation's to `held_out` prompts."""
        rollout, evaluation = self.spec.rollout, self.spec.evaluation
        assert evaluation is not None or not held_out, "an evaluation without spec.evaluation"
        temperature = evaluation.temperature if held_out and evaluation else rollout.temperature
        return Sampling(
            temperature=temperature or 1.0,
            greedy=temperature == 0,
            top_p=1.0 if held_out else rollout.top_p,
            top_k=0 if held_out else rollout.top_k,
            max_response_length=self.spec.batch.max_response_length,
            eos_ids=self.tokenizer.eos_ids,
            stopped=self._stopped(),
        )

    def traffic(self) -> dict[str, Traffic]:
        """What each state moved through the dock since the last call."""
        states = {"generate": self.generate, "reference": self.reference, "update": self.update}
        return {name: state.dock.take_traffic() for name, state in states.items() if state}

    def save(self, folder: Path) -> None:
        """Write the model's directory and the optimizer's state: each rank its part, the first the model.

        All update ranks call it together.
        """
        assert self.policy is not None and self.engine is not None, "only update ranks save"
        weights = self.policy.whole_weights()
        first = rank_of(self.ranks.everyone) == 0
        if first:
            save_hf(weights, source=self.source, folder=folder / MODEL_FOLDER)
        elif self.ranks.groups is not None:
            collections.deque(weights, maxlen=0)
        if first or self.ranks.groups is not None:
            torch.save(self.engine.state_dict(), folder / self._optimizer_file)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        if self.policy is None or self.engine is None:
            return
        self.policy.load(folder / MODEL_FOLDER)
        file = folder / self._optimizer_file
        self.engine.load_state_dict(torch.load(file, weights_only=True))

    @property
    def _optimizer_file(self) -> str:
        everyone = self.ranks.everyone
        parts = size_of(everyone) if self.ranks.groups is not None else 1
        return optimizer_file(rank_of(everyone), parts)

    def _stopped(self) -> Callable[[list[int]], bool] | None:
        stop = self.spec.data.stop
        return make_stopped(self.tokenizer, stop) if stop else None


def make_states(
    spec: RLJobSpec,
    seat: "Seat",
    *,
    model: Path,
    dock: Callable[[], DockAddress],
    backend: Backend,
    meet: Callable[[], UpdateRanks],
) -> DeviceStates:
    """Load what the seat needs. meet: joins the other devices that train.

    The rollout engine is made first: vLLM makes, and destroys, a process group of its own.
    """
    tokenizer = load_tokenizer(model)
    rollout = None
    if seat.generates:
        rollout = make_rollout(spec, model=model, ledger=backend.ledger)
    ranks = meet()

    def client(state: str) -> DockClient:
        return DockClient(dock, state=state, owner=f"device-{seat.rank}")

    policy = load_held(model, ranks, dtype=torch.float32)
    engine = update = None
    if seat.update_rank is not None:
        engine = _update_engine(spec, policy, backend=backend, ranks=ranks)
        update = Update(engine=engine, dock=client("update"), ranks=ranks, spec=spec)
    generate = partial_rollout = None
    if rollout is not None:
        generate = Generate(
            engine=rollout,
            dock=client("generate"),
            run_seed=spec.seed,
            timeout_seconds=spec.flow.stage_timeout_seconds,
        )
        if spec.flow.partial_rollout is not None:
            partial_rollout = PartialRollout(engine=rollout, dock=generate.dock, spec=spec)
    return DeviceStates(
        spec=spec,
        source=model,
        policy=policy if engine else None,
        engine=engine,
        generate=generate,
        partial_rollout=partial_rollout,
        reference=_reference(spec, seat, model=model, ranks=ranks, backend=backend, client=client),
        update=update,
        weight_sync=WeightSync(
            policy=policy,
            rollout=rollout,
            dtype=DTYPES[spec.rollout.dtype],
            vocab_size=tokenizer.vocab_size,
            max_length=spec.batch.max_prompt_length + spec.batch.max_response_length,
        ),
        tokenizer=tokenizer,
        ranks=ranks,
    )


def _update_engine(
    spec: RLJobSpec, policy: HeldPolicy, *, backend: Backend, ranks: UpdateRanks
) -> UpdateEngine:
    batch = spec.batch
    assert batch.mini_batch_size is not None, "the resolved spec names miniBatchSize"
    per_step = batch.global_batch_size // batch.mini_batch_size * batch.epochs
    return UpdateEngine(
        policy.model,
        optimizer=spec.update.optimizer,
        total_steps=spec.steps * per_step,
        temperature=spec.rollout.temperature,
        ranks=ranks,
        purposes=policy.purposes,
        ledger=backend.ledger,
    )


def _reference(
    spec: RLJobSpec,
    seat: "Seat",
    *,
    model: Path,
    ranks: UpdateRanks,
    backend: Backend,
    client: Callable[[str], DockClient],
) -> Reference | None:
    if spec.algorithm.params.kl_coefficient == 0 or seat.update_rank is None:
        return None
    frozen = load_held(model, ranks, dtype=torch.float32).model
    weights = [tensor.requires_grad_(False) for _, tensor in frozen.trained_parameters()]
    backend.ledger.track(MemoryKind.REFERENCE_WEIGHTS, weights)
    return Reference(
        model=frozen,
        dock=client("reference"),
        ranks=ranks,
        temperature=spec.rollout.temperature,
        sizes=spec.batch,
        pass_groups=spec.batch.micro_batch_size or 1,
        timeout_seconds=spec.flow.stage_timeout_seconds,
    )


def join(
    backend: Backend,
    seat: "Seat",
    meeting_point: str | None,
    *,
    model: Path,
    degrees: UpdateParallelism,
    deadline_seconds: float,
) -> UpdateRanks:
    """Meet the other devices that train, where there are any. degrees: resolved.

    deadline_seconds: for the rows of a batch; a collective waits a little longer, so that the rank which
    waited for them says so. Raises ConfigError for degrees that cannot be.
    """
    if seat.update_rank is None or seat.num_updating == 1:
        return UpdateRanks()
    seconds = deadline_seconds + GRACE_SECONDS
    dist.init_process_group(
        backend.collectives,
        init_method=meeting_point,
        rank=seat.update_rank,
        world_size=seat.num_updating,
        timeout=timedelta(seconds=seconds),
        pg_options=backend.group_options(),
    )
    if not degrees.shared:
        return UpdateRanks(everyone=dist.group.WORLD)
    shape = shape_of(model)
    grid = RankGrid(degrees, kv_heads=shape.kv_heads if shape else None)
    groups = ProcessGroups(grid, timeout_seconds=seconds)
    return UpdateRanks.of(groups, dist.group.WORLD)
