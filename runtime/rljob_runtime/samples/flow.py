"""The dataflow of a job: which states a sample passes and which columns each reads and writes.

It is derived from the algorithm, and passed to the dock's servers when they start.
"""

import math
from pathlib import Path

from rljob_api.model.architecture import find_shape
from rljob_api.spec.environment import OUTCOME_BYTES
from rljob_api.spec.workload import Model
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.dock.graph import State, StateGraph

MODEL_SCORE = "model_score"
"""Column of the reward model's scores, one a sample."""
INFERENCE_STATES = ("reward-model", "reference", "teacher", "values")
"""States in which models score samples, on the update devices."""
TRAINING_STATES = ("critic", "update")
"""States that train a model, on the update devices. The critic reads first, and is updated together with the
policy."""
TOKEN_COLUMN_BYTES = 4
RESPONSE_MASK = "response_mask"
"""Column of jobs whose samples have turns: 1 for each token of the response that the policy drew, 0 for those
of a tool's answer or an observation. Per-token columns only have values for the former."""
ROUTES = "routed_experts"
"""Column of jobs that replay the rollout's routes: the experts of the tokens of prompt and response, except
for the last one, as bytes packed by `models.routes`."""
PICTURE_COLUMNS = ("pixels", "picture_sizes")
"""Columns of jobs whose prompts show pictures, once a group: the 8-bit values of all pictures, concatenated,
and height and width of each."""
PASSED = "passed"
"""Column of jobs with a difficulty filter: the result of a sample's first reward (`passed_rows`)."""
OUTCOME = "outcome"
"""Column of jobs with games or agents: the outcome of a sample's game or session, as JSON in OUTCOME_BYTES at
most."""
EXCLUDED = math.nan
"""Value in the column of rewards: the sample counts in no mean, advantage or loss."""


def counts(reward: float) -> bool:
    """Return whether a sample with this reward counts."""
    return not math.isnan(reward)


def state_graph(spec: ResolvedSpec) -> StateGraph:
    """Return the states of the job's algorithm, in the order in which a sample passes them."""
    mask = (RESPONSE_MASK,) if spec.has_turns else ()
    task, outcome = (("task",), (OUTCOME,)) if spec.has_outcomes else ((), ())
    prompt = ("prompt", *PICTURE_COLUMNS) if spec.model.vision else ("prompt",)
    passed = (PASSED,) if spec.data.difficulty_filter is not None else ()
    routes = (ROUTES,) if spec.update.router_replay else ()
    update_needs = (
        *prompt,
        *mask,
        *spec.algorithm.params.response_columns,
        *spec.algorithm.params.scalars,
        *passed,
    )
    model_score = (MODEL_SCORE,) if spec.reward_model else ()
    state_by_name = {
        "generate": State(
            name="generate",
            needs=(*prompt, *task),
            writes=("response", "rollout_logprobs", *mask, *routes, *outcome),
        ),
        "reward-model": State(
            name="reward-model", needs=("prompt", "response"), writes=(MODEL_SCORE,)
        ),
        "reward": State(
            name="reward",
            needs=("task", "response", *mask, *model_score, *outcome),
            writes=("reward", *passed),
        ),
        "reference": State(
            name="reference", needs=(*prompt, "response", *mask), writes=("reference_logprobs",)
        ),
        "teacher": State(
            name="teacher", needs=(*prompt, "response", *mask), writes=("teacher_logprobs",)
        ),
        "values": State(name="values", needs=(*prompt, "response", *mask), writes=("values",)),
        "update": State(name="update", needs=(*update_needs, *routes)),
        "critic": State(name="critic", needs=update_needs),
        "compare": State(name="compare", needs=update_needs),
    }
    return StateGraph(states=tuple(state_by_name[name] for name in spec.states))


def evaluation_states(spec: ResolvedSpec) -> tuple[str, ...]:
    """Return the states that held-out prompts and candidates of dynamic sampling pass. For pairs, `compare`
    measures how well the policy separates them."""
    if spec.has_pairs:
        return ("reference", "compare")
    return tuple(s for s in spec.states if s in ("generate", "reward-model", "reward"))


def training_states(spec: ResolvedSpec) -> tuple[str, ...] | None:
    """Return the states that training prompts pass; None: all."""
    return tuple(s for s in spec.states if s != "compare") if spec.has_pairs else None


def route_bytes(spec: ResolvedSpec, model: Path) -> int:
    """Return the bytes of a token's routes in the dock; 0 if routes are not stored. model: the policy's
    directory."""
    if not spec.update.router_replay:
        return 0
    shape = find_shape(Model(path=str(model)), base_dir=Path())
    assert shape is not None, "a rule refuses to replay routes of a model of unknown shape"
    return shape.route_bytes


def written_bytes(
    spec: ResolvedSpec, *, states: tuple[str, ...] | None, route_bytes: int = 0
) -> int:
    """Return the most bytes that the states write to one row, which a warehouse reserves for it. route_bytes:
    of a token's routes, if they are stored."""
    written = {
        column
        for state in state_graph(spec).states
        if states is None or state.name in states
        for column in state.writes
    }
    scalars = {"reward", MODEL_SCORE, PASSED}
    tokens = len(written - scalars - {OUTCOME, ROUTES}) * spec.batch.max_response_length
    others = OUTCOME_BYTES if OUTCOME in written else 0
    if ROUTES in written:
        others += route_bytes * (spec.batch.max_prompt_length + spec.batch.max_response_length)
    return TOKEN_COLUMN_BYTES * (tokens + len(written & scalars)) + others
