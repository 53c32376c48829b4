"""What a device that generates waits for its prompts is told beside when it ran."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from rljob_runtime.rollout.rollout_engine import Sampling
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.worker.generate import GenerateState

LATE_SECONDS = 0.05


class Replica:
    """One device, whose share has no prompts."""

    leads, generating = True, SimpleNamespace(seconds=lambda: 0.0)

    @contextmanager
    def fail_together(self) -> Iterator[None]:
        yield

    def generate(self, *_: Any) -> None:
        pass


def claim(*_: Any, **__: Any) -> Any:
    """A claim of rows that come late."""
    time.sleep(LATE_SECONDS)
    return SimpleNamespace(rows=[])


def test_a_device_that_generates_tells_how_long_it_waited_for_prompts() -> None:
    state: Any = GenerateState(
        replica=Replica(),  # type: ignore[arg-type]
        dock=SimpleNamespace(claim=claim),  # type: ignore[arg-type]
        run_seed=0,
        prompts=1,
        timeout_seconds=1.0,
    )

    sampling = Sampling(temperature=1.0, top_p=1.0, top_k=0, max_response_length=1, eos_ids=())

    report = state.run(BatchName(kind="train", step=1), sampling, (0, 1))

    assert report.span.waited >= LATE_SECONDS
