"""When a replica ends each of its samples: all that have room generate together, and others take free
places."""

import heapq

import numpy as np

from rljob_runtime.dock.growing import Array
from rljob_runtime.simulate.costs import Decoding


def ends(decoding: Decoding, prompts: Array, responses: Array, samples: int) -> Array:
    """Seconds from the beginning until each sample has ended. prompts, responses: tokens of each, [n], in the
    order in which they begin; `samples` that follow each other share their prompt, which is computed once."""
    shared = np.arange(len(prompts)) % samples == 0
    prompting = decoding.prompt_seconds * prompts * shared
    if len(prompts) <= decoding.room:
        return _at_once(decoding, prompts, responses) + float(prompting.sum())
    return _in_turns(decoding, prompts, responses, prompting)


def _at_once(decoding: Decoding, prompts: Array, responses: Array) -> Array:
    """All have room."""
    order = np.argsort(responses, kind="stable")
    lengths = responses[order]
    left = len(order) - np.arange(len(order))
    passes = np.diff(lengths, prepend=0)
    before = lengths - passes
    asked = prompts[order][::-1].cumsum()[::-1]  # prompt tokens of those that are left
    found = np.empty(len(order))
    found[order] = decoding.seconds(left, asked + left * before, passes).cumsum()
    return found


def _in_turns(decoding: Decoding, prompts: Array, responses: Array, prompting: Array) -> Array:
    """As `_at_once`, while others wait for a place. done: passes so far."""
    found = np.zeros(len(prompts))
    asked, wanted, first = prompts.tolist(), responses.tolist(), prompting.tolist()
    running: list[tuple[int, int]] = []
    seconds, done, context, place = 0.0, 0, 0, 0
    while running or place < len(asked):
        while place < len(asked) and len(running) < decoding.room:
            heapq.heappush(running, (done + wanted[place], place))
            context += asked[place]
            seconds += first[place]
            place += 1
        until, ended = heapq.heappop(running)
        passes, number = until - done, len(running) + 1
        if passes:
            each = max(decoding.weights_seconds, number * decoding.product_seconds)
            each += decoding.pass_seconds + number * decoding.sequence_seconds
            seen = passes * context + number * passes * (passes + 1) / 2
            seconds += passes * each + decoding.context_seconds * seen
            context += number * passes
            done = until
        context -= asked[ended] + wanted[ended]
        found[ended] = seconds
    return found
