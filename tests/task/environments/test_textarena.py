"""Real games of textarena, played by scripts."""

from collections.abc import Callable
from typing import Any

import pytest

from rljob_api.spec.environment import Environment
from rljob_runtime.task.data.games import GameItems, game_problems
from rljob_runtime.task.environments.player import GameSession, Player

arena = pytest.importorskip("textarena", reason="needs the textarena extra")

HANOI = ("A C", "A B", "C B", "A C", "B A", "B C", "A C")
Played = Callable[..., Environment]


@pytest.fixture
def textarena(environment: Played) -> Played:
    def make(game: str, **params: Any) -> Environment:
        return environment("textarena", params={"game": game, **params})

    return make


def played(environment: Environment, seed: int, *moves: str) -> list[Any]:
    player = Player(environment)
    try:
        session = GameSession(name="one", seed=seed)
        found = []
        for move in moves:
            found.append(player.move(session, move))
            if found[-1].done:
                break
        return found
    finally:
        player.end()


def test_halving_the_range_finds_the_number(textarena: Played) -> None:
    environment = textarena("GuessTheNumber-v0")
    player, session = Player(environment), GameSession(name="one", seed=11)
    low, high = 1, 20
    try:
        while True:
            guess = (low + high) // 2
            moved = player.move(session, f"I say [{guess}].")
            if moved.done:
                break
            assert ("higher" in moved.observation) != ("lower" in moved.observation)
            low, high = (guess + 1, high) if "higher" in moved.observation else (low, guess - 1)
    finally:
        player.end()

    assert (moved.reward, moved.error) == (1.0, "")


def test_the_tower_is_moved_in_the_fewest_moves(textarena: Played) -> None:
    found = played(textarena("TowerOfHanoi-v0"), 1, *(f"[{move}]" for move in HANOI))

    assert [moved.done for moved in found] == [False] * 6 + [True]
    assert [moved.reward for moved in found] == [0.0] * 6 + [1.0]


def test_a_player_reads_the_game_once_and_never_itself(textarena: Played) -> None:
    first = GameItems(textarena("TowerOfHanoi-v0"))[1].fields["question"]
    one, two = played(textarena("TowerOfHanoi-v0"), 1, "my move: [A C]", "my move: [A B]")

    assert "You are playing Tower of Hanoi with 3 disks." in first and "A: [3, 2, 1]" in first
    assert one.observation.startswith("\nYou moved disk 1 from A to C.\n")
    assert "my move" not in one.observation + two.observation
    assert "disk 1" not in two.observation


def test_a_second_illegal_move_costs_what_the_game_says(textarena: Played) -> None:
    environment = textarena("TowerOfHanoi-v0")

    found = played(environment, 1, "[A C]", "[A C]", "nothing")

    assert [moved.done for moved in found] == [False, False, True]
    assert "invalid move" in found[1].observation
    assert found[2].reward == 0.0  # credit for disks in place


@pytest.mark.parametrize(
    "game",
    [
        "GuessTheNumber-v0",
        "Mastermind-v0",
        "Minesweeper-v0-small",
        "FrozenLake-v0",
        "LightsOut-v0",
        "2048-v0-3x3",
    ],
)
def test_a_game_is_the_same_for_each_of_its_seed(textarena: Played, game: str) -> None:
    environment = textarena(game)
    moves = ("[1]", "[reveal 1 1] [1 2 3 4] [up]", "[right]", "[down]")

    first, second = (played(environment, 5, *moves) for _ in range(2))

    assert [(m.observation, m.reward, m.done) for m in first] == [
        (m.observation, m.reward, m.done) for m in second
    ]
    assert not any(moved.error for moved in first)


@pytest.mark.parametrize(
    ("game", "params", "told"),
    [
        ("GuessNumber-v9", {}, "is 'GuessNumber-v9', which textarena"),
        ("TicTacToe-v0", {}, "is 'TicTacToe-v0', which is not for one player"),
        ("TowerOfHanoi-v0", {"disks": 4}, "TowerOfHanoi-v0 refuses them"),
    ],
)
def test_a_game_that_cannot_be_played_is_refused(
    textarena: Played, game: str, params: dict[str, Any], told: str
) -> None:
    (problem,) = game_problems(textarena(game, **params))

    assert told in problem.message
