"""Engines, a reward and a data source of one's own, as small as each can be.

Both engines wrap the built-in `torch` and write a line for each call to the file `params.log`; yours
may compute whatever they want behind the same methods. What each method promises is written in
`rljob_runtime.rollout.rollout_engine` and `rljob_runtime.update.update_engine`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from torch import Tensor

from rljob_runtime.rollout import rollout_table
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, RolloutSetup, Sampling
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.task.rewards.requests import RewardRequest
from rljob_runtime.update import update_table
from rljob_runtime.update.accumulation import LossFn
from rljob_runtime.update.update_engine import UpdateSetup


class LoggedRollout:
    """`rollout.engine: example.logged`."""

    def __init__(self, setup: RolloutSetup) -> None:
        self._inner = rollout_table.make_torch(setup)
        self._log = Path(str(setup.params["log"]))

    @property
    def version(self) -> int:
        return self._inner.version

    def generate(
        self, groups: Sequence[PromptGroup], sampling: Sampling
    ) -> Iterator[list[Generated]]:
        samples = tokens = 0
        for finished in self._inner.generate(groups, sampling):
            samples += len(finished)
            tokens += sum(len(sample.token_ids) for sample in finished)
            yield finished
        _write(self._log, f"rollout version={self.version} samples={samples} tokens={tokens}")

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        self._inner.load_weights(weights, version=version)

    def checksum(self) -> str:
        return self._inner.checksum()

    def sleep(self) -> None:
        self._inner.sleep()

    def wake(self) -> None:
        self._inner.wake()


class LoggedUpdate:
    """`update.engine: example.logged`."""

    def __init__(self, setup: UpdateSetup) -> None:
        self._inner = update_table.make_torch(setup)
        self._log = Path(str(setup.params["log"]))

    @property
    def step(self) -> int:
        return self._inner.step

    @property
    def version(self) -> int:
        return self._inner.version

    def logprobs(self, batch: SampleBatch) -> Tensor:
        return self._inner.logprobs(batch)

    def begin(self, loss: LossFn) -> Any:
        return self._inner.begin(loss)

    def finish(
        self, begun: Any, *, groups_with_signal: int, min_groups_with_signal: int = 0
    ) -> dict[str, float]:
        metrics = self._inner.finish(
            begun,
            groups_with_signal=groups_with_signal,
            min_groups_with_signal=min_groups_with_signal,
        )
        _write(self._log, f"update step={self.step} loss={metrics['loss']:.6f}")
        return metrics

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        return self._inner.weights()

    def state_dict(self) -> dict[str, Tensor]:
        return self._inner.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._inner.load_state_dict(state)


def make_prefix(
    params: Mapping[str, JsonValue], base_dir: Path
) -> Callable[[RewardRequest], float]:
    """`type: example.prefix`: the share of the answer that a response begins with."""
    ignore_case = bool(params.get("ignoreCase", False))

    def score(request: RewardRequest) -> float:
        response, answer = request.response, request.answer
        if ignore_case:
            response, answer = response.lower(), answer.lower()
        length = 0
        while length < min(len(response), len(answer)) and response[length] == answer[length]:
            length += 1
        return length / max(len(answer), 1)

    return score


def make_counting(params: Mapping[str, JsonValue], base_dir: Path) -> Iterable[dict[str, str]]:
    """`data.source: {name: example.counting}`: which number follows; the same items every time."""
    upto = params.get("upTo", 100)
    if not isinstance(upto, int) or upto < 1:
        raise ValueError(f"params.upTo is {upto!r}; it must be a whole number, at least 1")
    return ({"question": f"{i}+1=", "answer": str(i + 1)} for i in range(upto))


def _write(log: Path, line: str) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")
