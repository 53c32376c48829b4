"""A device's states, made once from the job's spec and the device's role."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from rljob_api.check.environment_rules import environments
from rljob_api.spec.critic import Critic
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.spec.teacher import Teacher
from rljob_api.topology.devices import updates_in_flight
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.devices.backend import Backend
from rljob_runtime.devices.host_swap import HostSwap, OffloadedTensors
from rljob_runtime.devices.members import DefaultGroupMembers
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
from rljob_runtime.models.config import read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import scorer_config
from rljob_runtime.models.loading import read_scorer
from rljob_runtime.models.lora import WithoutAdapters
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.parallel.fully_sharded import held_rows
from rljob_runtime.record.kept_logprobs import LogprobCache
from rljob_runtime.rollout.agents.agent_turns import AgentDesk
from rljob_runtime.rollout.agents.session import SessionLimits
from rljob_runtime.rollout.partners import Nobody
from rljob_runtime.rollout.rollout_engine import (
    GameSettings,
    RolloutEngine,
    SleepingEngine,
    SlicedEngine,
    SwitchingEngine,
    TakingEngine,
    ToolSettings,
)
from rljob_runtime.rollout.rollout_table import DTYPES, make_rollout
from rljob_runtime.rollout.sync_probe import Probing, probe_sequences
from rljob_runtime.samples.flow import MODEL_SCORE, route_bytes
from rljob_runtime.task.agents.chat_request import Message, answer_message
from rljob_runtime.task.environments.conversation import Conversation
from rljob_runtime.task.environments.game_pool import GamePool
from rljob_runtime.task.tokenizer import Tokenizer, cut_at_stop, load_tokenizer
from rljob_runtime.task.tools.call_format import CallFormat
from rljob_runtime.task.tools.tool_pool import ToolPool
from rljob_runtime.update.update_engine import UpdateSetup
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import AnyUpdateEngine, make_torch, make_update
from rljob_runtime.weights.arrivals import Arrival, SlicesArrive, TensorsArrive
from rljob_runtime.weights.held_policy import HeldPolicy, load_held
from rljob_runtime.weights.port import Port
from rljob_runtime.weights.reshard_state import Reshard
from rljob_runtime.weights.resharding import is_planned, make_reshard, rollout_weights, swaps
from rljob_runtime.weights.rollout_weights import RolloutRoom
from rljob_runtime.weights.weight_sync import WeightSync, synced_dtype
from rljob_runtime.worker.compare import Compare
from rljob_runtime.worker.device_ranks import DeviceRanks
from rljob_runtime.worker.device_role import DeviceRole
from rljob_runtime.worker.device_states import DeviceStates
from rljob_runtime.worker.generate import Generate
from rljob_runtime.worker.in_flight import InFlight, Probe
from rljob_runtime.worker.inference import Adapted, Inference, with_end
from rljob_runtime.worker.partial_rollout import PartialRollout
from rljob_runtime.worker.rollout_replica import RolloutReplica
from rljob_runtime.worker.shown import Shown
from rljob_runtime.worker.trained_model import TrainedModel
from rljob_runtime.worker.training_objective import critic_objective
from rljob_runtime.worker.update import Update

if TYPE_CHECKING:
    from rljob_runtime.task.pictures.picture_columns import PictureReader


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceContext:
    """What a role's states are made in. models: directories by name: policy, and those that `model_paths`
    names beside. kept: folder of the reference's log-probs, None where they are computed anew. engine: a
    rollout engine that has outlived the states that it was made for. base_dir: folder of the job's file.
    text_ids: number of ids that the policy's tokenizer has a text for."""

    spec: ResolvedSpec
    role: DeviceRole
    models: Mapping[str, Path]
    dock: Callable[[], DockAddress]
    backend: Backend
    kept: Path | None = None
    engine: RolloutEngine | None = None
    base_dir: Path = Path()
    text_ids: int | None = None

    def client(self, state: str) -> DockClient:
        """The state's."""
        return DockClient(self.dock, state=state, owner=f"device-{self.role.rank}")


