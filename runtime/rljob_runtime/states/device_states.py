"""The states of one device: made once from the spec and the device's seat, then called in turn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from rljob_api.rljob import RLJobSpec
from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.backends.base import Backend
from rljob_runtime.backends.host_swap import HostSwap, SwappedOut
from rljob_runtime.backends.ledger import MemoryKind
from rljob_runtime.batches import BatchName
from rljob_runtime.checkpoint import CRITIC_FOLDER
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.stats import Traffic
from rljob_runtime.engines.base import Sampling, SwitchingEngine, UpdateSetup
from rljob_runtime.engines.probe import Probing
from rljob_runtime.engines.rollout import DTYPES, make_rollout
from rljob_runtime.engines.rollout_torch import TorchRollout
from rljob_runtime.engines.update import AnyUpdateEngine, make_torch, make_update
from rljob_runtime.engines.update_ranks import UpdateRanks
from rljob_runtime.flow import MODEL_SCORE, updates_in_flight
from rljob_runtime.models.base import PolicyModel
from rljob_runtime.models.config import read_config
from rljob_runtime.models.families import scorer_config
from rljob_runtime.models.loading import read_scorer
from rljob_runtime.models.tokenizer import Tokenizer, load_tokenizer, make_stopped
from rljob_runtime.parallel.fully_sharded import held_rows
from rljob_runtime.parallelize.parameters import as_they_are
from rljob_runtime.states.compare import Compare
from rljob_runtime.states.device_ranks import DeviceRanks
from rljob_runtime.states.generate import Generate
from rljob_runtime.states.held_policy import HeldPolicy, load_held
from rljob_runtime.states.in_flight import InFlight
from rljob_runtime.states.inference import Adapted, Inference, with_end
from rljob_runtime.states.lessons import critic_lesson
from rljob_runtime.states.partial_rollout import PartialRollout
from rljob_runtime.states.reports import SyncReport
from rljob_runtime.states.reshard import Reshard
from rljob_runtime.states.resharding import make_reshard, rollout_weights, swaps
from rljob_runtime.states.rollout_replica import RolloutReplica
from rljob_runtime.states.trained_model import TrainedModel
from rljob_runtime.states.update import Update
from rljob_runtime.states.weight_sync import WeightSync, synced_dtype

if TYPE_CHECKING:
    from rljob_runtime.actors.device import Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStates:
    """The states that a seat has; None where it has not. inference: by the state's name. policy, critic: what
    is trained here. reshard: instead of the weight sync, where a plan brings weights from one layout to the
    other. in_flight: beside the weight sync, on devices that may generate while weights come."""

    spec: RLJobSpec
    policy: TrainedModel | None
    critic: TrainedModel | None
    generate: Generate | None
    partial_rollout: PartialRollout | None
    inference: dict[str, Inference]
    compare: Compare | None
    update: Update | None
    teach_critic: Update | None
    weight_sync: WeightSync
    in_flight: InFlight | None
    reshard: Reshard | None
    tokenizer: Tokenizer

    def sampling(self, batch: BatchName) -> Sampling:
        """How responses are drawn: the rollout's way in training, its set's to held-out prompts."""
        rollout, evaluation = self.spec.rollout, self.spec.evaluation
        held_out, temperature = batch.kind == "eval", rollout.temperature
        if held_out:
            assert evaluation is not None, "an evaluation without spec.evaluation"
            temperature = evaluation.set_of(batch.suite).temperature
        return Sampling(
            temperature=temperature or 1.0,
            greedy=temperature == 0,
            top_p=1.0 if held_out else rollout.top_p,
            top_k=0 if held_out else rollout.top_k,
            max_response_length=self.spec.batch.max_response_length,
            eos_ids=self.tokenizer.eos_ids,
            stopped=self._stopped(),
        )

    def sync(self, version: int) -> SyncReport:
        """Give the rollout layout the update layout's weights."""
        return (self.reshard or self.weight_sync).run(version)

    def end_generation(self) -> None:
        """The device generates no more before the next `sync`."""
        if self.reshard is not None:
            self.reshard.end_generation()

    def traffic(self) -> dict[str, Traffic]:
        """What each state moved through the dock since the last call."""
        states: dict[str, Generate | Inference | Compare | Update | None] = {
            "generate": self.generate,
            **self.inference,
            "compare": self.compare,
            "update": self.update,
            "critic": self.teach_critic,
        }
        return {name: state.dock.take_traffic() for name, state in states.items() if state}

    def save(self, folder: Path) -> None:
        """Write the models' directories and the optimizers' states, the critic's in a folder of its own.

        All update ranks call it together.
        """
        assert self.policy is not None, "only update ranks save"
        self.policy.save(folder, at=self.reshard.values if self.reshard else as_they_are)
        if self.critic is not None:
            self.critic.save(folder / CRITIC_FOLDER)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; a `sync` follows before anything is generated."""
        if self.reshard is not None:
            self.reshard.ready_to_train()
        if self.policy is not None:
            self.policy.load(folder)
        if self.critic is not None:
            self.critic.load(folder / CRITIC_FOLDER)

    def _stopped(self) -> Callable[[list[int]], bool] | None:
        stop = self.spec.data.stop
        return make_stopped(self.tokenizer, stop) if stop else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a seat's states are made in. models: directories by name: policy, and those that `model_paths`
    names beside."""

    spec: RLJobSpec
    seat: "Seat"
    models: Mapping[str, Path]
    dock: Callable[[], DockAddress]
    backend: Backend

    def client(self, state: str) -> DockClient:
        """The state's."""
        return DockClient(self.dock, state=state, owner=f"device-{self.seat.rank}")


