"""What an agent asked becomes one sample, token by token as it was put and drawn."""

from typing import Any

import pytest
from agent_samples import ASK, draw, request, session
from game_samples import Letters
from syllables import ENDS

from rljob_runtime.task.agents.agent_pool import Played
from rljob_runtime.task.agents.chat_request import RequestRefused

END = ENDS[0]
ids = Letters().plain


def test_a_request_that_repeats_an_answer_goes_on_behind_its_tokens() -> None:
    asked = session()
    first, _ = asked.ask(request("AB"))
    draw(asked, first, "CD")

    second, is_new = asked.ask(request("AB", " CD\n", "E"))  # spaces come and go in agents
    draw(asked, second, "F", version=3)
    asked.played = Played(reward=2.0, seconds=1.5)
    whole = asked.to_generated()

    assert is_new and second.parent is first
    assert second.seed == first.seed == 77
    assert whole.token_ids == [*ids("AB"), ASK, *ids("CD"), END, *ids("E"), ASK, *ids("F"), END]
    assert whole.drawn == [False] * 3 + [True] * 3 + [False] * 2 + [True] * 2
    assert whole.logprobs == [-1.0] * 3 + [-2.0] * 2
    assert whole.versions == [0] * 3 + [3] * 2
    assert (whole.turns, whole.ends, whole.finish) == (2, [6, 10], "stop")
    assert whole.outcome is not None
    assert (whole.outcome.reward, whole.outcome.error) == (2.0, "")


def test_an_answer_that_a_limit_cut_is_closed_by_the_template_and_not_by_the_policy() -> None:
    asked = session()
    first, _ = asked.ask(request("A", max_tokens=2))
    draw(asked, first, "CD", ended=False)

    second, _ = asked.ask(request("A", "CD", "E"))

    assert asked.group_of(first).budget == 2
    assert second.inserted == [END, *ids("E"), ASK]


@pytest.mark.parametrize(
    ("texts", "behind"),
    [
        (("AB", "CD", "X"), 0),  # another message behind an answer that has one
        (("AB",), None),  # the same once more
        (("AB", "changed", "E"), None),  # an answer that was never given
        (("Z",), None),
    ],
)
def test_what_goes_another_way_is_a_branch_with_noise_of_its_own(
    texts: tuple[str, ...], behind: int | None
) -> None:
    asked = session()
    first, _ = asked.ask(request("AB"))
    draw(asked, first, "CD")
    second, _ = asked.ask(request("AB", "CD", "E"))
    draw(asked, second, "F")

    branch, is_new = asked.ask(request(*texts))

    assert is_new
    assert branch.parent is (asked.turns[behind] if behind is not None else None)
    assert branch.seed not in (first.seed, second.seed)
    draw(asked, branch, "GHI")
    assert asked.left_out == (2 if behind is not None else 5)  # with end tokens
    asked.played = Played()
    assert asked.to_generated().token_ids == branch.tokens


def test_what_a_client_asks_again_has_the_answer_that_it_would_have_had() -> None:
    asked = session()
    first, _ = asked.ask(request("AB"))

    before = asked.ask(request("AB", retry=True))
    draw(asked, first, "CD")
    after = asked.ask(request("AB", retry=True))
    lost = asked.ask(request("Q", retry=True))

    assert before == after == (first, False)
    assert lost[1]


def test_another_list_of_tools_begins_the_conversation_anew() -> None:
    asked = session()
    first, _ = asked.ask(request("AB"))
    draw(asked, first, "CD")

    second, _ = asked.ask(request("AB", "CD", "E", tools=[{"type": "function"}]))

    assert second.parent is None
    assert second.inserted == [*ids("AB"), *ids("CD"), END, *ids("E"), ASK]


@pytest.mark.parametrize(
    ("changes", "texts", "code", "finish"),
    [
        ({"most_turns": 1}, ("AB", "CD", "E"), "max_turns", "turns"),
        ({"most_tokens": 8}, ("AB", "CD", "E"), "context_length_exceeded", "length"),
    ],
)
def test_a_session_at_its_limit_is_cut_and_has_not_failed(
    changes: dict[str, Any], texts: tuple[str, ...], code: str, finish: str
) -> None:
    asked = session(**changes)
    first, _ = asked.ask(request("AB"))
    draw(asked, first, "CD")

    with pytest.raises(RequestRefused) as refused:
        asked.ask(request(*texts))
    asked.played = Played(error="BadRequestError: " + code)
    whole = asked.to_generated()

    assert refused.value.body["error"]["code"] == code
    assert whole.finish == finish
    assert whole.outcome is not None and not whole.outcome.error


def test_a_reward_that_nobody_returned_is_an_error_where_it_is_wanted() -> None:
    for scored, error in ((True, "returned None"), (False, "")):
        asked = session(scored=scored)
        draw(asked, asked.ask(request("A"))[0], "B")
        asked.played = Played()
        outcome = asked.to_generated().outcome
        assert outcome is not None
        assert (error in outcome.error) and bool(outcome.error) == bool(error)