def make_states(context: DeviceContext, *, meet: Callable[[], DeviceRanks]) -> DeviceStates:
    """Load what the role needs. meet: joins the other devices of the role's world.

    A rollout engine that has a device to itself is made before: vLLM makes, and destroys, a process group
    of its own.
    """
    spec, model, backend = context.spec, context.models["policy"], context.backend
    tokenizer = load_tokenizer(model)
    context = replace(context, text_ids=tokenizer.vocab_size)
    shown = Shown.of(spec, model=model, tokenizer=tokenizer, backend=backend)
    met = meet() if spec.rollout.parallelism.shared else None
    rollout = context.engine
    if rollout is None and context.role.generates and "generate" in spec.states:
        groups = met.rollout if met else None
        rollout = make_rollout(
            spec,
            model=model,
            ledger=backend.ledger,
            groups=groups,
            beside=context.models,
            device=backend.device,
            towers=shown.generating,
            text_ids=context.text_ids,
        )
    room = rollout_weights(rollout, spec, model=model, backend=backend)
    met = met or meet()
    held = _held(context, met, rollout)
    trained = None
    if context.role.update_rank is not None and held is not None:
        trained = _trained(context, held, met, shown)
    port = _port(context, held, rollout, room, tokenizer.vocab_size)
    if trained is not None:
        trained.update.ready = port.ready_to_train
        if spec.update.lora is not None and "reference" in trained.inference:
            trained.inference["reference"].ready = port.ready_to_train
    replica = RolloutReplica(engine=rollout, groups=met.rollout) if rollout else None
    generate = _generate(context, replica, shown.reader) if replica else None
    return DeviceStates(
        spec=spec,
        policy=trained.policy if trained else None,
        critic=trained.critic if trained else None,
        generate=generate,
        partial_rollout=_partial_rollout(generate, spec, model),
        inference=trained.inference if trained else {},
        compare=trained.compare if trained else None,
        update=trained.update if trained else None,
        teach_critic=trained.update.critic if trained else None,
        port=port,
        in_flight=_in_flight(context, replica, port, vocab_size=tokenizer.vocab_size),
        tokenizer=tokenizer,
        tools=_tools(spec, tokenizer, asks=replica.leads) if replica else None,
        games=_games(spec, tokenizer, asks=replica.leads) if replica else None,
        agents=_agents(spec, tokenizer, context.base_dir) if replica else None,
    )


def _port(
    context: DeviceContext,
    held: HeldPolicy | None,
    rollout: RolloutEngine | None,
    room: RolloutRoom | None,
    vocab_size: int,
) -> Port:
    """Colocated devices that have a plan meet for it here."""
    spec, trains = context.spec, context.role.update_rank is not None
    if is_planned(spec, context.models["policy"]):
        engine = rollout if isinstance(rollout, SlicedEngine | TakingEngine) else None
        model, backend = context.models["policy"], context.backend
        own = held if trains else None
        reshard = make_reshard(spec, model, own, engine, room, backend=backend, text_ids=vocab_size)
        if spec.placement.mode == "colocated":
            reshard.meet(DefaultGroupMembers())
        return reshard
    return WeightSync(
        policy=held,
        rollout=rollout,
        dtype=DTYPES[spec.rollout.dtype],
        synced=synced_dtype(spec),
        vocab_size=vocab_size,
        max_length=_longest(spec),
        rests=trains and isinstance(rollout, SleepingEngine) and rollout.sleeps,
        int8=spec.rollout.quantization == "int8",
    )


def _held(
    context: DeviceContext, met: DeviceRanks, rollout: RolloutEngine | None
) -> HeldPolicy | None:
    """The policy in the update layout, to train it or to probe the rollout engine."""
    spec, trains = context.spec, context.role.update_rank is not None
    planned = is_planned(spec, context.models["policy"])
    if not trains and (planned or not isinstance(rollout, Probing)):
        return None
    dtype = DTYPES[spec.update.dtype] if trains else synced_dtype(spec)
    lora = spec.update.lora if trains else None
    held = load_held(
        context.models["policy"],
        met.update,
        dtype=dtype,
        lora=lora,
        seed=spec.seed,
        device=context.backend.device,
    )
    held.model.text_ids = context.text_ids
    return held


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trained:
    """What a device that trains has."""

    policy: TrainedModel
    critic: TrainedModel | None
    update: Update
    compare: Compare | None
    inference: dict[str, Inference]


def _trained(context: DeviceContext, held: HeldPolicy, met: DeviceRanks, shown: Shown) -> _Trained:
    spec, ranks = context.spec, met.update
    shown.to(held.model, policy=True)
    engine = _engine(context, spec, held, ranks, make_update)
    control = KlControl.of(spec.algorithm.params)
    policy = TrainedModel(
        held=held, engine=engine, ranks=ranks, source=context.models["policy"], control=control
    )
    update = Update(
        engine=engine,
        dock=context.client("update"),
        ranks=ranks,
        spec=spec,
        control=control,
        pictures=shown.reader,
    )
    compare = None
    if "compare" in spec.states:
        compare = Compare(engine=engine, dock=context.client("compare"), ranks=ranks, spec=spec)
    critic, judged = None, shown
    if spec.critic is not None:
        critic = _critic(context, met)
        judged = _shown_to(context, "critic", shown, spec.critic)
        judged.to(critic.held.model)
        update.critic = _teach_critic(context, critic, control, judged)
    inference = make_inference(context, met, held, critic, shown, judged)
    return _Trained(
        policy=policy, critic=critic, update=update, compare=compare, inference=inference
    )