def make_states(around: Surroundings, *, meet: Callable[[], DeviceRanks]) -> DeviceStates:
    """Load what the seat needs. meet: joins the other devices of the seat's world.

    A rollout engine that has a device to itself is made before: vLLM makes, and destroys, a process group
    of its own.
    """
    spec, seat, model, backend = around.spec, around.seat, around.models["policy"], around.backend
    tokenizer = load_tokenizer(model)
    met = meet() if spec.rollout.parallelism.shared else None
    rollout = None
    generates = seat.generates and "generate" in spec.states
    if generates:
        groups = met.rollout if met else None
        rollout = make_rollout(
            spec, model=model, ledger=backend.ledger, groups=groups, beside=around.models
        )
    slices = rollout_weights(rollout, spec, backend)
    met = met or meet()
    held = trained = update = critic = None
    trains = seat.update_rank is not None
    if trains or isinstance(rollout, Probing):
        dtype = DTYPES[spec.update.dtype] if trains else synced_dtype(spec)
        held = load_held(model, met.update, dtype=dtype)
    inference: dict[str, Inference] = {}
    compare = None
    if trains and held is not None:
        engine = _engine(around, spec, held, met.update, make_update)
        control = KlControl.of(spec.algorithm.params)
        trained = TrainedModel(
            held=held, engine=engine, ranks=met.update, source=model, control=control
        )
        update = Update(
            engine=engine,
            dock=around.client("update"),
            ranks=met.update,
            spec=spec,
            control=control,
        )
        if "compare" in spec.states:
            dock = around.client("compare")
            compare = Compare(engine=engine, dock=dock, ranks=met.update, spec=spec)
        critic = _critic(around, met) if spec.has_critic else None
        inference = make_inference(around, met, critic)
    reshard = None
    if isinstance(rollout, TorchRollout) and slices is not None and held is not None:
        reshard = make_reshard(spec, model, rollout, slices, held, backend=backend)
        if update is not None:
            update.ready = reshard.ready_to_train
    if update is not None and critic is not None:
        update.critic = _teach_critic(around, critic, update.control)
    generate = partial_rollout = in_flight = None
    if rollout is not None:
        replica = RolloutReplica(engine=rollout, groups=met.rollout)
        generate = Generate(
            replica=replica,
            dock=around.client("generate"),
            run_seed=spec.seed,
            prompts=spec.batch.global_batch_size,
            timeout_seconds=spec.flow.stage_timeout_seconds,
        )
        if updates_in_flight(spec) and isinstance(rollout, SwitchingEngine):
            dtype, alone = DTYPES[spec.rollout.dtype], met.rollout is None
            in_flight = InFlight(rollout, dtype=dtype, alone=alone)
        if spec.flow.partial_rollout is not None:
            partial_rollout = PartialRollout(replica=replica, dock=generate.dock, spec=spec)
    return DeviceStates(
        spec=spec,
        policy=trained,
        critic=critic,
        generate=generate,
        partial_rollout=partial_rollout,
        inference=inference,
        compare=compare,
        update=update,
        teach_critic=update.critic if update else None,
        weight_sync=WeightSync(
            policy=held,
            rollout=rollout,
            dtype=DTYPES[spec.rollout.dtype],
            synced=synced_dtype(spec),
            vocab_size=tokenizer.vocab_size,
            max_length=spec.batch.max_prompt_length + spec.batch.max_response_length,
        ),
        in_flight=in_flight,
        reshard=reshard,
        tokenizer=tokenizer,
    )


