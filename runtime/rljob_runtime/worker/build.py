"""Creates a device's states, once, from the job's spec and the device's role."""

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
from rljob_runtime.parallel.fully_sharded import local_rows
from rljob_runtime.record.kept_logprobs import LogprobCache
from rljob_runtime.rollout.agents.agent_turns import AgentDesk
from rljob_runtime.rollout.agents.session import SessionLimits
from rljob_runtime.rollout.partners import SilentRunner
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
from rljob_runtime.weights.arrivals import Arrival, SliceArrival, TensorArrival
from rljob_runtime.weights.held_policy import LocalPolicy, load_local_policy
from rljob_runtime.weights.port import Port
from rljob_runtime.weights.reshard_state import Reshard
from rljob_runtime.weights.resharding import is_planned, make_reshard, rollout_weights, swaps
from rljob_runtime.weights.rollout_weights import RolloutBuffers
from rljob_runtime.weights.weight_sync import WeightSync, synced_dtype
from rljob_runtime.worker.compare import CompareState
from rljob_runtime.worker.device_ranks import DeviceRanks
from rljob_runtime.worker.device_role import DeviceRole
from rljob_runtime.worker.device_states import DeviceStates
from rljob_runtime.worker.generate import GenerateState
from rljob_runtime.worker.in_flight import InFlight, Probe
from rljob_runtime.worker.inference import AdaptSamples, InferenceState, with_end
from rljob_runtime.worker.partial_rollout import PartialRolloutState
from rljob_runtime.worker.rollout_replica import RolloutReplica
from rljob_runtime.worker.shown import VisionSetup
from rljob_runtime.worker.trained_model import TrainedModel
from rljob_runtime.worker.training_objective import critic_objective
from rljob_runtime.worker.update import UpdateState

if TYPE_CHECKING:
    from rljob_runtime.task.pictures.picture_columns import PictureReader


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceContext:
    """The inputs that a role's states are created from.

    models: directories by name: policy, and the others of `model_paths`. logprobs_folder: folder of the
    reference's log-probs, None if they are recomputed. engine: a rollout engine that has outlived the states
    that it was created for. base_dir: folder of the job's file. text_ids: number of ids that the policy's
    tokenizer has a text for.
    """

    spec: ResolvedSpec
    role: DeviceRole
    models: Mapping[str, Path]
    dock: Callable[[], DockAddress]
    backend: Backend
    logprobs_folder: Path | None = None
    engine: RolloutEngine | None = None
    base_dir: Path = Path()
    text_ids: int | None = None

    def client(self, state: str) -> DockClient:
        """Create a dock client for the state."""
        return DockClient(self.dock, state=state, owner=f"device-{self.role.rank}")


def make_states(context: DeviceContext, *, meet: Callable[[], DeviceRanks]) -> DeviceStates:
    """Load everything that the role needs. meet: joins the other devices of the role's world.

    A rollout engine that has a device to itself is created first, because vLLM creates and destroys its own
    process group.
    """
    spec, model, backend = context.spec, context.models["policy"], context.backend
    tokenizer = load_tokenizer(model)
    context = replace(context, text_ids=tokenizer.vocab_size)
    vision = VisionSetup.of(spec, model=model, tokenizer=tokenizer, backend=backend)
    device_ranks = meet() if spec.rollout.parallelism.shared else None
    rollout = context.engine
    if rollout is None and context.role.generates and "generate" in spec.states:
        groups = device_ranks.rollout if device_ranks else None
        rollout = make_rollout(
            spec,
            model=model,
            ledger=backend.ledger,
            groups=groups,
            other_models=context.models,
            device=backend.device,
            towers=vision.generating,
            text_ids=context.text_ids,
        )
    room = rollout_weights(rollout, spec, model=model, backend=backend)
    device_ranks = device_ranks or meet()
    policy = _load_policy(context, device_ranks, rollout)
    trained = None
    if context.role.update_rank is not None and policy is not None:
        trained = _training_states(context, policy, device_ranks, vision)
    port = _port(context, policy, rollout, room, tokenizer.vocab_size)
    if trained is not None:
        trained.update.ready = port.ready_to_train
        if spec.update.lora is not None and "reference" in trained.inference:
            trained.inference["reference"].ready = port.ready_to_train
    replica = RolloutReplica(engine=rollout, groups=device_ranks.rollout) if rollout else None
    generate = _generate(context, replica, vision.reader) if replica else None
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
        tools=_tools(spec, tokenizer, leads=replica.leads) if replica else None,
        games=_games(spec, tokenizer, leads=replica.leads) if replica else None,
        agents=_agents(spec, tokenizer, context.base_dir) if replica else None,
    )