def _generate(
    context: DeviceContext, replica: RolloutReplica, pictures: "PictureReader | None"
) -> Generate:
    spec = context.spec
    return Generate(
        replica=replica,
        dock=context.client("generate"),
        run_seed=spec.seed,
        prompts=spec.batch.global_batch_size,
        timeout_seconds=spec.flow.stage_timeout_seconds,
        masked=spec.has_turns,
        outcomes=spec.has_outcomes,
        routed=spec.update.router_replay,
        pictures=pictures,
    )


def _tools(spec: RLJobSpec, tokenizer: Tokenizer, *, asks: bool) -> ToolSettings | None:
    """asks: whether the device asks for its replica."""
    if not spec.rollout.tools:
        return None
    return ToolSettings(
        form=CallFormat(tokenizer, spec.rollout.tools),
        pool=ToolPool(spec.rollout.tools) if asks else Nobody(),
        most_turns=spec.most_turns,
    )


def _games(spec: RLJobSpec, tokenizer: Tokenizer, *, asks: bool) -> GameSettings | None:
    """As `_tools`."""
    played = [environment for _, environment in environments(spec)]
    if not played:
        return None
    return GameSettings(
        form=Conversation(tokenizer, chat=spec.data.chat),
        pool=GamePool(played) if asks else Nobody(),
        most_turns=spec.most_turns,
    )


def _agents(spec: RLJobSpec, tokenizer: Tokenizer, base_dir: Path) -> AgentDesk | None:
    agent, stop = spec.rollout.agent, spec.data.stop
    if agent is None:
        return None

    def say(ids: list[int], number: int, tools: bool) -> Message:
        text = tokenizer.decode(ids)
        return answer_message(text, cut_at_stop(text, stop), number=number, tools=tools)

    limits = SessionLimits(
        most_turns=spec.most_turns,
        most_tokens=spec.batch.max_response_length,
        scored=any(reward.type == "agent" for reward in spec.rewards),
        say=say,
    )
    return AgentDesk(agent, base_dir=base_dir, tokenizer=tokenizer, limits=limits)


def _in_flight(
    context: DeviceContext, replica: RolloutReplica | None, port: Port, *, vocab_size: int
) -> InFlight | None:
    spec = context.spec
    engine = replica.engine if replica is not None else None
    if replica is None or not updates_in_flight(spec) or not isinstance(engine, SwitchingEngine):
        return None
    rounded, dtype = spec.rollout.quantization != "none", DTYPES[spec.rollout.dtype]
    room = context.backend.host_buffer
    arrival: Arrival
    if isinstance(port, Reshard):
        arrival, sequences = SlicesArrive(port, room), port.sequences
    else:
        arrival = TensorsArrive(engine, dtype=dtype, host_buffer=room)
        sequences = probe_sequences(vocab_size, _longest(spec))
    probe = None if rounded else Probe(sequences=sequences, dtype=synced_dtype(spec))
    return InFlight(engine, replica, arrival=arrival, probe=probe)


def _longest(spec: RLJobSpec) -> int:
    """Tokens of a prompt and its response."""
    return spec.batch.max_prompt_length + spec.batch.max_response_length


def _partial_rollout(
    generate: Generate | None, spec: ResolvedSpec, model: Path
) -> PartialRollout | None:
    if generate is None or spec.flow.partial_rollout is None:
        return None
    return PartialRollout(
        replica=generate.replica,
        dock=generate.dock,
        spec=spec,
        route_bytes=route_bytes(spec, model),
        pictures=generate.pictures,
    )


def _engine(
    context: DeviceContext,
    spec: ResolvedSpec,
    held: HeldPolicy,
    ranks: UpdateRanks,
    make: Callable[[UpdateSetup], AnyUpdateEngine],
) -> AnyUpdateEngine:
    batch = spec.batch
    per_step = batch.global_batch_size // batch.mini_batch_size * batch.epochs
    return make(
        UpdateSetup(
            spec=spec,
            model=context.models["policy"],
            policy=held.model,
            purposes=held.purposes,
            total_steps=spec.steps * per_step,
            ranks=ranks,
            ledger=context.backend.ledger,
            swap=HostSwap(context.backend) if spec.update.offload == "optimizer" else None,
        )
    )


