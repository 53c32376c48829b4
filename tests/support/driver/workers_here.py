"""Workers of a run as objects of this process: what decides about workers is tested without processes.

A call is carried out before it returns, so that nothing waits and each test takes the same way every time.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from rljob_runtime.errors import RljobError, WorkerFailed
from rljob_runtime.processes.workers import Call, Home, Worker


class Dies(BaseException):
    """A worker raises it in place of ending its process."""


class Hangs(BaseException):
    """A worker raises it in place of not answering."""


class WorkersHere:
    """places: nodes that there are; who asks for more waits."""

    host = "here"
    may_move = False

    def __init__(self, places: int) -> None:
        self.places = places
        self._asked: list[int] = []

    @property
    def free(self) -> int:
        """Places that nobody has."""
        return max(self.places - len(self._asked), 0)

    def reserve(self, nodes: int) -> None:
        assert nodes <= self.free
        self._asked += range(nodes)

    def ask_for(self, node: int) -> None:
        self._asked.append(node)

    def renew(self, node: int) -> None:
        """None is lost."""

    def has_place(self, node: int) -> bool:
        """First come, first served."""
        return node in self._asked[: self.places]

    def move(self, node: int) -> bool:
        return False

    def release(self, node: int) -> None:
        self._asked.remove(node)

    def on_device(self, node: int, number: int) -> Home:
        return {"node": node}

    def on_reserved_node(self, node: int | None) -> Home:
        return {}

    def near(self, node: int) -> Home:
        return {}

    def warehouse_homes(self, warehouses: int, *, spread: int | None) -> list[Home]:
        return []

    def hold_ports(self, count: int) -> list[int]:
        return [0] * count

    def start(
        self,
        kind: type,
        *arguments: Any,
        home: Home,
        name: str | None = None,
        restarts: bool = False,
        **named: Any,
    ) -> Worker:
        return WorkerHere(
            lambda: kind(*arguments, **named), may_start=lambda: self.has_place(home["node"])
        )

    def end(self, worker: Any) -> None:
        worker.dead = True

    def dead(self, workers: Sequence[Any]) -> list[bool]:
        return [worker.dead for worker in workers]

    def has_reservation(self, worker: Any) -> bool:
        return True


class WorkerHere:
    """An object, made with the first call that it may start for."""

    def __init__(self, make: Callable[[], Any], *, may_start: Callable[[], bool]) -> None:
        self._make, self._may_start = make, may_start
        self._made: Any = None
        self.dead = False

    def __getattr__(self, name: str) -> Callable[..., Call]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Call:
            made: Call = Future()
            if not self._may_start():
                return made
            try:
                given = [a.result(timeout=0) if isinstance(a, Future) else a for a in arguments]
                made.set_result(self._carry_out(name, given))
            except Hangs:
                pass
            except Dies:
                self.dead = True
                made.set_exception(WorkerFailed(ProcessLookupError("the worker died")))
            except RljobError as error:
                made.set_exception(error)
            return made

        return call

    def _carry_out(self, method: str, arguments: Sequence[Any]) -> Any:
        if self.dead:
            raise Dies
        self._made = self._made or self._make()
        return getattr(self._made, method)(*arguments)
