"""The dock over thousands of steps of ragged batches: what its servers keep, and what deaths leave.

First steps without deaths: memory of each server, holes of each arena. Then steps in which random
servers are killed and started again, with two copies of each row: every sample must count once. At
last, what lies in /dev/shm and in the sockets' folder after a normal end and after SIGKILL.
`--quick` takes a tenth of the steps, in which memory still grows by what is remembered; `--json FILE`
writes the figures for `write_docs.py`.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from benchmarks.support.figures import Figures
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.graph import State
from rljob_runtime.dock.local_servers import LocalDock
from rljob_runtime.dock.rows import NewRow, RowMeta
from rljob_runtime.errors import DockLost

STATES = (
    State(name="generate", needs=("prompt",), writes=("response", "logprobs")),
    State(name="reward", needs=("response",), writes=("reward",)),
    State(name="update", needs=("logprobs", "reward")),
)
GROUPS, SAMPLES = 8, 16
CLAIMED_ROWS = 37
MAX_TOKENS = 2_000
WAREHOUSES = 2
CAPACITY_BYTES = 16 << 20
STEPS, DEADLY_STEPS = 2_000, 300
WAIT_SECONDS = 120.0
OWNER = """
import sys, time
sys.path[:] = {path}
from benchmarks.dock.churn import STATES, LocalDock
with LocalDock(STATES, warehouses=2, replicas=2) as dock:
    print(dock._sockets.path, *[p.pid for p in dock._processes.values()], flush=True)
    time.sleep(600)