def _port(
    context: DeviceContext,
    policy: LocalPolicy | None,
    rollout: RolloutEngine | None,
    room: RolloutBuffers | None,
    vocab_size: int,
) -> Port:
    """Create the exchange of weights; colocated devices with a reshard plan join its process world here."""
    spec, trains = context.spec, context.role.update_rank is not None
    if is_planned(spec, context.models["policy"]):
        engine = rollout if isinstance(rollout, SlicedEngine | TakingEngine) else None
        model, backend = context.models["policy"], context.backend
        trained_policy = policy if trains else None
        reshard = make_reshard(
            spec, model, trained_policy, engine, room, backend=backend, text_ids=vocab_size
        )
        if spec.placement.mode == "colocated":
            reshard.plan_among(DefaultGroupMembers())
        return reshard
    return WeightSync(
        policy=policy,
        rollout=rollout,
        dtype=DTYPES[spec.rollout.dtype],
        synced=synced_dtype(spec),
        vocab_size=vocab_size,
        max_length=_longest(spec),
        rests=trains and isinstance(rollout, SleepingEngine) and rollout.sleeps,
        int8=spec.rollout.quantization == "int8",
    )


def _load_policy(
    context: DeviceContext, device_ranks: DeviceRanks, rollout: RolloutEngine | None
) -> LocalPolicy | None:
    """Load the policy in the update layout, to train it or to probe the rollout engine."""
    spec, trains = context.spec, context.role.update_rank is not None
    planned = is_planned(spec, context.models["policy"])
    if not trains and (planned or not isinstance(rollout, Probing)):
        return None
    dtype = DTYPES[spec.update.dtype] if trains else synced_dtype(spec)
    lora = spec.update.lora if trains else None
    policy = load_local_policy(
        context.models["policy"],
        device_ranks.update,
        dtype=dtype,
        lora=lora,
        seed=spec.seed,
        device=context.backend.device,
    )
    policy.model.text_ids = context.text_ids
    return policy


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainingStates:
    """The states of a device that trains."""

    policy: TrainedModel
    critic: TrainedModel | None
    update: UpdateState
    compare: CompareState | None
    inference: dict[str, InferenceState]


def _training_states(
    context: DeviceContext, held_policy: LocalPolicy, device_ranks: DeviceRanks, vision: VisionSetup
) -> _TrainingStates:
    spec, ranks = context.spec, device_ranks.update
    vision.to(held_policy.model, policy=True)
    engine = _engine(context, spec, held_policy, ranks, make_update)
    control = KlControl.of(spec.algorithm.params)
    policy = TrainedModel(
        shard=held_policy,
        engine=engine,
        ranks=ranks,
        source=context.models["policy"],
        control=control,
    )
    update = UpdateState(
        engine=engine,
        dock=context.client("update"),
        ranks=ranks,
        spec=spec,
        control=control,
        pictures=vision.reader,
    )
    compare = None
    if "compare" in spec.states:
        compare = CompareState(
            engine=engine, dock=context.client("compare"), ranks=ranks, spec=spec
        )
    critic, critic_vision = None, vision
    if spec.critic is not None:
        critic = _critic(context, device_ranks)
        critic_vision = _vision_of(context, "critic", vision, spec.critic)
        critic_vision.to(critic.shard.model)
        update.critic = _teach_critic(context, critic, control, critic_vision)
    inference = make_inference(context, device_ranks, held_policy, critic, vision, critic_vision)
    return _TrainingStates(
        policy=policy, critic=critic, update=update, compare=compare, inference=inference
    )


