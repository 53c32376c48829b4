"""Stand-ins for the workers that have no device: the feeder of prompts, the rewards, the dock's servers."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.stats import DockTraffic
from rljob_runtime.processes.actors.reward_worker import CLAIM_ROWS, RewardReport
from rljob_runtime.record.spans import StageSpan
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import (
    PICTURE_COLUMNS,
    evaluation_states,
    training_states,
    written_bytes,
)
from rljob_runtime.simulate.dock import SimulatedDock
from rljob_runtime.simulate.virtual_clock import Work
from rljob_runtime.simulate.world import ITEM_BYTES, SimulatedWorld

MANY = 1_000_000
"""Number of training prompts."""
MOST_CLAIMS = 128
"""Maximum claims of a batch's rewards; a real run always claims CLAIM_ROWS at a time."""
TASK_VALUES = 256
"""Values of the column with a prompt's task, in bytes."""


class SimulatedFeeder:
    """Puts the prompts of each step into the dock."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self._traffic = DockTraffic()

    def facts(self) -> dict[str, int]:
        """Return the number of training prompts."""
        return {"train_size": MANY}

    def feed(self, batch: BatchName, version: int, positions: Sequence[int] = ()) -> int:
        """Put the batch's rows; repeating a call changes nothing."""
        world, spec = self._world, self._world.spec
        states = training_states(spec) if batch.kind == "train" else evaluation_states(spec)
        groups, samples = world.sizes(batch)
        prompts_G = world.draws_of(batch).prompts_G
        num_rows = world.dock.put(
            str(batch),
            total=groups * samples,
            states=states,
            version=version,
            indexes_G=np.arange(groups),
            samples=samples,
            lengths={"prompt": prompts_G, "task": np.full(groups, TASK_VALUES)}
            | self._pictures(groups, samples),
            reserve=written_bytes(spec, states=states),
            names=[batch.row(prompt, i) for prompt in range(groups) for i in range(samples)],
            groups=[batch.group(prompt) for prompt in range(groups)],
        )
        self._traffic.rows += num_rows
        self._traffic.bytes_written += 4 * int(prompts_G.sum()) + groups * TASK_VALUES
        return num_rows

    def _pictures(self, groups: int, samples: int) -> dict[str, Array]:
        """Return the picture columns of jobs that have any.

        Pictures are moved once per group: each row has its share of the bytes.
        """
        spec = self._world.spec
        if not spec.model.vision:
            return {}
        num_bytes = 3 * spec.data.most_pixels(spec.batch.max_prompt_length)
        values = -(-num_bytes // (ITEM_BYTES * samples))
        return {
            name: np.full(groups, count)
            for name, count in zip(PICTURE_COLUMNS, (values, 2), strict=True)
        }

    def drop(self, batch: BatchName) -> int:
        """Free the batch's rows in the dock."""
        return self._world.dock.drop(str(batch))

    def traffic(self) -> dict[str, DockTraffic]:
        """Return what it moved since the last call."""
        taken, self._traffic = self._traffic, DockTraffic()
        return {"feed": taken}


class SimulatedRewards:
    """Scores groups until the batch is done."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self._traffic = DockTraffic()

    def score(self, batch: BatchName) -> Work:
        """Score whole groups as they arrive."""
        world, draws, report = self._world, self._world.draws_of(batch), RewardReport()
        groups, samples = world.sizes(batch)
        limit = max(CLAIM_ROWS, groups * samples // MOST_CLAIMS) if world.streams else None
        first, waited = None, 0.0
        while True:
            asked_seconds = world.clock.seconds
            claimed, waits = yield world.dock.claim(
                "reward", str(batch), owner="reward-0", limit=limit, whole_groups=True
            )
            self._traffic.wait_seconds += world.clock.seconds - asked_seconds
            self._traffic.count_waits(waits)
            if claimed.done:
                break
            if first is None:
                first = world.clock.unix_seconds()
            else:
                waited += world.clock.seconds - asked_seconds
            index = claimed.index_n, claimed.sample_n
            yield float(draws.seconds_GN[index].sum()) / world.costs.rewards.at_a_time
            world.dock.write("reward", claimed, {"reward": np.ones(claimed.count, dtype=np.int64)})
            self._count(claimed.count, int(claimed.lengths["response"].sum()))
            self._report(report, claimed.index_n, draws.passed_GN[index])
        time_s = world.clock.unix_seconds()
        report.span = StageSpan(start=first or time_s, end=time_s, waited=waited)
        return report

    def traffic(self) -> dict[str, DockTraffic]:
        """Return what it moved since the last call."""
        taken, self._traffic = self._traffic, DockTraffic()
        return {"reward": taken}

    def _count(self, rows: int, tokens: int) -> None:
        self._traffic.rows += rows
        self._traffic.rows_read["response"] += rows
        self._traffic.bytes_read["response"] += 4 * tokens
        self._traffic.bytes_written += 4 * rows

    @staticmethod
    def _report(report: RewardReport, index_n: Any, passed_n: Any) -> None:
        passes = passed_n.astype(float).tolist()
        report.totals += passes
        report.passes += passes
        report.prompts += index_n.tolist()
        begins = np.flatnonzero(np.diff(index_n, prepend=-1))
        right_G = np.add.reduceat(passed_n.astype(int), begins)
        sizes_G = np.diff([*begins.tolist(), len(index_n)])
        report.groups += len(begins)
        report.groups_with_signal += int(((right_G > 0) & (right_G < sizes_G)).sum())


class SimulatedWarehouse:
    """One of the dock's warehouses."""

    def __init__(self, dock: SimulatedDock, index: int) -> None:
        self._dock, self._index = dock, index

    def address(self) -> tuple[str, int]:
        """Return a placeholder, to which no process connects."""
        return "simulated", self._index

    def room(self) -> dict[str, int]:
        """Return the capacity, and the maximum used since the last call, bytes."""
        peak = self._dock.take_peak(self._index)
        return {"peak_bytes": peak, "capacity_bytes": self._dock.capacity_bytes}


class SimulatedController:
    """The controller of one state."""

    def __init__(self, dock: SimulatedDock, state: str) -> None:
        dock.add_controller(state)

    def address(self) -> tuple[str, int]:
        """Return a placeholder, to which no process connects."""
        return "simulated", 0
