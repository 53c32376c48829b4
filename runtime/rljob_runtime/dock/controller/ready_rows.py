"""Which rows and whole groups of a batch may be claimed, in the order in which they are given. Pure.

`batch_ledger` tells what happens to rows, and asks for the first.
"""

# G groups

from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from rljob_runtime.dock.controller.chosen import Chosen
from rljob_runtime.dock.controller.lines import NOBODY, Check, Line, in_turns
from rljob_runtime.dock.controller.part import NOT_IN_LINE, READY, Part
from rljob_runtime.dock.growing import Array

PLACES = 1 << 40
"""A key in a line of all warehouses is the place in its part, and this times its warehouse."""


class ReadyRows:
    """parts: of the batch, by warehouse, as they come and go."""

    def __init__(self, parts: Mapping[int, Part]) -> None:
        self._parts = parts
        self._lines: dict[int, Line] = {}
        self._back, self._groups, self._groups_back = Line(), Line(), Line()
        self._turns: deque[int] = deque()
        self._stamp = NOT_IN_LINE

    def add(self, part: Part, numbers: Array) -> None:
        """Rows became ready for the first time."""
        if not len(numbers):
            return
        if part.warehouse not in self._lines:
            self._lines[part.warehouse] = Line()
            self._turns.append(part.warehouse)
        part.rows["line"][numbers] = stamp = self._next_stamp()
        self._lines[part.warehouse].add(stamp, numbers)
        self.add_groups(part, numbers)

    def add_first(self, part: Part, numbers: Array) -> None:
        """Rows came back; they go before all others."""
        part.rows["line"][numbers] = stamp = self._next_stamp()
        self._back.add_first(stamp, part.warehouse * PLACES + numbers)
        self.add_groups(part, numbers, came_back=True)

    def lost(self, warehouse: int) -> None:
        """Its rows went with it; what comes from there is numbered anew."""
        if self._lines.pop(warehouse, None) is not None:
            self._turns.remove(warehouse)
        for line in (self._back, self._groups, self._groups_back):
            line.drop(lambda keys: keys // PLACES == warehouse)

    def add_groups(self, part: Part, numbers: Array, *, came_back: bool = False) -> None:
        """Groups of these rows that are ready, and not in line, get there."""
        groups = part.group_of(numbers)
        follow = np.ones(len(groups), dtype=bool)
        np.not_equal(groups[1:], groups[:-1], out=follow[1:])
        places = groups[follow]
        if (places[1:] < places[:-1]).any():
            places = np.unique(places)
        line = part.groups["line"]
        places = places[part.ready_groups(places) & (came_back | (line[places] == NOT_IN_LINE))]
        if len(places):
            line[places] = stamp = self._next_stamp()
            keys = part.warehouse * PLACES + places
            if came_back:
                self._groups_back.add_first(stamp, keys)
            else:
                self._groups.add(stamp, keys)

    def first_rows(self, most: int) -> Chosen:
        """Those that came back go first; then the warehouses take turns, each one's oldest row first.

        So claims that follow each other, and the workers who made them, read from all warehouses at once,
        also where one warehouse's rows were told all before the next one's.
        """
        back = self._back.first(most, self._row_may)
        left = most - len(back)
        turns = list(self._turns)
        found = [self._lines[w].first(left, self._row_of_may(w)) for w in turns]
        if len(turns) == 1 and not len(back):
            return Chosen.of_one(turns[0], found[0])
        who, which = (places[:left] for places in in_turns([len(numbers) for numbers in found]))
        if not len(who):
            return Chosen.of(back // PLACES, back % PLACES)
        self._turns.rotate(-(len(who) % len(self._turns)))
        numbers = np.concatenate(found)[np.cumsum([0, *map(len, found)])[who] + which]
        return Chosen.of(
            np.concatenate([back // PLACES, np.array(turns)[who]]),
            np.concatenate([back % PLACES, numbers]),
        )

    def _row_of_may(self, warehouse: int) -> Check:
        rows = self._parts[warehouse].rows
        status, line = rows["status"], rows["line"]
        return lambda stamp, numbers: (status[numbers] == READY) & (line[numbers] == stamp)

    def _row_may(self, stamp: int, keys: Array) -> Array:
        found = np.zeros(len(keys), dtype=bool)
        for warehouse in self._parts:
            own = keys // PLACES == warehouse
            found[own] = self._row_of_may(warehouse)(stamp, keys[own] % PLACES)
        return found

    def first_groups(self, limit: int | None) -> Chosen:
        """Whole ones, as many as there is a limit for, one at least."""
        left = (part.groups["left"] > 0 for part in self._parts.values())
        most = sum(int(own.sum()) for own in left) if limit is None else limit
        back = self._groups_back.first(most, self._group_may, self._forget_groups)
        rest = self._groups.first(most - len(back), self._group_may, self._forget_groups)
        found = np.concatenate([back, rest])
        warehouse_G, place_G = found // PLACES, found % PLACES
        if limit is not None and len(found):
            rows = of_groups(
                self._parts, warehouse_G, place_G, lambda p, g: p.groups["left"][g]
            ).cumsum()
            number = max(1, int(np.searchsorted(rows, limit, side="right")))
            warehouse_G, place_G = warehouse_G[:number], place_G[:number]
        return rows_of(self._parts, warehouse_G, place_G)

    def _group_may(self, stamp: int, keys: Array) -> Array:
        def of_part(part: Part, places: Array) -> Array:
            in_line: Array = part.groups["line"][places] == stamp
            return in_line & part.ready_groups(places)

        return of_groups(self._parts, keys // PLACES, keys % PLACES, of_part).astype(bool)

    def _forget_groups(self, stamp: int, keys: Array) -> Array:
        for warehouse, part in self._parts.items():
            places = keys[keys // PLACES == warehouse] % PLACES
            line = part.groups["line"]
            line[places[line[places] == stamp]] = NOT_IN_LINE
        return keys

    def _next_stamp(self) -> int:
        self._stamp += 1
        return self._stamp


def of_groups(
    parts: Mapping[int, Part],
    warehouse_G: Array,
    place_G: Array,
    ask: Callable[[Part, Array], Array],
) -> Array:
    """Something of each group, 0 of those whose part is gone."""
    found_G = np.zeros(len(place_G), dtype=np.int64)
    for warehouse in _present(parts, warehouse_G):
        own = warehouse_G == warehouse
        found_G[own] = ask(parts[warehouse], place_G[own])
    return found_G


def _present(parts: Mapping[int, Part], warehouse_G: Array) -> list[int]:
    """Warehouses of these groups. A claim has groups of few, and a large dock has a thousand."""
    return [own for own in np.unique(warehouse_G).tolist() if own in parts]


def rows_of(parts: Mapping[int, Part], warehouse_G: Array, place_G: Array) -> Chosen:
    """The rows that are left of groups, in their order."""
    if len(parts) == 1:
        ((warehouse, part),) = parts.items()
        return Chosen.of_one(warehouse, part.rows_of(place_G))
    found, whose, orders = [NOBODY], [NOBODY], [NOBODY]
    for warehouse in _present(parts, warehouse_G):
        part, own = parts[warehouse], np.flatnonzero(warehouse_G == warehouse)
        numbers = part.rows_of(place_G[own])
        found.append(numbers)
        whose.append(np.full(len(numbers), warehouse))
        orders.append(np.repeat(own, part.groups["left"][place_G[own]]))
    order = np.argsort(np.concatenate(orders), kind="stable")
    return Chosen.of(np.concatenate(whose)[order], np.concatenate(found)[order])
