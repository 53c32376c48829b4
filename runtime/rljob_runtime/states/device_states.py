"""The states of one device: made once from the spec and the device's seat, then called in turn."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from rljob_api.rljob import RLJobSpec
from rljob_runtime.backends.base import Backend
from rljob_runtime.backends.ledger import MemoryKind
from rljob_runtime.checkpoint import MODEL_FOLDER, OPTIMIZER_FILE
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.stats import Traffic
from rljob_runtime.engines.base import Sampling, UpdateSetup
from rljob_runtime.engines.rollout import DTYPES, make_rollout
from rljob_runtime.engines.update import AnyUpdateEngine, make_update
from rljob_runtime.models.base import PolicyModel
from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.tokenizer import Tokenizer, load_tokenizer, make_stopped
from rljob_runtime.models.weights import load_weights_into, save_hf
from rljob_runtime.states.generate import Generate
from rljob_runtime.states.partial_rollout import PartialRollout
from rljob_runtime.states.reference import Reference
from rljob_runtime.states.update import Update
from rljob_runtime.states.weight_sync import WeightSync

if TYPE_CHECKING:
    from rljob_runtime.actors.device import Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStates:
    """The states that a seat has; None where it has not."""

    spec: RLJobSpec
    source: Path
    policy: PolicyModel | None
    engine: AnyUpdateEngine | None
    generate: Generate | None
    partial_rollout: PartialRollout | None
    reference: Reference | None
    update: Update | None
    weight_sync: WeightSync
    tokenizer: Tokenizer

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
        """Write the model's directory and the optimizer's state."""
        assert self.policy is not None and self.engine is not None, "only update ranks save"
        save_hf(self.policy.named_hf_parameters(), source=self.source, folder=folder / MODEL_FOLDER)
        torch.save(self.engine.state_dict(), folder / OPTIMIZER_FILE)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        if self.policy is None or self.engine is None:
            return
        load_weights_into(self.policy, folder / MODEL_FOLDER)
        self.engine.load_state_dict(torch.load(folder / OPTIMIZER_FILE, weights_only=True))

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
    meet: Callable[[], ProcessGroup | None],
) -> DeviceStates:
    """Load what the seat needs. meet: joins the other devices that train; their group comes back.

    The rollout engine is made first: vLLM makes, and destroys, a process group of its own.
    """
    tokenizer = load_tokenizer(model)
    rollout = None
    if seat.generates:
        rollout = make_rollout(spec, model=model, ledger=backend.ledger)
    group = meet()

    def client(state: str) -> DockClient:
        return DockClient(dock, state=state, owner=f"device-{seat.rank}")

    policy = load_policy(model, dtype=torch.float32)
    engine = update = None
    if seat.update_rank is not None:
        engine = _update_engine(spec, policy, model=model, backend=backend, group=group)
        update = Update(
            engine=engine,
            dock=client("update"),
            share=(seat.update_rank, seat.num_updating),
            spec=spec,
            group=group,
        )
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
        reference=_reference(spec, seat, model=model, backend=backend, client=client),
        update=update,
        weight_sync=WeightSync(
            policy=policy,
            rollout=rollout,
            dtype=DTYPES[spec.rollout.dtype],
            vocab_size=tokenizer.vocab_size,
            max_length=spec.batch.max_prompt_length + spec.batch.max_response_length,
        ),
        tokenizer=tokenizer,
    )


def _update_engine(
    spec: RLJobSpec,
    policy: PolicyModel,
    *,
    model: Path,
    backend: Backend,
    group: ProcessGroup | None,
) -> AnyUpdateEngine:
    batch = spec.batch
    assert batch.mini_batch_size is not None, "the resolved spec names miniBatchSize"
    per_step = batch.global_batch_size // batch.mini_batch_size * batch.epochs
    return make_update(
        UpdateSetup(
            spec=spec,
            model=model,
            policy=policy,
            total_steps=spec.steps * per_step,
            group=group,
            ledger=backend.ledger,
        )
    )


def _reference(
    spec: RLJobSpec,
    seat: "Seat",
    *,
    model: Path,
    backend: Backend,
    client: Callable[[str], DockClient],
) -> Reference | None:
    if spec.algorithm.params.kl_coefficient == 0 or seat.update_rank is None:
        return None
    frozen = load_policy(model, dtype=torch.float32)
    weights = [tensor.requires_grad_(False) for _, tensor in frozen.named_hf_parameters()]
    backend.ledger.track(MemoryKind.REFERENCE_WEIGHTS, weights)
    return Reference(
        model=frozen,
        dock=client("reference"),
        share=(seat.update_rank, seat.num_updating),
        temperature=spec.rollout.temperature,
        sizes=spec.batch,
        pass_groups=spec.batch.micro_batch_size or 1,
        timeout_seconds=spec.flow.stage_timeout_seconds,
    )


def join(
    backend: Backend, seat: "Seat", meeting_point: str | None, deadline_seconds: float
) -> ProcessGroup | None:
    """Meet the other devices that train; returns their group, None for one rank or other seats."""
    if seat.update_rank is None or seat.num_updating == 1:
        return None
    dist.init_process_group(
        backend.collectives,
        init_method=meeting_point,
        rank=seat.update_rank,
        world_size=seat.num_updating,
        timeout=timedelta(seconds=deadline_seconds),
        pg_options=backend.group_options(),
    )
    return dist.group.WORLD