"""


class Churn:
    """A feeder and one worker a state. counted: samples of the update, by step."""

    def __init__(self, dock: LocalDock, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.clients = {
            state: dock.client(state, state, timeout_seconds=WAIT_SECONDS)
            for state in ("feed", *(state.name for state in STATES))
        }
        self.lost = 0

    def step(self, number: int) -> Counter[str]:
        """One batch, from its prompts to the update; again under another name where it was lost."""
        for attempt in range(20):
            name = f"{number}-{attempt}"
            try:
                return self._step(name)
            except DockLost:
                self.lost += 1
                self.clients["feed"].drop_batch(name)
        raise AssertionError(f"step {number} was lost twenty times")

    def _step(self, name: str) -> Counter[str]:
        rows = [
            NewRow(
                uid=f"{name}/{g}/{s}",
                group=f"{name}/{g}",
                group_index=g,
                group_columns={"prompt": np.full(50 * g + 1, g, dtype=np.int32)},
                reserve_bytes=9 * MAX_TOKENS,
            )
            for g in range(GROUPS)
            for s in range(SAMPLES)
        ]
        self.clients["feed"].put_rows(name, rows, total=len(rows))
        counted: Counter[str] = Counter()
        self._work("generate", name, ["prompt"], self._responses)
        self._work("reward", name, ["response"], _rewards)
        update = self.clients["update"]
        while not (claim := update.claim(name, timeout_seconds=WAIT_SECONDS)).done:
            found = update.read(claim.rows, ["logprobs", "reward"])
            expected = [float(row.sum()) for row in found["logprobs"].rows()]
            assert found["reward"].values.tolist() == expected, "a row came back as another"
            update.acknowledge(claim.rows)
            counted.update(row.uid for row in claim.rows)
        return counted

    def _work(
        self,
        state: str,
        batch: str,
        needs: Sequence[str],
        columns_of: Callable[[Sequence[RowMeta], dict[str, Ragged]], dict[str, Ragged]],
    ) -> None:
        client = self.clients[state]
        while not (
            claim := client.claim(batch, limit=CLAIMED_ROWS, timeout_seconds=WAIT_SECONDS)
        ).done:
            client.write(claim.rows, columns_of(claim.rows, client.read(claim.rows, needs)))

    def _responses(self, rows: Sequence[RowMeta], _: dict[str, Ragged]) -> dict[str, Ragged]:
        lengths = self.rng.integers(1, MAX_TOKENS, len(rows))
        tokens = [np.full(length, i % 7, dtype=np.int32) for i, length in enumerate(lengths)]
        return {
            "response": Ragged.from_rows(tokens),
            "logprobs": Ragged.from_rows([row.astype(np.float32) for row in tokens]),
        }


def _rewards(rows: Sequence[RowMeta], found: dict[str, Ragged]) -> dict[str, Ragged]:
    sums = [np.asarray([row.sum()], dtype=np.float32) for row in found["response"].rows()]
    return {"reward": Ragged.from_rows(sums)}


def measure_memory(figures: Figures, steps: int) -> None:
    """Slopes of each server's own memory over the second half, and holes when all rows are gone.

    In the first thousand steps servers fill what they remember: of freed rows (50,000 of each
    warehouse) and of finished batches (1,000).
    """
    samples: dict[str, list[tuple[int, float]]] = {}
    with LocalDock(STATES, warehouses=WAREHOUSES, replicas=2, capacity=CAPACITY_BYTES) as dock:
        churn = Churn(dock, seed=1)
        began = time.monotonic()
        for step in range(steps):
            assert set(churn.step(step).values()) == {1}, f"step {step} counted a sample twice"
            if 2 * step >= steps and step % 10 == 0:
                for role, process in dock._processes.items():
                    samples.setdefault(role, []).append((step, own_mib(process.pid)))
        figures.add("steps a second", steps / (time.monotonic() - began), "1/s")
        stats = churn.clients["feed"].stats()
        for role, found in samples.items():
            slope = 1000 * float(np.polyfit([s for s, _ in found], [mib for _, mib in found], 1)[0])
            figures.add(f"{role}: memory grows in 1,000 steps", slope, "MiB", 2.0)
        for role in (f"warehouse/{i}" for i in range(WAREHOUSES)):
            figures.add(f"{role}: holes of the empty arena", stats.servers[role]["holes"], "", 1)
        figures.add("bytes charged at the end", stats.bytes, "bytes", 0)


def measure_deaths(figures: Figures, steps: int, seed: int) -> None:
    """Every sample counts once while servers die; only one warehouse at a time is away."""
    with LocalDock(STATES, warehouses=WAREHOUSES, replicas=2, capacity=CAPACITY_BYTES) as dock:
        churn = Churn(dock, seed=seed)
        ended = threading.Event()
        kills: Counter[str] = Counter()
        killer = threading.Thread(target=_kill_at_random, args=(dock, ended, kills, seed))
        killer.start()
        wrong = 0
        try:
            for step in range(steps):
                counted = churn.step(step)
                wrong += len(counted) != GROUPS * SAMPLES or set(counted.values()) != {1}
        finally:
            ended.set()
            killer.join()
        stats = churn.clients["feed"].stats()
        figures.add("kills of warehouses", sum(n for r, n in kills.items() if "ware" in r), "")
        figures.add("kills of controllers", sum(n for r, n in kills.items() if "contr" in r), "")
        figures.add("steps in which a sample did not count once", wrong, "", 0)
        figures.add("steps that started over", churn.lost, "", 0)
        figures.add("rows left after kills", stats.rows, "", 0)


def _kill_at_random(
    dock: LocalDock, ended: threading.Event, kills: Counter[str], seed: int
) -> None:
    rng = random.Random(seed)
    roles = list(dock._configs)
    with DockClient(dock.address, state="watch", owner="watch") as watcher:
        while not ended.wait(rng.uniform(0.05, 0.5)):
            role = rng.choice(roles)
            servers = watcher.stats().servers.values()
            if role.startswith("warehouse") and not all(s.get("replicated", True) for s in servers):
                continue
            dock.kill(role)
            dock.start(role)
            kills[role] += 1


def measure_leftovers(figures: Figures) -> None:
    """Files in /dev/shm and the sockets' folder: after a normal end, and after deaths."""
    before = _shared_files()
    with LocalDock(STATES, warehouses=WAREHOUSES, replicas=2) as dock:
        folder = dock._sockets.path
        for role in list(dock._configs):
            dock.kill(role)
            dock.start(role)
        sockets, servers = len([*folder.iterdir()]), len(dock._configs)
        figures.add("sockets after each server died once", sockets, "", servers)
    figures.add("files after a normal end", len(_shared_files() - before) + folder.exists(), "", 0)
    code = OWNER.format(path=sys.path)
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    name, *pids = owner.stdout.readline().split()
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    deadline = time.monotonic() + WAIT_SECONDS
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = len([*Path(name).iterdir()]) + len(_shared_files() - before)
    figures.add("files after SIGKILL of the dock's owner", left, "", 0)
    Path(name).rmdir()


def _shared_files() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def own_mib(pid: int) -> float:
    """Memory of a process but for what it shares, such as an arena's."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssFile")))
    return kib / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--seed", type=int, default=7, help="of the deaths")
    options = parser.parse_args()
    share = 10 if options.quick else 1
    figures = Figures()
    measure_memory(figures, STEPS // share)
    measure_deaths(figures, DEADLY_STEPS // share, options.seed)
    measure_leftovers(figures)
    if options.json is not None:
        packages = ["rljob", "numpy", "msgspec"]
        facts = {"steps": STEPS // share, "seed": options.seed}
        figures.write(options.json, packages=packages, facts=facts)


if __name__ == "__main__":
    main()
