"""What a step's event tells of the tokens of its samples: few bytes, the best and the worst first."""

import json

from rljob_runtime.record.events import plain
from rljob_runtime.record.shown_tokens import GROUP_BYTES, MOST_TOKENS, Response, shown_tokens
from rljob_runtime.task.tokenizer import EOS_ID, ByteTokenizer

TEXTS = ByteTokenizer().texts


def response(text: str, *, versions: tuple[int, ...] = ()) -> Response:
    ids = [*text.encode(), EOS_ID]
    logprobs = [-0.123456 * place for place in range(len(ids))]
    drawn = [True] * len(ids)
    return Response(ids=ids, drawn=drawn, logprobs=logprobs, version=3, versions=versions)


def bytes_of(told: object) -> int:
    return len(
        json.dumps({"tokens": plain(told)}, ensure_ascii=False, separators=(",", ":")).encode()
    )


def test_a_short_groups_tokens_are_told_with_texts_and_logprobs() -> None:
    told = shown_tokens([response("ab"), response("")], [1.0, 0.0], texts=TEXTS)

    assert plain(told) == [
        {
            "ids": [97, 98, 258],
            "texts": ["a", "b", "<eos>"],
            "logprobs": [0.0, -0.1235, -0.2469],
            "version": 3,
        },
        {"ids": [258], "texts": ["<eos>"], "logprobs": [0.0], "version": 3},
    ]


def test_tokens_of_several_versions_are_told_in_runs() -> None:
    [told] = shown_tokens([response("abcd", versions=(3, 3, 3, 5, 5))], [1.0], texts=TEXTS)

    assert told is not None
    assert told.versions == [(3, 3), (5, 2)]


def test_what_a_tool_answered_has_neither_logprob_nor_version() -> None:
    mixed = Response(
        ids=[97, 98, 99],
        drawn=[True, False, True],
        logprobs=[-1.0, -2.0],
        version=3,
        versions=[3, 3],
    )

    [told] = shown_tokens([mixed], [1.0], texts=TEXTS)

    assert told is not None
    assert told.logprobs == [-1.0, None, -2.0]
    assert told.versions == [(3, 1), (None, 1), (3, 1)]


def test_of_long_responses_the_best_and_the_worst_are_told_first_within_the_bytes() -> None:
    group = [response("é" * 400, versions=(3,) * 801)] * 6
    rewards = [0.5, 0.2, 0.9, 0.4, 0.1, 0.3]

    told = shown_tokens(group, rewards, texts=TEXTS)

    assert told[2] is not None and len(told[2].ids) == MOST_TOKENS
    assert told[4] is not None
    assert GROUP_BYTES / 2 < sum(bytes_of(tokens) for tokens in told if tokens) <= GROUP_BYTES


def test_a_group_of_many_short_responses_stays_within_the_bytes_too() -> None:
    group = [response(f"answer {place}", versions=(3,) * 12) for place in range(64)]

    told = shown_tokens(group, [float(place) for place in range(64)], texts=TEXTS)

    assert told[63] is not None and told[0] is not None
    assert sum(bytes_of(tokens) for tokens in told if tokens) <= GROUP_BYTES


def test_no_bytes_are_told_of_an_empty_response() -> None:
    empty = Response(ids=[], drawn=[], logprobs=[], version=3)

    assert shown_tokens([empty], [0.0], texts=TEXTS) == [None]
