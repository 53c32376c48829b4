"""What one agent asked of the policy, as a tree: a request goes on behind the turn whose messages it repeats,
token by token as they were drawn and put; one that repeats none, or a turn that others go on behind already,
is a branch.

Pure: knows no network, no thread and no engine. Used by `endpoint` and `agent_turns`, under their lock.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from rljob_runtime.rollout.rollout_engine import Finish, Generated, PromptGroup
from rljob_runtime.samples.seeds import derive_seed
from rljob_runtime.task.agents.agent_pool import Played
from rljob_runtime.task.agents.chat_request import ChatRequest, Message, RequestRefused
from rljob_runtime.task.environments.environment import Outcome
from rljob_runtime.task.tokenizer import Tokenizer


@dataclass(slots=True, kw_only=True)
class AgentTurn:
    """A request and its answer. number: within the session. behind: None at the start of a conversation.
    put: tokens behind that turn. seed: of the noise. made: what was drawn; said: as a message."""

    number: int
    request: ChatRequest
    behind: "AgentTurn | None"
    put: list[int]
    seed: int
    made: Generated | None = None
    said: Message | None = None

    @property
    def path(self) -> "list[AgentTurn]":
        """The turns that lead here, this one last."""
        before = self.behind.path if self.behind is not None else []
        return [*before, self]

    @property
    def begun(self) -> list[int]:
        """Response tokens before those that it draws."""
        drawn = self.behind.tokens if self.behind is not None else []
        return [*drawn, *self.put]

    @property
    def tokens(self) -> list[int]:
        """With them."""
        assert self.made is not None, "it is answered"
        return [*self.begun, *self.made.token_ids]

    def repeated_by(self, request: ChatRequest) -> int:
        """How many of the request's messages are those up to here; 0 where it says anything else."""
        if self.said is None or request.tools != self.request.tools:
            return 0
        mine = [*self.request.messages, self.said]
        theirs = request.messages[: len(mine)]
        return len(mine) if [*map(_alike, theirs)] == [*map(_alike, mine)] else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """most_turns: answers of a session. most_tokens: of a conversation, put and drawn. scored: whether the
    agent's function gives the reward. say: a turn's tokens and number, and whether calls of tools are looked
    for, as a message."""

    most_turns: int
    most_tokens: int
    scored: bool
    say: Callable[[list[int], int, bool], Message]


