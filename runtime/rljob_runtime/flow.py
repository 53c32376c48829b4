"""The dataflow of a job: which states a sample passes and which columns each needs and writes.

Derived from the algorithm; given to the dock's servers when they start.
"""

from rljob_api.algorithms import grpo
from rljob_api.rljob import RLJobSpec
from rljob_runtime.dock.graph import State, StateGraph

EVALUATION_STATES = ("generate", "reward")
TOKEN_COLUMN_BYTES = 4


def state_graph(spec: RLJobSpec) -> StateGraph:
    """The states of the job's algorithm, in a sample's order."""
    update_needs = (
        "prompt",
        *grpo.response_columns(spec.algorithm.params),
        *grpo.scalar_columns(spec.algorithm.params),
    )
    known = {
        "generate": State(
            name="generate", needs=("prompt",), writes=("response", "rollout_logprobs")
        ),
        "reward": State(name="reward", needs=("task", "response"), writes=("reward",)),
        "reference": State(
            name="reference", needs=("prompt", "response"), writes=("reference_logprobs",)
        ),
        "update": State(name="update", needs=update_needs),
    }
    return StateGraph(states=tuple(known[name] for name in grpo.states(spec.algorithm.params)))


def written_bytes(spec: RLJobSpec, *, states: tuple[str, ...] | None) -> int:
    """Most bytes that the states write to one row: what a warehouse keeps free for it."""
    written = {
        column
        for state in state_graph(spec).states
        if states is None or state.name in states
        for column in state.writes
    }
    scalars = {"reward"}
    tokens = len(written - scalars) * spec.batch.max_response_length
    return TOKEN_COLUMN_BYTES * (tokens + len(written & scalars))
