"""The rows of a batch that may be claimed, in the order in which they are given. Pure."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import islice

from rljob_runtime.dock.controller.entries import Entry


class ReadyRows:
    """Rows that came back go first; then the warehouses take turns, each one's oldest row first.

    So claims that follow each other, and the workers who made them, read from all warehouses at once,
    also where one warehouse's rows were told all before the next one's.
    """

    def __init__(self) -> None:
        self._back: OrderedDict[str, Entry] = OrderedDict()
        self._queues: dict[int, OrderedDict[str, Entry]] = {}
        self._turns: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._back) + sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[str]:
        yield from self._back
        for queue in self._queues.values():
            yield from queue

    def add(self, entry: Entry) -> None:
        """A row became ready for the first time."""
        queue = self._queues.get(entry.warehouse)
        if queue is None:
            queue = self._queues[entry.warehouse] = OrderedDict()
            self._turns.append(entry.warehouse)
        queue[entry.uid] = entry

    def add_first(self, entry: Entry) -> None:
        """A row came back; it goes before all others."""
        self._back[entry.uid] = entry
        self._back.move_to_end(entry.uid, last=False)

    def discard(self, entry: Entry) -> None:
        """The row is given to somebody, or no more. It need not be here."""
        if self._back.pop(entry.uid, None) is None and entry.warehouse in self._queues:
            self._queues[entry.warehouse].pop(entry.uid, None)

    def first(self, limit: int | None) -> list[Entry]:
        """So many rows, which stay here; the next call begins with the next warehouse."""
        most = len(self) if limit is None else limit
        chosen = list(islice(self._back.values(), most))
        came_back = len(chosen)
        left = deque(iter(self._queues[w].values()) for w in self._turns if self._queues[w])
        while left and len(chosen) < most:
            entry = next(left[0], None)
            if entry is None:
                left.popleft()
            else:
                chosen.append(entry)
                left.rotate(-1)
        if self._turns:
            self._turns.rotate(-((len(chosen) - came_back) % len(self._turns)))
        return chosen