@dataclass(slots=True, kw_only=True)
class Session:
    """One sample's. group: as it was asked for, with this sample alone. last: the turn that was answered
    last. cut: the limit that a request ran into. played: how it ended."""

    group: PromptGroup
    tokenizer: Tokenizer
    limits: SessionLimits
    turns: list[AgentTurn] = field(default_factory=list)
    last: AgentTurn | None = None
    cut: Finish | None = None
    played: Played | None = None

    @property
    def uid(self) -> str:
        """Of its sample."""
        return self.group.uids[0]

    def ask(self, request: ChatRequest) -> tuple[AgentTurn, bool]:
        """The turn that answers the request, and whether it is a new one: what a client asks again, and says
        so, is answered by the turn that it asked for. Raises RequestRefused at the limits."""
        if request.retry:
            for turn in reversed(self.turns):
                if turn.request.same(request):
                    return turn, False
        if len(self.turns) >= self.limits.most_turns:
            self.cut = "turns"
            raise RequestRefused(
                f"this session has had {self.limits.most_turns} answers (spec.rollout.maxTurns); end it",
                code="max_turns",
            )
        turn = self._new(request)
        room = self.limits.most_tokens - len(turn.begun)
        if room < 1:
            self.cut = "length"
            raise RequestRefused(
                f"the conversation has {len(turn.begun)} tokens, and {self.limits.most_tokens} are the most, "
                "with an answer (spec.batch.maxResponseLength); end it, or say less",
                param="messages",
                code="context_length_exceeded",
            )
        self.turns.append(turn)
        return turn, True

    def _new(self, request: ChatRequest) -> AgentTurn:
        found = [(turn.repeated_by(request), turn) for turn in self.turns]
        most, behind = max(found, key=lambda each: each[0], default=(0, None))
        number = len(self.turns)
        if not most or behind is None:
            opening = self.group.token_ids
            ids = self.tokenizer.conversation(request.messages, request.tools)
            if ids[: len(opening)] != opening:
                raise RequestRefused(
                    "the chat template begins this conversation with another token than a user's; let the "
                    "first message be a user's",
                    param="messages",
                )
            put, behind = ids[len(opening) :], None
        else:
            new = request.messages[most:]
            if not new:
                raise RequestRefused(
                    "the last message is the policy's own answer", param="messages"
                )
            assert behind.made is not None, "it was repeated"
            ended = behind.made.token_ids[-1] in self.tokenizer.eos_ids
            put = self.tokenizer.behind_answer(new, request.tools, ended=ended)
        beside = any(turn.behind is behind for turn in self.turns)
        seed = behind.seed if behind is not None else self.group.seeds[0]
        if beside:  # the same seed would draw the same tokens
            seed = derive_seed(seed, "branch", number)
        return AgentTurn(number=number, request=request, behind=behind, put=put, seed=seed)

    def answer(self, turn: AgentTurn, made: Generated) -> None:
        """Take what was drawn for a turn."""
        turn.made = made
        turn.said = self.limits.say(made.token_ids, turn.number, bool(turn.request.tools))
        self.last = turn

    def group_of(self, turn: AgentTurn) -> PromptGroup:
        """What the engine is asked for it."""
        begun = turn.begun
        return PromptGroup(
            group=self.group.group,
            token_ids=self.group.token_ids,
            uids=[f"{self.uid} {turn.number}"],
            seeds=[turn.seed],
            begun=begun,
            turn=len(begun),
            budget=turn.request.most,
        )

    @property
    def left_out(self) -> int:
        """Tokens that were drawn beside the conversation of the last answer, which alone is trained on."""
        mine = self.last.path if self.last is not None else []
        return sum(
            len(turn.made.token_ids)
            for turn in self.turns
            if turn.made is not None and not any(turn is one for one in mine)
        )

    def whole(self) -> Generated:
        """The sample: the conversation of the last answer. Call it once the session has ended."""
        assert self.last is not None and self.played is not None, "it was answered, and has ended"
        tokens, drawn, ends = list[int](), list[bool](), list[int]()
        logprobs, versions = list[float](), list[int]()
        for turn in self.last.path:
            made = turn.made
            assert made is not None, "others go on behind answers alone"
            tokens += [*turn.put, *made.token_ids]
            drawn += [False] * len(turn.put) + [True] * len(made.token_ids)
            ends.append(len(tokens))
            logprobs += made.logprobs
            versions += made.versions
        return Generated(
            uid=self.uid,
            token_ids=tokens,
            logprobs=logprobs,
            finish=self.cut or "stop",
            version=versions[0],
            switches=[
                (place, version)
                for place, version in enumerate(versions)
                if place and version != versions[place - 1]
            ],
            drawn=drawn,
            turns=len(ends),
            ends=ends,
            outcome=self._outcome(self.played),
        )

    def _outcome(self, played: Played) -> Outcome:
        """A session that ran into a limit, and whose agent raised for it, is cut and has not failed."""
        error = "" if self.cut is not None else played.error
        if self.limits.scored and played.reward is None and not played.error:
            error = "it returned None, and the reward of type agent is what it returns"
        return Outcome(
            reward=played.reward or 0.0,
            done=not played.error,
            error=error,
            seconds=(played.seconds,),
        )


def _alike(message: Message) -> Message:
    """What two messages are compared by: an answer comes back stripped, and its tokens are known."""
    if message["role"] != "assistant":
        return message
    return message | {"content": message["content"].strip()}
