"""The protocols of rollout engines, and what one is created from: token ids in, token ids and log-probs out,
weights by public name.

Built-in engines and those of packages implement the same protocol; `rollout_table` creates the one that a job
names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch
from pydantic import JsonValue
from torch import Tensor

from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.resharding.boxes import TensorBox
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.models.tower import VisionTowers
from rljob_runtime.rollout.rollout_groups import RolloutGroups
from rljob_runtime.samples.pictures import Picture
from rljob_runtime.task.environments.conversation import Conversation
from rljob_runtime.task.environments.environment import GameSeed, Moved, Outcome
from rljob_runtime.task.tools.answers import Answer, ToolCall
from rljob_runtime.task.tools.call_format import CallFormat

Finish = Literal["stop", "length", "budget", "turns"]
"""Why a sample ended: `stop`, by an end token or with its game; `length`, at the longest response. `budget`:
at the limit of its group's new tokens; `turns`: with a call or a move in its last turn."""


class ToolRunner(Protocol):
    """Executes calls of tools: a `ToolPool`."""

    def call(self, tool: str, text: str, done: Callable[[Answer], None]) -> None:
        """Call a tool; `done` is called with the answer, once, in another thread."""
        ...

    def most_seconds(self, calls: int) -> float:
        """Return the longest time until one of this many calls is answered."""
        ...


class PlayedGame(Protocol):
    """A sample's game: an `OpenGame`."""

    def move(self, text: str, done: Callable[[Moved], None]) -> None:
        """Make a move; `done` is called with the result, once, in another thread."""
        ...

    def close(self) -> None:
        """End the game, since the sample has ended."""
        ...

    def most_seconds(self) -> float:
        """Return the longest time until a move has its result."""
        ...


class GameRunner(Protocol):
    """Runs games: a `GamePool`."""

    def begin(self, game: GameSeed, moves: Sequence[str] = ()) -> PlayedGame:
        """Return a new game, in which these moves were made."""
        ...


@dataclass(slots=True, kw_only=True)
class Idle:
    """Seconds in which an engine only waited for tools or games."""

    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Add seconds of waiting."""
        self.seconds += seconds

    def take(self) -> float:
        """Return the seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


@dataclass(slots=True, kw_only=True)
class AgentTally:
    """A tally of sessions that have ended. requests: turns that were generated for them; left_out: tokens of
    these that are not trained on."""

    requests: int = 0
    left_out: int = 0


class AgentPlayers(Protocol):
    """Agents that play samples: an `AgentDesk`."""

    @property
    def idle(self) -> Idle:
        """Seconds in which the engine waited for agents alone."""
        ...

    def take_tally(self) -> AgentTally:
        """Return the tally of the sessions since the last call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """The tools that samples may call. most_turns: of a sample."""

    form: CallFormat
    pool: ToolRunner
    most_turns: int
    idle: Idle = field(default_factory=Idle)


@dataclass(frozen=True, slots=True, kw_only=True)
class GameSettings:
    """The games that samples play. most_turns: of a sample."""

    form: Conversation
    pool: GameRunner
    most_turns: int
    idle: Idle = field(default_factory=Idle)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are sampled.

    max_response_length: of the full response, including tokens that exist already. stopped: called with the
    ids of the response, or of its last turn, after each token; True ends the response or the turn. tools,
    games, agents: None where samples have one turn; engines of packages have none.
    """

    temperature: float
    top_p: float
    top_k: int
    max_response_length: int
    eos_ids: tuple[int, ...]
    greedy: bool = False
    stopped: Callable[[list[int]], bool] | None = None
    tools: ToolSettings | None = None
    games: GameSettings | None = None
    agents: "AgentPlayers | None" = None

    @property
    def has_turns(self) -> bool:
        """Whether a sample may return with a separate prefix."""
        return self.tools is not None or self.games is not None or self.agents is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptGroup:
    """One prompt and the requested samples of it: one uid and one seed (63 bits) each.

    begun: response tokens that all these samples have already and continue. drawn: which of these the policy
    generated; empty where it generated all. ends: where among them its turns ended; turn: where the current
    one begins, after the inserted tokens. budget: most tokens that each makes in this call, with the inserted
    ones; None: as many as the longest response has room for. game: of which the prompt is the first
    observation; outcome: of its moves so far, None before the first. task: of an agent's session, as JSON.
    pictures: those that the prompt shows, in order; begun_pictures: those inserted into the begun tokens.
    routed: first tokens of the prefix whose routes are known.
    """

    group: str
    token_ids: list[int]
    uids: list[str]
    seeds: list[int]
    begun: list[int] = field(default_factory=list)
    drawn: list[bool] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    turn: int = 0
    budget: int | None = None
    game: GameSeed | None = None
    outcome: Outcome | None = None
    task: str = ""
    pictures: list[Picture] = field(default_factory=list)
    begun_pictures: list[Picture] = field(default_factory=list)
    routed: int = 0

    @property
    def drawn_of_begun(self) -> list[bool]:
        """Return whether the policy generated each of the begun tokens."""
        return self.drawn or [True] * len(self.begun)

    @property
    def all_pictures(self) -> list[Picture]:
        """The pictures of the prefix."""
        return [*self.pictures, *self.begun_pictures]

    @property
    def prefix(self) -> list[int]:
        """The tokens before a sample's next one."""
        return self.token_ids + self.begun

    def continued_after(self, begun: list[int], *, routed: int = 0) -> "PromptGroup":
        """Return a group that starts a new turn after these tokens."""
        budget = self.budget
        if budget is not None:
            budget -= len(begun) - len(self.begun)
        return replace(self, begun=list(begun), turn=len(begun), budget=budget, routed=routed)

    def limit(self, sampling: Sampling) -> int:
        """Return the most tokens that each sample makes in this call, at least 1."""
        left = sampling.max_response_length - len(self.begun)
        assert left > 0, f"samples of group {self.group} have no room for another token"
        return left if self.budget is None else min(left, self.budget)

    def finish(self, stopped: bool, new_tokens: int, sampling: Sampling) -> Finish:
        """Return why a sample ended after this many new tokens."""
        if stopped:
            return "stop"
        total_tokens = len(self.begun) + new_tokens
        return "length" if total_tokens >= sampling.max_response_length else "budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The new tokens of a sample: a response, or its end where the group was begun.

    token_ids: the new tokens alone, including those inserted between turns. drawn: which of them the policy
    generated; empty where it generated all. logprobs: of these, natural log under softmax(logits /
    temperature), before top-p and top-k truncate it. version: of the weights that generated the first of
    them. switches: (generated tokens before it, version) of each switch to other weights since then, in
    order. turns: of the policy that ended among these; ends: where in the full response they, and those
    before, ended. calls: of tools among these, in order. outcome: of its game so far, whose `seconds` are of
    moves among these.

    routes: of its tokens after the group's `routed` ones, except the last one, as `models.routes` packs them;
    empty where the engine keeps none.
    """

    uid: str
    token_ids: list[int]
    logprobs: list[float]
    finish: Finish
    version: int
    switches: list[tuple[int, int]] = field(default_factory=list)
    drawn: list[bool] = field(default_factory=list)
    turns: int = 1
    ends: list[int] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    outcome: Outcome | None = None
    routes: bytes = b""

    @property
    def versions(self) -> list[int]:
        """Versions of the weights that generated each token."""
        versions = [self.version] * len(self.logprobs)
        for num_before, version in self.switches:
            versions[num_before:] = [version] * len(versions[num_before:])
        return versions


class RolloutEngine(Protocol):
    """Generates responses; holds weights in the rollout layout."""

    @property
    def version(self) -> int:
        """Version of the weights, 0 at first."""
        ...

    def generate(
        self, groups: Sequence[PromptGroup], sampling: Sampling
    ) -> Iterator[list[Generated]]:
        """Yield samples as they end, several at a time; each uid once."""
        ...

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        """Replace all weights; names are Hugging Face's. Raises WeightsError if any is missing."""
        ...

    def checksum(self) -> str:
        """Return the checksum of the engine's weights, comparable with `weights_checksum`."""
        ...

    def sleep(self) -> None:
        """Free the KV cache."""
        ...

    def wake(self) -> None:
        """Allocate the KV cache again."""
        ...


