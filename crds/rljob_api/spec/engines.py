"""How the model is computed: parallelism, engines, resharding, placement, flow."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.spec.agent import Agent
from rljob_api.spec.extensions import NameOf, Params
from rljob_api.spec.lora import Lora
from rljob_api.spec.section import Quantity, Section
from rljob_api.spec.tools import Tool

Dtype = Literal["float32", "bfloat16"]
Quantization = Literal["none", "int8"]
Recompute = Literal["none", "full"]
Redundancy = Literal["none", "peer", "host"]
Strategy = Literal["stream", "allgather", "allgather-swap"]
MAX_STALENESS = 64
"""Largest flow.maxStaleness, and the largest default."""


class RolloutParallelism(Section):
    """Degrees of the rollout layout."""

    data: int | None = Field(default=None, ge=1, le=100_000)
    """Replicas that generate different samples (the paper's GDP); default: all that the devices
    allow."""

    tensor: int = Field(default=1, ge=1, le=1024)
    """Devices that share each matrix."""

    pipeline: int = Field(default=1, ge=1, le=1024)
    """Stages of layers."""

    expert: int = Field(default=1, ge=1, le=10_000)
    """Devices that share the experts of a layer (the paper's GEP); within data × tensor."""

    @property
    def shared(self) -> bool:
        """Return whether devices share a model instead of each holding all of it."""
        return self.tensor * self.pipeline * self.expert > 1

    @property
    def replica_devices(self) -> int:
        """Return the number of devices that generate the same samples."""
        return self.tensor * self.pipeline

    @property
    def model_devices(self) -> int:
        """Return the number of devices that hold a model together: a replica's, or those of replicas that
        share experts."""
        return self.pipeline * max(self.tensor, self.expert)


class UpdateParallelism(Section):
    """Degrees of the update layout."""

    data: int | None = Field(default=None, ge=1, le=100_000)
    """Replicas that train on different samples; default: all that the devices allow."""

    tensor: int = Field(default=1, ge=1, le=1024)
    """Devices that share each matrix (the paper's UTP)."""

    pipeline: int = Field(default=1, ge=1, le=1024)
    """Stages of layers."""

    virtual_pipeline: int = Field(default=1, ge=1, le=64)
    """Model chunks of each pipeline stage (interleaved schedule)."""

    context: int = Field(default=1, ge=1, le=1024)
    """Devices that share each sequence."""

    context_algorithm: Literal["ring", "ulysses"] = "ulysses"
    """RingAttention or DeepSpeed-Ulysses."""

    expert: int = Field(default=1, ge=1, le=10_000)
    """Devices that share the experts of a layer; within data × context."""

    zero: Literal[0, 1, 2, 3] = 0
    """ZeRO stage: which states data-parallel ranks share out instead of repeating."""

    @property
    def shared(self) -> bool:
        """Return whether ranks share a model or its optimizer instead of each holding all of it."""
        sharers = self.tensor * self.pipeline * self.context * self.expert
        return sharers > 1 or (self.zero > 0 and self.data != 1)

    @property
    def named(self) -> str:
        """Return the degrees above 1 if ranks share a model, "data 2 × tensor 4, zero 1"; empty otherwise."""
        if not self.shared:
            return ""
        names = ("data", "tensor", "pipeline", "context", "expert")
        degrees = {name: getattr(self, name) or 1 for name in names}
        shown = " × ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
        return f"{shown}, zero {self.zero}" if self.zero else shown


class Rollout(Section):
    """Settings for the generation of responses."""

    engine: Annotated[str, NameOf(("torch", "vllm"))] = "torch"
    """`torch`: this project's batched generator; `vllm`: vLLM (vllm-ascend on NPUs); a name with a
    dot: an engine of an installed package."""

    params: Params = None
    """Parameters of a package's engine."""

    parallelism: RolloutParallelism = RolloutParallelism()
    """Degrees of the rollout layout."""

    dtype: Dtype = "float32"
    """Type of the weights in generation."""

    quantization: Quantization = "none"
    """`int8`: the matrices of the layers in 8 bits with a scale for each output feature, rounded again from
    each version of the weights; everything else stays in dtype. `mismatch` metrics measure the cost."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the likeliest tokens that have this share of probability."""

    top_k: int = Field(default=0, ge=0)
    """Sample from this many of the likeliest tokens; 0 is all."""

    max_sequences: int = Field(default=256, ge=1, le=100_000)
    """Most sequences that a replica generates at the same time; finished ones are replaced."""

    kv_cache_memory: Quantity | None = None
    """Most memory of the KV cache on a device. It determines how many sequences are generated at the same
    time; the others wait. It must fit at least one of the longest lengths. Default: what maxSequences of them
    need, or all samples of a step, or what accelerator.memory leaves."""

    tools: list[Tool] = Field(
        default_factory=list, max_length=16, exclude_if=lambda tools: not tools
    )
    """Tools that the policy may call while it generates; their answers are read and not learned
    (docs/tools.md). For the engines `torch` and `vllm`."""

    agent: Agent | None = Field(default=None, exclude_if=lambda agent: agent is None)
    """A user's program that plays each sample through an OpenAI-compatible endpoint, with its own tools and
    turns (docs/agents.md). For the engines `torch` and `vllm`, with one device per model."""

    max_turns: int | None = Field(
        default=None, ge=2, le=1000, exclude_if=lambda turns: turns is None
    )
    """Most turns of the policy in a sample: with tools one more than calls, and a call in the last turn ends
    it; with data.environment as many as moves; with an agent as many as answers. Default: 8 with any of them,
    1 without."""


class Optimizer(Section):
    """AdamW and the learning rate's schedule."""

    learning_rate: float = Field(default=1e-6, gt=0, le=1)
    """Peak learning rate."""

    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up; `cosine` falls to minLearningRate at the last step."""

    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps of linear warm-up from 0; a step has one for each mini-batch and epoch."""

    min_learning_rate: float = Field(default=0.0, ge=0, le=1)
    """Lower end of the cosine schedule."""

    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""

    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment."""

    epsilon: float = Field(default=1e-8, gt=0, le=1)
    """Added to the denominator."""

    weight_decay: float = Field(default=0.0, ge=0, le=10)
    """Decoupled weight decay; not applied to norms and biases."""

    moments_dtype: Literal["float32", "float8"] = "float32"
    """Type of AdamW's two moments between steps. `float8`: e4m3 in blocks of 256 with a scale each, rounded
    stochastically with the right mean; 2 bytes per weight instead of 8."""

    gradient_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the full gradient."""


class Update(Section):
    """Settings for training the policy."""

    engine: Annotated[str, NameOf(("torch", "megatron", "mindspeed"))] = "torch"
    """`torch`: this project's engine; `megatron`: Megatron Core's layers, gradient buffers and optimizer;
    `mindspeed`: the same, adapted to Ascend by MindSpeed; a name with a dot: an engine of an installed
    package."""

    params: Params = None
    """Parameters of a package's engine."""

    parallelism: UpdateParallelism = UpdateParallelism()
    """Degrees of the update layout."""

    dtype: Dtype = "float32"
    """Type of the weights and of the computation in training. With `bfloat16`, gradients add up in float32
    and the optimizer steps float32 main weights, which are rounded into the model's after each step."""

    recompute: Recompute = "none"
    """What the backward pass computes again instead of keeping it. `full`: everything of a layer but its
    input, which needs a third more computation and a fraction of the activations; same bits."""

    offload: Literal["none", "optimizer"] = "none"
    """What is kept on the host while it is not used. `optimizer`: AdamW's state, which is on the device only
    for the optimizer step, without activations; each step moves it in and out once."""

    redundancy: Redundancy = "none"
    """Where a second copy of the weights and the optimizer's state that only one device holds is kept after
    each step. Its failure then costs only the interrupted step, and not the steps since the last checkpoint
    (docs/recovery.md). `peer`: another device's host, on the next node if there are several; four times their
    bytes. `host`: shared memory of the device's own machine, twice their bytes, which outlives its process
    but neither the machine nor the pod. `none`: no copy. Applies to a critic, too."""

    balance: Literal["none", "length"] = "none"
    """`length`: the ranks get prompts of nearly the same total length from each mini-batch, so that none
    waits for another; the mini-batch is then complete before the update starts. `none`: prompts in turn."""

    router_replay: bool = Field(default=False, exclude_if=lambda replays: not replays)
    """Send each token to the experts that generation sent it to, instead of those that the update's router
    would choose. Their weights come from the update's scores, with gradient (rollout routing replay, R3). For
    models with experts, with the engines `torch` of rollout and update (docs/models.md)."""

    optimizer: Optimizer = Optimizer()
    """AdamW and its schedule."""

    lora: Lora | None = Field(default=None, exclude_if=lambda lora: lora is None)
    """Train low-rank adapters and freeze the model (LoRA); without it all weights are trained. The rollout
    generates with merged weights; `lora: {}` has PEFT's defaults. For the engine `torch`."""


class Resharding(Section):
    """How weights move from the update layout to the rollout layout."""

    strategy: Strategy | None = None
    """`stream`: full tensors, one at a time; a device that trains and generates keeps the weights of both
    layouts. The others move what each device lacks by a plan: `allgather` also keeps both layouts;
    `allgather-swap` keeps one: the update's weights are on the host while the rollout runs, the reference's
    between uses (MindSpeed RL, Fig. 3 and 5). They need rljob's own update and rollout engines, including
    `vllm`, and quantization `none`; `allgather-swap` also needs placement colocated. Default:
    `allgather-swap`, or `allgather` with placement separated, if the job can have it, else `stream`."""

    deltas: bool = False
    """Whether separated devices receive only what changed since the last version, bit by bit; both ends keep
    that version for this. In bfloat16 at learning rates near 1e-6 that is a few percent of the bytes."""


class Placement(Section):
    """Which devices belong to which role."""

    mode: Literal["colocated", "separated"] = "colocated"
    """`colocated`: each device switches between all states; `separated`: each device has one role."""

    update_devices: int | None = Field(default=None, ge=1, le=100_000)
    """For `separated`: devices that train; default: those that do not generate."""

    rollout_devices: int | None = Field(default=None, ge=1, le=100_000)
    """For `separated`: devices that generate; default: those that do not train. May change while the
    job trains, where updateDevices is given: `kubectl scale rljob NAME --replicas N`."""


class PartialRollout(Section):
    """Long samples stop after this many tokens of a step and continue in the next one."""

    budget_tokens: int = Field(ge=1, le=10_000_000)
    """Tokens that a sample makes in one step, after which it waits for the next step's weights. Where
    too few prompts are done then, all go on for as many again."""

    extra_prompts: int | None = Field(default=None, ge=1, le=1_000_000)
    """Open prompts in addition to the globalBatchSize that a step trains on, shared out among the rollout
    replicas; default and most: globalBatchSize. Samples are extraPrompts / globalBatchSize versions older on
    average."""


class Flow(Section):
    """How stages follow each other."""

    mode: Literal["sync", "streaming", "async"] = "streaming"
    """`streaming`: within a step, every stage takes samples as soon as they are ready; `sync`: a stage starts
    when the previous one has ended; `async`: with placement `separated`, generation also runs ahead of the
    update."""

    max_staleness: int | None = Field(default=None, ge=1, le=MAX_STALENESS)
    """For `async` and partialRollout: how many versions a sample's first token may be older than the weights
    that train on it. Default: 1; with partialRollout what a sample of maxResponseLength needs. With `async`
    alone the dock holds this many more steps."""

    partial_rollout: PartialRollout | None = None
    """Long samples continue in the next step, so that no step waits for them; without it, every sample is
    finished in the step that started it."""

    stage_timeout_seconds: float = Field(default=3600.0, gt=0, le=604_800)
    """A stage of a step that takes longer fails the run, and the error names what is missing."""

    @property
    def most_ahead(self) -> int:
        """Return how many versions the weights may be behind when generation starts a step's batch."""
        if self.mode != "async":
            return 0
        return 1 if self.partial_rollout else self.max_staleness or 1

    @property
    def most_stale(self) -> int:
        """Return how many versions a sample's first token may be behind the weights that train on it."""
        if self.partial_rollout is None:
            return self.most_ahead
        assert self.max_staleness is not None, "resolve() fills flow.maxStaleness"
        return self.max_staleness

    @property
    def off_policy(self) -> bool:
        """Return whether weights older than those being trained may have drawn a sample."""
        return self.mode == "async" or self.partial_rollout is not None
