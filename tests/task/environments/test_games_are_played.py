"""Games live in processes of their own, one a sample, whatever happens there."""

import queue
import sys
from collections.abc import Callable

import pytest

from rljob_api.spec.environment import Environment
from rljob_runtime.errors import ConfigError
from rljob_runtime.task.environments.environment import GameSeed, Moved
from rljob_runtime.task.environments.environment_table import game_maker
from rljob_runtime.task.environments.game_pool import GamePool, OpenGame
from rljob_runtime.task.environments.player import GameSession, Player

MakeEnvironment = Callable[..., Environment]
Pools = Callable[..., GamePool]


def moved(game: OpenGame, *texts: str) -> list[Moved]:
    answers: queue.SimpleQueue[Moved] = queue.SimpleQueue()
    found = []
    for text in texts:
        game.move(text, answers.put)
        found.append(answers.get(timeout=240))
    return found


def begun(pool: GamePool, environment: Environment, *seeds: int) -> list[OpenGame]:
    return [pool.begin(GameSeed(environment=environment, seed=seed)) for seed in seeds]


def test_a_game_goes_on_until_it_says_that_it_is_done(
    environment: MakeEnvironment, pools: Pools
) -> None:
    countdown = environment()
    (game,) = begun(pools(countdown), countdown, 2)  # three moves

    found = moved(game, "2", "wrong", "0")

    assert [(m.observation, m.reward, m.done) for m in found] == [
        ("2:", 1.0, False), ("1:", -0.5, False), ("0:", 1.0, True),
    ]  # fmt: skip
    assert all(m.seconds > 0 and not m.error for m in found)


def test_a_game_is_played_on_behind_the_moves_that_were_made_elsewhere(
    environment: MakeEnvironment, pools: Pools
) -> None:
    dice = environment("acme.dice")
    (alone,) = begun(pools(dice), dice, 5)
    expected = [m.observation for m in moved(alone, "a", "b", "c")]

    other = pools(dice).begin(GameSeed(environment=dice, seed=5), ["a", "b"])

    assert [m.observation for m in moved(other, "c")] == expected[2:]


def test_games_of_one_seed_are_the_same_however_their_moves_mix(
    environment: MakeEnvironment, pools: Pools
) -> None:
    dice = environment("acme.dice")
    pool = pools(dice)
    alone, other = begun(pool, dice, 5, 6)
    expected = [m.observation for m in moved(alone, "a", "b", "c")]

    first, second = begun(pool, dice, 5, 5)
    mixed = [
        (moved(first, text)[0].observation, moved(second, text)[0].observation)
        for text in "abc"
        if moved(other, text)
    ]

    assert mixed == [(seen, seen) for seen in expected]
    assert moved(*begun(pool, dice, 6), "a")[0].observation != expected[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("die", "ended its process with exit status 7"),
        ("raise", "RuntimeError: no such move"),
        ("nan", "the reward nan; it must be a finite number"),
        ("half", r"the observation has half of a surrogate pair, '\udc00' at character 1"),
    ],
)
def test_a_game_that_fails_ends_alone_and_says_why(
    environment: MakeEnvironment, pools: Pools, text: str, told: str
) -> None:
    countdown = environment()
    broken, whole = begun(pools(countdown), countdown, 2, 2)
    moved(whole, "2")

    (failed,) = moved(broken, text)

    assert told in failed.error
    assert [(m.observation, m.done, m.error) for m in moved(whole, "1", "0")] == [
        ("1:", False, ""), ("0:", True, ""),
    ]  # fmt: skip


def test_a_move_beyond_its_deadline_ends_its_game_and_others_are_played_again(
    environment: MakeEnvironment, pools: Pools
) -> None:
    dice, slow = environment("acme.dice"), environment(timeout_seconds=4.0)
    pool = pools(slow, dice)
    hung, other = begun(pool, slow, 2, 2)
    moved(other, "2")

    (failed,) = moved(hung, "sleep")

    assert "took longer than 4 s" in failed.error
    assert moved(other, "1")[0].observation == "1:"


def test_a_game_that_does_not_repeat_is_told_when_it_is_played_again(
    environment: MakeEnvironment,
) -> None:
    player = Player(environment("acme.clock"))
    session = GameSession(name="one", seed=1)
    try:
        assert not player.move(session, "a").error
        player.end()  # as if it had been killed for another game

        lost = player.move(session, "b")
    finally:
        player.end()

    assert "seed 1 and the same 0 moves gave another observation" in lost.error


def test_a_killed_process_is_replaced_and_its_games_go_on_where_they_were(
    environment: MakeEnvironment,
) -> None:
    player = Player(environment("acme.dice"))
    untouched, killed = GameSession(name="one", seed=3), GameSession(name="two", seed=3)
    try:
        expected = [player.move(untouched, text).observation for text in "abcd"]
        before = [player.move(killed, text).observation for text in "ab"]
        player.end()

        after = [player.move(killed, text).observation for text in "cd"]
    finally:
        player.end()

    assert before + after == expected


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("acme.broken", "ValueError: no board"),
        ("acme.chess", r"'acme.chess', which no package .*rljob.environments"),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused_at_the_start(
    environment: MakeEnvironment, name: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        GamePool([environment(name)])


def test_first_observations_and_demonstrations_come_for_many_seeds_at_once(
    environment: MakeEnvironment,
) -> None:
    player = Player(environment())
    try:
        assert player.firsts(range(4)) == ["1:", "2:", "3:", "1:"]
        assert player.demonstrations([1, 0]) == [[("1", "1:"), ("0", "")], [("0", "")]]
    finally:
        player.end()


def test_textarena_that_is_not_installed_is_refused_with_the_remedy(
    environment: MakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "textarena", None)

    with pytest.raises(ConfigError, match=r"pip install 'rljob\[textarena\]' where the job runs"):
        game_maker(environment("textarena", params={"game": "Mastermind-v0"}))