def _generate(
    context: DeviceContext, replica: RolloutReplica, pictures: "PictureReader | None"
) -> GenerateState:
    spec = context.spec
    return GenerateState(
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


def _tools(spec: RLJobSpec, tokenizer: Tokenizer, *, leads: bool) -> ToolSettings | None:
    """Create the tool settings. leads: whether the device calls tools for its replica."""
    if not spec.rollout.tools:
        return None
    return ToolSettings(
        form=CallFormat(tokenizer, spec.rollout.tools),
        pool=ToolPool(spec.rollout.tools) if leads else SilentRunner(),
        most_turns=spec.most_turns,
    )


def _games(spec: RLJobSpec, tokenizer: Tokenizer, *, leads: bool) -> GameSettings | None:
    """Create the game settings. leads: whether the device plays for its replica."""
    played = [environment for _, environment in environments(spec)]
    if not played:
        return None
    return GameSettings(
        form=Conversation(tokenizer, chat=spec.data.chat),
        pool=GamePool(played) if leads else SilentRunner(),
        most_turns=spec.most_turns,
    )


def _agents(spec: RLJobSpec, tokenizer: Tokenizer, base_dir: Path) -> AgentDesk | None:
    agent, stop = spec.rollout.agent, spec.data.stop
    if agent is None:
        return None

    def answer_of(ids: list[int], number: int, tools: bool) -> Message:
        text = tokenizer.decode(ids)
        return answer_message(text, cut_at_stop(text, stop), number=number, tools=tools)

    limits = SessionLimits(
        most_turns=spec.most_turns,
        most_tokens=spec.batch.max_response_length,
        scored=any(reward.type == "agent" for reward in spec.rewards),
        to_message=answer_of,
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
        arrival, sequences = SliceArrival(port, room), port.sequences
    else:
        arrival = TensorArrival(engine, dtype=dtype, host_buffer=room)
        sequences = probe_sequences(vocab_size, _longest(spec))
    probe = None if rounded else Probe(sequences=sequences, dtype=synced_dtype(spec))
    return InFlight(engine, replica, arrival=arrival, probe=probe)


def _longest(spec: RLJobSpec) -> int:
    """Return the maximum tokens of a prompt and its response."""
    return spec.batch.max_prompt_length + spec.batch.max_response_length


def _partial_rollout(
    generate: GenerateState | None, spec: ResolvedSpec, model: Path
) -> PartialRolloutState | None:
    if generate is None or spec.flow.partial_rollout is None:
        return None
    return PartialRolloutState(
        replica=generate.replica,
        dock=generate.dock,
        spec=spec,
        route_bytes=route_bytes(spec, model),
        pictures=generate.pictures,
    )


def _engine(
    context: DeviceContext,
    spec: ResolvedSpec,
    held_policy: LocalPolicy,
    ranks: UpdateRanks,
    make: Callable[[UpdateSetup], AnyUpdateEngine],
) -> AnyUpdateEngine:
    batch = spec.batch
    per_step = batch.global_batch_size // batch.mini_batch_size * batch.epochs
    return make(
        UpdateSetup(
            spec=spec,
            model=context.models["policy"],
            policy=held_policy.model,
            purposes=held_policy.purposes,
            total_steps=spec.steps * per_step,
            ranks=ranks,
            ledger=context.backend.ledger,
            swap=HostSwap(context.backend) if spec.update.offload == "optimizer" else None,
        )
    )


def _critic(context: DeviceContext, device_ranks: DeviceRanks) -> TrainedModel:
    spec, source = context.spec.of_critic(), context.models["critic"]
    dtype, device = DTYPES[spec.update.dtype], context.backend.device
    critic = load_local_policy(source, device_ranks.critic, dtype=dtype, scores=True, device=device)
    # before its engine tracks them: they do not move when the policy's weights do
    weights = [local_rows(weight) for _, weight in critic.model.trained_parameters()]
    context.backend.ledger.track(MemoryKind.CRITIC_WEIGHTS, weights)
    return TrainedModel(
        shard=critic,
        engine=_engine(context, spec, critic, device_ranks.critic, make_torch),
        ranks=device_ranks.critic,
        source=source,
        config=scorer_config(read_config(source), read_scorer(source)),
    )


def _vision_of(
    context: DeviceContext, name: str, vision: VisionSetup, model: Critic | Teacher
) -> VisionSetup:
    """Return the vision setup of another model; it shares the policy's towers if it has the same directory.

    vision: that of the policy.
    """
    path = context.models[name]
    if vision.reader is None or path == context.models["policy"]:
        return replace(vision, dtype=DTYPES[model.dtype])
    return VisionSetup.of(
        context.spec,
        model=path,
        tokenizer=load_tokenizer(path),
        backend=context.backend,
        other=model,
    )


def _teach_critic(
    context: DeviceContext, critic: TrainedModel, control: KlControl, vision: VisionSetup
) -> UpdateState:
    return UpdateState(
        engine=critic.engine,
        dock=context.client("critic"),
        ranks=critic.ranks,
        spec=context.spec.of_critic(),
        control=control,
        teaches=critic_objective,
        pictures=vision.reader,
    )


def make_inference(
    context: DeviceContext,
    device_ranks: DeviceRanks,
    policy: LocalPolicy,
    critic: TrainedModel | None,
    vision: VisionSetup,
    critic_vision: VisionSetup,
) -> dict[str, InferenceState]:
    """Create the job's states that score samples with a model, by name. policy: the trained policy.

    critic_vision: vision setup of the critic.
    """
    spec, states = context.spec, context.spec.states
    inference: dict[str, InferenceState] = {}

    def add(
        name: str,
        column: str,
        model: PolicyModel,
        ranks: UpdateRanks,
        *,
        temperature: float = 1.0,
        adapt: AdaptSamples | None = None,
        resting: OffloadedTensors | None = None,
        vision: VisionSetup = vision,
    ) -> None:
        inference[name] = InferenceState(
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
            pictures=vision.reader,
        )

    if "reference" in states and isinstance(policy.model, Decoder) and policy.lora is not None:
        temperature, base = spec.rollout.temperature, WithoutAdapters(policy.model)
        add("reference", "reference_logprobs", base, device_ranks.update, temperature=temperature)
    elif "reference" in states:
        frozen, weights = _frozen(context, "policy", device_ranks.update, dtype=spec.update.dtype)
        vision.to(frozen)
        resting = None
        if swaps(spec, context.models["policy"]):
            resting = HostSwap(context.backend).out(weights)
            resting.release()
        temperature = spec.rollout.temperature
        add(
            "reference",
            "reference_logprobs",
            frozen,
            device_ranks.update,
            temperature=temperature,
            resting=resting,
        )
    if context.logprobs_folder is not None:
        inference["reference"].stored_logprobs = LogprobCache(folder=context.logprobs_folder)
    if spec.teacher is not None:
        frozen, _ = _frozen(context, "teacher", device_ranks.teacher, dtype=spec.teacher.dtype)
        teacher_vision = _vision_of(context, "teacher", vision, spec.teacher)
        teacher_vision.to(frozen)
        temperature = spec.rollout.temperature
        add(
            "teacher",
            "teacher_logprobs",
            frozen,
            device_ranks.teacher,
            temperature=temperature,
            vision=teacher_vision,
        )
    if critic is not None:
        add("values", "values", critic.shard.model, critic.ranks, vision=critic_vision)
    if (scorer := spec.reward_model) is not None:
        ranks, path = device_ranks.reward_model, context.models["reward-model"]
        model, _ = _frozen(context, "reward-model", ranks, dtype=scorer.dtype, scores=True)
        padding = read_config(path).get("pad_token_id")
        adapt = with_end(padding if isinstance(padding, int) else None)
        add("reward-model", MODEL_SCORE, model, ranks, adapt=adapt)
    return inference


def _frozen(
    context: DeviceContext, name: str, ranks: UpdateRanks, *, dtype: str, scores: bool = False
) -> tuple[PolicyModel, list[Tensor]]:
    """Load a model that is never trained, and return its weights too."""
    path, device = context.models[name], context.backend.device
    model = load_local_policy(path, ranks, dtype=DTYPES[dtype], scores=scores, device=device).model
    model.text_ids = context.text_ids
    weights = [local_rows(w.requires_grad_(False)) for _, w in model.trained_parameters()]
    context.backend.ledger.track(MemoryKind.REFERENCE_WEIGHTS, weights)
    return model, weights