def _engine(
    around: Surroundings,
    spec: RLJobSpec,
    held: HeldPolicy,
    ranks: UpdateRanks,
    make: Callable[[UpdateSetup], AnyUpdateEngine],
) -> AnyUpdateEngine:
    batch = spec.batch
    assert batch.mini_batch_size is not None, "the resolved spec names miniBatchSize"
    per_step = batch.global_batch_size // batch.mini_batch_size * batch.epochs
    return make(
        UpdateSetup(
            spec=spec,
            model=around.models["policy"],
            policy=held.model,
            purposes=held.purposes,
            total_steps=spec.steps * per_step,
            ranks=ranks,
            ledger=around.backend.ledger,
            swap=HostSwap(around.backend) if spec.update.offload == "optimizer" else None,
        )
    )


def _critic(around: Surroundings, met: DeviceRanks) -> TrainedModel:
    spec, source = around.spec.of_critic(), around.models["critic"]
    held = load_held(source, met.critic, dtype=DTYPES[spec.update.dtype], scores=True)
    return TrainedModel(
        held=held,
        engine=_engine(around, spec, held, met.critic, make_torch),
        ranks=met.critic,
        source=source,
        config=scorer_config(read_config(source), read_scorer(source)),
    )


def _teach_critic(around: Surroundings, critic: TrainedModel, control: KlControl) -> Update:
    return Update(
        engine=critic.engine,
        dock=around.client("critic"),
        ranks=critic.ranks,
        spec=around.spec.of_critic(),
        control=control,
        teaches=critic_lesson,
    )


def make_inference(
    around: Surroundings, met: DeviceRanks, critic: TrainedModel | None
) -> dict[str, Inference]:
    """The states that score samples by a model, by name; those that the job has."""
    spec, states = around.spec, around.spec.states
    made: dict[str, Inference] = {}

    def add(
        name: str,
        column: str,
        model: PolicyModel,
        ranks: UpdateRanks,
        *,
        heat: float = 1.0,
        adapt: Adapted | None = None,
        resting: SwappedOut | None = None,
    ) -> None:
        made[name] = Inference(
            model=model,
            column=column,
            dock=around.client(name),
            ranks=ranks,
            temperature=heat,
            adapt=adapt,
            ledger=around.backend.ledger,
            resting=resting,
            sizes=spec.batch,
            evaluation=spec.evaluation,
            pass_groups=spec.batch.micro_batch_size or 1,
            timeout_seconds=spec.flow.stage_timeout_seconds,
        )

    if "reference" in states:
        frozen, weights = _frozen(around, "policy", met.update, dtype=spec.update.dtype)
        resting = None
        if swaps(spec, around.models["policy"]):
            resting = HostSwap(around.backend).out(weights)
            resting.release()
        heat = spec.rollout.temperature
        add("reference", "reference_logprobs", frozen, met.update, heat=heat, resting=resting)
    if spec.teacher is not None:
        frozen, _ = _frozen(around, "teacher", met.teacher, dtype=spec.teacher.dtype)
        heat = spec.rollout.temperature
        add("teacher", "teacher_logprobs", frozen, met.teacher, heat=heat)
    if critic is not None:
        add("values", "values", critic.held.model, critic.ranks)
    if (scorer := spec.reward_model) is not None:
        ranks, path = met.reward_model, around.models["reward-model"]
        model, _ = _frozen(around, "reward-model", ranks, dtype=scorer.dtype, scores=True)
        padding = read_config(path).get("pad_token_id")
        adapt = with_end(padding if isinstance(padding, int) else None)
        add("reward-model", MODEL_SCORE, model, ranks, adapt=adapt)
    return made


def _frozen(
    around: Surroundings, name: str, ranks: UpdateRanks, *, dtype: str, scores: bool = False
) -> tuple[PolicyModel, list[Tensor]]:
    """A model that is never trained, and its weights."""
    model = load_held(around.models[name], ranks, dtype=DTYPES[dtype], scores=scores).model
    weights = [held_rows(w.requires_grad_(False)) for _, w in model.trained_parameters()]
    around.backend.ledger.track(MemoryKind.REFERENCE_WEIGHTS, weights)
    return model, weights
