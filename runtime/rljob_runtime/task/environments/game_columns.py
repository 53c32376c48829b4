"""Games in the dock: a prompt's game out of its task, and how a sample's ended. Called by the generate state,
by the data source and by the reward worker."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_api.spec.environment import OUTCOME_BYTES, Environment
from rljob_runtime.task.environments.environment import MAX_ERROR_CHARACTERS, GameSeed, Outcome


def game_entry(game: GameSeed) -> dict[str, Any]:
    """The item of a prompt that is a game, as `RewardRequest.entry` has it."""
    return {"environment": game.environment.model_dump(by_alias=True), "seed": game.seed}


def game_of(task: NDArray[Any]) -> GameSeed:
    """The game of a prompt's column `task`."""
    entry = json.loads(task.tobytes())["entry"]
    environment = Environment.model_validate(entry["environment"])
    return GameSeed(environment=environment, seed=entry["seed"])


def outcome_row(outcome: Outcome | None) -> NDArray[np.uint8]:
    """The column of a sample's outcome."""
    assert outcome is not None, "every sample of a job with an environment plays a game"
    shown = outcome.error[:MAX_ERROR_CHARACTERS]
    error = "".join(sign if sign.isprintable() else " " for sign in shown)
    text = json.dumps({"reward": outcome.reward, "error": error}, ensure_ascii=False).encode()
    assert len(text) <= OUTCOME_BYTES, "an outcome fits its column"
    return np.frombuffer(text, dtype=np.uint8)


def outcome_of(content: bytes) -> tuple[float, str]:
    """The reward of a sample's game and its error, empty where there is none, from that column."""
    kept = json.loads(content)
    return float(kept["reward"]), str(kept["error"])
