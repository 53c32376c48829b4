"""Convert games to and from dock columns: a prompt's game in its task, and a sample's outcome. Called
by the generate state, the data source and the reward worker."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_api.spec.environment import OUTCOME_BYTES, Environment
from rljob_runtime.task.environments.environment import MAX_ERROR_CHARACTERS, GameSeed, Outcome


def game_entry(game: GameSeed) -> dict[str, Any]:
    """Return the item of a prompt that is a game, in the form of `RewardRequest.entry`."""
    return {"environment": game.environment.model_dump(by_alias=True), "seed": game.seed}


def game_of(task: NDArray[Any]) -> GameSeed:
    """Return the game in a prompt's column `task`."""
    entry = json.loads(task.tobytes())["entry"]
    environment = Environment.model_validate(entry["environment"])
    return GameSeed(environment=environment, seed=entry["seed"])


def outcome_row(outcome: Outcome | None) -> NDArray[np.uint8]:
    """Return the column with a sample's outcome."""
    assert outcome is not None, "every sample of a job with an environment plays a game"
    shown = outcome.error[:MAX_ERROR_CHARACTERS]
    error = "".join(sign if sign.isprintable() else " " for sign in shown)
    text = json.dumps({"reward": outcome.reward, "error": error}, ensure_ascii=False).encode()
    assert len(text) <= OUTCOME_BYTES, "an outcome fits its column"
    return np.frombuffer(text, dtype=np.uint8)


def outcome_of(content: bytes) -> tuple[float, str]:
    """Return the reward of a sample's game and its error, or an empty text, from that column."""
    fields = json.loads(content)
    return float(fields["reward"]), str(fields["error"])
