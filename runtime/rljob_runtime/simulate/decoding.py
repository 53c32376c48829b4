"""When a replica ends each of its samples: as many as fit generate concurrently, and others take freed
slots."""

import heapq

import numpy as np

from rljob_runtime.dock.growing import Array
from rljob_runtime.simulate.costs import Decoding


def ends(decoding: Decoding, prompts: Array, responses: Array, samples: int) -> Array:
    """Return the seconds from the beginning until each sample has ended.

    prompts, responses: tokens of each, [n], in the order in which they begin; `samples` consecutive ones
    share their prompt, which is computed once.
    """
    shared = np.arange(len(prompts)) % samples == 0
    prompting = decoding.prompt_seconds * prompts * shared
    if len(prompts) <= decoding.room:
        return _all_concurrent(decoding, prompts, responses) + float(prompting.sum())
    return _with_queue(decoding, prompts, responses, prompting)


def _all_concurrent(decoding: Decoding, prompts: Array, responses: Array) -> Array:
    """Return the end times if all samples fit concurrently."""
    order = np.argsort(responses, kind="stable")
    lengths = responses[order]
    unfinished = len(order) - np.arange(len(order))
    passes = np.diff(lengths, prepend=0)
    before = lengths - passes
    prompt_tokens = prompts[order][::-1].cumsum()[::-1]  # prompt tokens of the unfinished samples
    end_seconds = np.empty(len(order))
    end_seconds[order] = decoding.seconds(
        unfinished, prompt_tokens + unfinished * before, passes
    ).cumsum()
    return end_seconds


def _with_queue(decoding: Decoding, prompts: Array, responses: Array, prompting: Array) -> Array:
    """Return the end times if some samples wait for a slot."""
    end_seconds = np.zeros(len(prompts))
    prompt_tokens, response_tokens, prompt_seconds = (
        prompts.tolist(),
        responses.tolist(),
        prompting.tolist(),
    )
    running: list[tuple[int, int]] = []
    seconds, passes_done, context, next_sample = 0.0, 0, 0, 0
    while running or next_sample < len(prompt_tokens):
        while next_sample < len(prompt_tokens) and len(running) < decoding.room:
            heapq.heappush(running, (passes_done + response_tokens[next_sample], next_sample))
            context += prompt_tokens[next_sample]
            seconds += prompt_seconds[next_sample]
            next_sample += 1
        until, ended = heapq.heappop(running)
        passes, number = until - passes_done, len(running) + 1
        if passes:
            seconds_per_pass = max(decoding.weights_seconds, number * decoding.product_seconds)
            seconds_per_pass += decoding.pass_seconds + number * decoding.sequence_seconds
            attended_tokens = passes * context + number * passes * (passes + 1) / 2
            seconds += passes * seconds_per_pass + decoding.context_seconds * attended_tokens
            context += number * passes
            passes_done = until
        context -= prompt_tokens[ended] + response_tokens[ended]
        end_seconds[ended] = seconds
    return end_seconds