@runtime_checkable
class SwitchingEngine(RolloutEngine, Protocol):
    """A rollout engine that accepts new weights while it generates."""

    between: Callable[[], None] | None
    """Called by `generate` where the engine can accept new weights, as often as it can."""

    def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log-probs at temperature 1 of each sequence's tokens from the second on, natural log. All
        sequences have one length. Engines that share a model call it together, none of them while it
        generates."""
        ...

    @property
    def drawn(self) -> int:
        """Tokens generated for all samples so far; another thread may read it while `generate` runs."""
        ...

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Shapes of the model's weights by Hugging Face name."""
        ...


@runtime_checkable
class SlicedEngine(RolloutEngine, Protocol):
    """A rollout engine whose weights are tensors of this process, which a plan fills in place."""

    def slices(self) -> dict[str, Tensor]:
        """Return this process' weights by Hugging Face name, the live tensors."""
        ...

    def filled(self, version: int) -> None:
        """Set the version after all `slices` were filled in place."""
        ...

    def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log-probs. See `SwitchingEngine.token_logprobs`."""
        ...


@runtime_checkable
class TakingEngine(RolloutEngine, Protocol):
    """A rollout engine that stores weights in another format, and takes their slices as they arrive."""

    def take_slices(self, slices: Iterable[tuple[TensorBox, Tensor]], *, version: int) -> None:
        """Replace all weights by this device's slices, iterated once, to the end."""
        ...

    def token_logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log-probs. See `SwitchingEngine.token_logprobs`."""
        ...


@runtime_checkable
class SleepingEngine(RolloutEngine, Protocol):
    """A rollout engine whose `sleep` may free its weights, too."""

    @property
    def sleeps(self) -> bool:
        """Whether `sleep` frees the weights here, so that `load_weights` and `wake` must follow it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSetup:
    """The arguments from which a rollout engine is created.

    model: Hugging Face directory of the first weights, version 0. dtype: of the weights. max_length: of the
    longest prompt and response together. ledger: the device's memory. groups: of the devices that share the
    model; None where this one has all of it. other_models: directories of other models on this device, by
    name. device: of torch. towers: of this device, where prompts show pictures. text_ids: ids from this one
    on have no text, and must not be sampled; None: all have.
    """

    spec: ResolvedSpec
    model: Path
    dtype: torch.dtype
    max_length: int
    ledger: MemoryLedger
    groups: RolloutGroups | None = None
    other_models: Mapping[str, Path] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    towers: VisionTowers | None = None
    text_ids: int | None = None

    @property
    def params(self) -> Mapping[str, JsonValue]:
        """The engine's parameters, spec.rollout.params."""
        return self.spec.rollout.params or {}