def _critic(context: DeviceContext, met: DeviceRanks) -> TrainedModel:
    spec, source = context.spec.of_critic(), context.models["critic"]
    dtype, device = DTYPES[spec.update.dtype], context.backend.device
    held = load_held(source, met.critic, dtype=dtype, scores=True, device=device)
    # before its engine does: they stay where they are while the policy's move
    weights = [held_rows(weight) for _, weight in held.model.trained_parameters()]
    context.backend.ledger.track(MemoryKind.CRITIC_WEIGHTS, weights)
    return TrainedModel(
        held=held,
        engine=_engine(context, spec, held, met.critic, make_torch),
        ranks=met.critic,
        source=source,
        config=scorer_config(read_config(source), read_scorer(source)),
    )


def _shown_to(context: DeviceContext, name: str, shown: Shown, model: Critic | Teacher) -> Shown:
    """A model beside the policy. shown: to the policy, whose towers it has where it is the same one."""
    path = context.models[name]
    if shown.reader is None or path == context.models["policy"]:
        return replace(shown, dtype=DTYPES[model.dtype])
    return Shown.of(
        context.spec,
        model=path,
        tokenizer=load_tokenizer(path),
        backend=context.backend,
        beside=model,
    )


def _teach_critic(
    context: DeviceContext, critic: TrainedModel, control: KlControl, shown: Shown
) -> Update:
    return Update(
        engine=critic.engine,
        dock=context.client("critic"),
        ranks=critic.ranks,
        spec=context.spec.of_critic(),
        control=control,
        teaches=critic_objective,
        pictures=shown.reader,
    )


def make_inference(
    context: DeviceContext,
    met: DeviceRanks,
    held: HeldPolicy,
    critic: TrainedModel | None,
    shown: Shown,
    judged: Shown,
) -> dict[str, Inference]:
    """The states that score samples by a model, by name; those that the job has. held: the policy. judged: to
    the critic."""
    spec, states = context.spec, context.spec.states
    made: dict[str, Inference] = {}

    def add(
        name: str,
        column: str,
        model: PolicyModel,
        ranks: UpdateRanks,
        *,
        temperature: float = 1.0,
        adapt: Adapted | None = None,
        resting: OffloadedTensors | None = None,
        shown: Shown = shown,
    ) -> None:
        made[name] = Inference(
            model=model,
            column=column,
            dock=context.client(name),
            ranks=ranks,
            temperature=temperature,
            adapt=adapt,
            masked=adapt is None and spec.has_turns,
            ledger=context.backend.ledger,
            resting=resting,
            sizes=spec.batch,
            evaluation=spec.evaluation,
            pass_groups=spec.batch.micro_batch_size,
            timeout_seconds=spec.flow.stage_timeout_seconds,
            pictures=shown.reader,
        )

    if "reference" in states and isinstance(held.model, Decoder) and held.lora is not None:
        temperature, base = spec.rollout.temperature, WithoutAdapters(held.model)
        add("reference", "reference_logprobs", base, met.update, temperature=temperature)
    elif "reference" in states:
        frozen, weights = _frozen(context, "policy", met.update, dtype=spec.update.dtype)
        shown.to(frozen)
        resting = None
        if swaps(spec, context.models["policy"]):
            resting = HostSwap(context.backend).out(weights)
            resting.release()
        temperature = spec.rollout.temperature
        add(
            "reference",
            "reference_logprobs",
            frozen,
            met.update,
            temperature=temperature,
            resting=resting,
        )
    if context.kept is not None:
        made["reference"].kept = LogprobCache(folder=context.kept)
    if spec.teacher is not None:
        frozen, _ = _frozen(context, "teacher", met.teacher, dtype=spec.teacher.dtype)
        own = _shown_to(context, "teacher", shown, spec.teacher)
        own.to(frozen)
        temperature = spec.rollout.temperature
        add("teacher", "teacher_logprobs", frozen, met.teacher, temperature=temperature, shown=own)
    if critic is not None:
        add("values", "values", critic.held.model, critic.ranks, shown=judged)
    if (scorer := spec.reward_model) is not None:
        ranks, path = met.reward_model, context.models["reward-model"]
        model, _ = _frozen(context, "reward-model", ranks, dtype=scorer.dtype, scores=True)
        padding = read_config(path).get("pad_token_id")
        adapt = with_end(padding if isinstance(padding, int) else None)
        add("reward-model", MODEL_SCORE, model, ranks, adapt=adapt)
    return made


def _frozen(
    context: DeviceContext, name: str, ranks: UpdateRanks, *, dtype: str, scores: bool = False
) -> tuple[PolicyModel, list[Tensor]]:
    """A model that is never trained, and its weights."""
    path, device = context.models[name], context.backend.device
    model = load_held(path, ranks, dtype=DTYPES[dtype], scores=scores, device=device).model
    model.text_ids = context.text_ids
    weights = [held_rows(w.requires_grad_(False)) for _, w in model.trained_parameters()]
    context.backend.ledger.track(MemoryKind.REFERENCE_WEIGHTS, weights)
    return model, weights
