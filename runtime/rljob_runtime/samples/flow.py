"""The dataflow of a job: which states a sample passes and which columns each needs and writes.

Derived from the algorithm; given to the dock's servers when they start.
"""

from rljob_api.spec.environment import OUTCOME_BYTES
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.dock.graph import State, StateGraph

MODEL_SCORE = "model_score"
"""Column of the reward model's scores, one a sample."""
INFERENCE_STATES = ("reward-model", "reference", "teacher", "values")
"""Those in which models score samples, on the update devices."""
TRAINING_STATES = ("critic", "update")
"""Those that train a model, there. The critic reads first, and moves when the policy does."""
TOKEN_COLUMN_BYTES = 4
RESPONSE_MASK = "response_mask"
"""Column of jobs whose samples have turns: 1 for each token of the response that the policy drew, 0 for
those of a tool's answer or an observation. Per-token columns have values of the former alone."""
OUTCOME = "outcome"
"""Column of jobs with games: how a sample's ended, as JSON in OUTCOME_BYTES at most."""


def state_graph(spec: ResolvedSpec) -> StateGraph:
    """The states of the job's algorithm, in a sample's order."""
    mask = (RESPONSE_MASK,) if spec.has_turns else ()
    task, outcome = (("task",), (OUTCOME,)) if spec.data.environment is not None else ((), ())
    update_needs = (
        "prompt",
        *mask,
        *spec.algorithm.params.response_columns,
        *spec.algorithm.params.scalars,
    )
    model_score = (MODEL_SCORE,) if spec.reward_model else ()
    known = {
        "generate": State(
            name="generate",
            needs=("prompt", *task),
            writes=("response", "rollout_logprobs", *mask, *outcome),
        ),
        "reward-model": State(
            name="reward-model", needs=("prompt", "response"), writes=(MODEL_SCORE,)
        ),
        "reward": State(
            name="reward",
            needs=("task", "response", *mask, *model_score, *outcome),
            writes=("reward",),
        ),
        "reference": State(
            name="reference", needs=("prompt", "response", *mask), writes=("reference_logprobs",)
        ),
        "teacher": State(
            name="teacher", needs=("prompt", "response", *mask), writes=("teacher_logprobs",)
        ),
        "values": State(name="values", needs=("prompt", "response", *mask), writes=("values",)),
        "update": State(name="update", needs=update_needs),
        "critic": State(name="critic", needs=update_needs),
        "compare": State(name="compare", needs=update_needs),
    }
    return StateGraph(states=tuple(known[name] for name in spec.states))


def evaluation_states(spec: ResolvedSpec) -> tuple[str, ...]:
    """Those that held-out prompts pass, and candidates of dynamic sampling; of pairs, `compare` says how well
    the policy tells them apart."""
    if spec.has_pairs:
        return ("reference", "compare")
    return tuple(s for s in spec.states if s in ("generate", "reward-model", "reward"))


def training_states(spec: ResolvedSpec) -> tuple[str, ...] | None:
    """Those that training prompts pass; None: all."""
    return tuple(s for s in spec.states if s != "compare") if spec.has_pairs else None


def written_bytes(spec: ResolvedSpec, *, states: tuple[str, ...] | None) -> int:
    """Most bytes that the states write to one row: what a warehouse keeps free for it."""
    written = {
        column
        for state in state_graph(spec).states
        if states is None or state.name in states
        for column in state.writes
    }
    scalars = {"reward", MODEL_SCORE}
    tokens = len(written - scalars - {OUTCOME}) * spec.batch.max_response_length
    outcome = OUTCOME_BYTES if OUTCOME in written else 0
    return TOKEN_COLUMN_BYTES * (tokens + len(written & scalars)) + outcome
