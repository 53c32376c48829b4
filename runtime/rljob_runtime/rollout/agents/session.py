"""The requests of one agent to the policy, as a tree.

A request continues the turn whose messages it repeats, token by token as they were generated and inserted. A
request that repeats none, or a turn that others continue already, is a branch. Pure: uses no network, no
thread and no engine. Used by `endpoint` and `agent_turns`, under their lock.
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
    """A request and its answer. number: within the session. parent: None at the start of a conversation.
    inserted: tokens after that turn. seed: of the noise. generated: what the policy generated; message: the
    same as a message."""

    number: int
    request: ChatRequest
    parent: "AgentTurn | None"
    inserted: list[int]
    seed: int
    generated: Generated | None = None
    message: Message | None = None

    @property
    def path(self) -> "list[AgentTurn]":
        """The turns from the start of the conversation, this one last."""
        earlier = self.parent.path if self.parent is not None else []
        return [*earlier, self]

    @property
    def begun(self) -> list[int]:
        """Response tokens before those that it generates."""
        drawn = self.parent.tokens if self.parent is not None else []
        return [*drawn, *self.inserted]

    @property
    def tokens(self) -> list[int]:
        """Response tokens up to the end of this turn."""
        assert self.generated is not None, "it is answered"
        return [*self.begun, *self.generated.token_ids]

    def repeated_by(self, request: ChatRequest) -> int:
        """Return how many of the request's messages repeat the conversation up to here; 0 where any
        differs."""
        if self.message is None or request.tools != self.request.tools:
            return 0
        own_messages = [*self.request.messages, self.message]
        request_messages = request.messages[: len(own_messages)]
        return (
            len(own_messages)
            if [*map(_alike, request_messages)] == [*map(_alike, own_messages)]
            else 0
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """The limits of a session. most_turns: answers of a session. most_tokens: of a conversation, inserted and
    generated. scored: whether the agent's function returns the reward. to_message: converts a turn's tokens
    and number to a message; its flag enables calls of tools."""

    most_turns: int
    most_tokens: int
    scored: bool
    to_message: Callable[[list[int], int, bool], Message]


@dataclass(slots=True, kw_only=True)
class AgentSession:
    """The session of one sample. group: as requested, with this sample alone. last: the last answered turn.
    cut: the limit that a request reached. played: how it ended."""

    group: PromptGroup
    tokenizer: Tokenizer
    limits: SessionLimits
    turns: list[AgentTurn] = field(default_factory=list)
    last: AgentTurn | None = None
    cut: Finish | None = None
    played: Played | None = None

    @property
    def uid(self) -> str:
        """The uid of its sample."""
        return self.group.uids[0]

    def ask(self, request: ChatRequest) -> tuple[AgentTurn, bool]:
        """Return the turn that answers the request, and whether it is new. A request that is marked as a
        retry gets the turn of the original request. Raises RequestRefused at the limits."""
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
        turn = self._new_turn(request)
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

    def _new_turn(self, request: ChatRequest) -> AgentTurn:
        repetitions = [(turn.repeated_by(request), turn) for turn in self.turns]
        num_repeated, parent = max(repetitions, key=lambda each: each[0], default=(0, None))
        number = len(self.turns)
        if not num_repeated or parent is None:
            opening = self.group.token_ids
            ids = self.tokenizer.conversation(request.messages, request.tools)
            if ids[: len(opening)] != opening:
                raise RequestRefused(
                    "the chat template begins this conversation with another token than a user's; let the "
                    "first message be a user's",
                    param="messages",
                )
            inserted, parent = ids[len(opening) :], None
        else:
            new = request.messages[num_repeated:]
            if not new:
                raise RequestRefused(
                    "the last message is the policy's own answer", param="messages"
                )
            assert parent.generated is not None, "it was repeated"
            ended = parent.generated.token_ids[-1] in self.tokenizer.eos_ids
            inserted = self.tokenizer.behind_answer(new, request.tools, ended=ended)
        is_branch = any(turn.parent is parent for turn in self.turns)
        seed = parent.seed if parent is not None else self.group.seeds[0]
        if is_branch:  # the same seed would draw the same tokens
            seed = derive_seed(seed, "branch", number)
        return AgentTurn(
            number=number, request=request, parent=parent, inserted=inserted, seed=seed
        )

    def answer(self, turn: AgentTurn, generated: Generated) -> None:
        """Store what was generated for a turn."""
        turn.generated = generated
        turn.message = self.limits.to_message(
            generated.token_ids, turn.number, bool(turn.request.tools)
        )
        self.last = turn

    def group_of(self, turn: AgentTurn) -> PromptGroup:
        """Return the engine's request for a turn."""
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
        """Tokens generated outside of the conversation of the last answer, which alone is trained on."""
        last_path = self.last.path if self.last is not None else []
        return sum(
            len(turn.generated.token_ids)
            for turn in self.turns
            if turn.generated is not None and not any(turn is one for one in last_path)
        )

    def to_generated(self) -> Generated:
        """Return the sample: the conversation of the last answer. Call it once the session has ended."""
        assert self.last is not None and self.played is not None, "it was answered, and has ended"
        tokens, drawn, ends = list[int](), list[bool](), list[int]()
        logprobs, versions = list[float](), list[int]()
        for turn in self.last.path:
            generated = turn.generated
            assert generated is not None, "others go on behind answers alone"
            tokens += [*turn.inserted, *generated.token_ids]
            drawn += [False] * len(turn.inserted) + [True] * len(generated.token_ids)
            ends.append(len(tokens))
            logprobs += generated.logprobs
            versions += generated.versions
        return Generated(
            uid=self.uid,
            token_ids=tokens,
            logprobs=logprobs,
            finish=self.cut or "stop",
            version=versions[0],
            switches=[
                (index, version)
                for index, version in enumerate(versions)
                if index and version != versions[index - 1]
            ],
            drawn=drawn,
            turns=len(ends),
            ends=ends,
            outcome=self._outcome(self.played),
        )

    def _outcome(self, played: Played) -> Outcome:
        """Return the outcome. A session that reached a limit, and whose agent raised an error for it, is
        truncated and has not failed."""
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
    """Return the part of a message that is compared: an answer comes back stripped, and its tokens are
    known."""
    if message["role"] != "assistant":
        return message
    return message | {"content": message["content"].strip()}
