"""Rows and whole groups of a batch that may be claimed, in the order in which they are granted. Pure.

`batch_ledger` reports what happens to rows, and reads the first ones.
"""

# G groups

from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from rljob_runtime.dock.controller.chosen import ChosenRows
from rljob_runtime.dock.controller.lines import NO_KEYS, Check, ReadyQueue, in_turns
from rljob_runtime.dock.controller.part import NOT_QUEUED, READY, BatchShard
from rljob_runtime.dock.growing import Array

KEYS_PER_WAREHOUSE = 1 << 40
"""Factor of the warehouse in a key: the key is warehouse * KEYS_PER_WAREHOUSE + index in the shard."""


class ReadyRows:
    """The claimable rows and groups of a batch.

    shards: of the batch, by warehouse; the mapping changes as warehouses come and go.
    """

    def __init__(self, shards: Mapping[int, BatchShard]) -> None:
        self._shards = shards
        self._row_queues: dict[int, ReadyQueue] = {}
        self._returned_rows, self._group_queue, self._returned_groups = (
            ReadyQueue(),
            ReadyQueue(),
            ReadyQueue(),
        )
        self._warehouse_order: deque[int] = deque()
        self._stamp = NOT_QUEUED

    def add(self, shard: BatchShard, numbers: Array) -> None:
        """Enqueue rows that became ready for the first time."""
        if not len(numbers):
            return
        if shard.warehouse not in self._row_queues:
            self._row_queues[shard.warehouse] = ReadyQueue()
            self._warehouse_order.append(shard.warehouse)
        shard.rows["line"][numbers] = stamp = self._next_stamp()
        self._row_queues[shard.warehouse].add(stamp, numbers)
        self.add_groups(shard, numbers)

    def add_first(self, shard: BatchShard, numbers: Array) -> None:
        """Enqueue returned rows before all others."""
        shard.rows["line"][numbers] = stamp = self._next_stamp()
        self._returned_rows.add_first(stamp, shard.warehouse * KEYS_PER_WAREHOUSE + numbers)
        self.add_groups(shard, numbers, returned=True)

    def drop_warehouse(self, warehouse: int) -> None:
        """Drop the entries of a lost warehouse; its later rows are numbered from 0 again."""
        if self._row_queues.pop(warehouse, None) is not None:
            self._warehouse_order.remove(warehouse)
        for queue in (self._returned_rows, self._group_queue, self._returned_groups):
            queue.drop(lambda keys: keys // KEYS_PER_WAREHOUSE == warehouse)

    def add_groups(self, shard: BatchShard, numbers: Array, *, returned: bool = False) -> None:
        """Enqueue the ready groups of these rows that are not in a queue yet."""
        groups = shard.group_of(numbers)
        starts_group = np.ones(len(groups), dtype=bool)
        np.not_equal(groups[1:], groups[:-1], out=starts_group[1:])
        indices = groups[starts_group]
        if (indices[1:] < indices[:-1]).any():
            indices = np.unique(indices)
        stamps = shard.groups["line"]
        indices = indices[
            shard.ready_groups(indices) & (returned | (stamps[indices] == NOT_QUEUED))
        ]
        if len(indices):
            stamps[indices] = stamp = self._next_stamp()
            keys = shard.warehouse * KEYS_PER_WAREHOUSE + indices
            if returned:
                self._returned_groups.add_first(stamp, keys)
            else:
                self._group_queue.add(stamp, keys)

    def first_rows(self, most: int) -> ChosenRows:
        """Return up to `most` rows: returned ones first, then the oldest rows of each warehouse in turn.

        So consecutive claims, and the workers that made them, read from all warehouses in parallel. This also
        holds where all rows of one warehouse were announced before those of the next.
        """
        returned = self._returned_rows.first(most, self._is_claimable_row)
        missing = most - len(returned)
        warehouses = list(self._warehouse_order)
        candidates = [self._row_queues[w].first(missing, self._row_check(w)) for w in warehouses]
        if len(warehouses) == 1 and not len(returned):
            return ChosenRows.from_warehouse(warehouses[0], candidates[0])
        source, index = (
            positions[:missing] for positions in in_turns([len(numbers) for numbers in candidates])
        )
        if not len(source):
            return ChosenRows.from_rows(
                returned // KEYS_PER_WAREHOUSE, returned % KEYS_PER_WAREHOUSE
            )
        self._warehouse_order.rotate(-(len(source) % len(self._warehouse_order)))
        numbers = np.concatenate(candidates)[np.cumsum([0, *map(len, candidates)])[source] + index]
        return ChosenRows.from_rows(
            np.concatenate([returned // KEYS_PER_WAREHOUSE, np.array(warehouses)[source]]),
            np.concatenate([returned % KEYS_PER_WAREHOUSE, numbers]),
        )

    def _row_check(self, warehouse: int) -> Check:
        rows = self._shards[warehouse].rows
        status, stamps = rows["status"], rows["line"]
        return lambda stamp, numbers: (status[numbers] == READY) & (stamps[numbers] == stamp)

    def _is_claimable_row(self, stamp: int, keys: Array) -> Array:
        claimable = np.zeros(len(keys), dtype=bool)
        for warehouse in self._shards:
            is_local = keys // KEYS_PER_WAREHOUSE == warehouse
            claimable[is_local] = self._row_check(warehouse)(
                stamp, keys[is_local] % KEYS_PER_WAREHOUSE
            )
        return claimable

    def first_groups(self, limit: int | None) -> ChosenRows:
        """Return whole groups, at least one: as many as have no more than `limit` rows."""
        has_rows = (shard.groups["left"] > 0 for shard in self._shards.values())
        most = sum(int(mask.sum()) for mask in has_rows) if limit is None else limit
        returned = self._returned_groups.first(most, self._is_claimable_group, self._forget_groups)
        others = self._group_queue.first(
            most - len(returned), self._is_claimable_group, self._forget_groups
        )
        keys = np.concatenate([returned, others])
        warehouse_G, slot_G = keys // KEYS_PER_WAREHOUSE, keys % KEYS_PER_WAREHOUSE
        if limit is not None and len(keys):
            rows = map_groups(
                self._shards, warehouse_G, slot_G, lambda p, g: p.groups["left"][g]
            ).cumsum()
            number = max(1, int(np.searchsorted(rows, limit, side="right")))
            warehouse_G, slot_G = warehouse_G[:number], slot_G[:number]
        return rows_of(self._shards, warehouse_G, slot_G)

    def _is_claimable_group(self, stamp: int, keys: Array) -> Array:
        def in_shard(shard: BatchShard, indices: Array) -> Array:
            queued: Array = shard.groups["line"][indices] == stamp
            return queued & shard.ready_groups(indices)

        return map_groups(
            self._shards, keys // KEYS_PER_WAREHOUSE, keys % KEYS_PER_WAREHOUSE, in_shard
        ).astype(bool)

    def _forget_groups(self, stamp: int, keys: Array) -> Array:
        for warehouse, shard in self._shards.items():
            indices = keys[keys // KEYS_PER_WAREHOUSE == warehouse] % KEYS_PER_WAREHOUSE
            stamps = shard.groups["line"]
            stamps[indices[stamps[indices] == stamp]] = NOT_QUEUED
        return keys

    def _next_stamp(self) -> int:
        self._stamp += 1
        return self._stamp


def map_groups(
    shards: Mapping[int, BatchShard],
    warehouse_G: Array,
    slot_G: Array,
    measure: Callable[[BatchShard, Array], Array],
) -> Array:
    """Return a value for each group, 0 for groups whose shard is gone."""
    values_G = np.zeros(len(slot_G), dtype=np.int64)
    for warehouse in _present(shards, warehouse_G):
        is_local = warehouse_G == warehouse
        values_G[is_local] = measure(shards[warehouse], slot_G[is_local])
    return values_G


def _present(shards: Mapping[int, BatchShard], warehouse_G: Array) -> list[int]:
    """Return the warehouses of these groups that have a shard.

    The groups of a claim are in few warehouses, and a large dock has a thousand.
    """
    return [warehouse for warehouse in np.unique(warehouse_G).tolist() if warehouse in shards]


def rows_of(shards: Mapping[int, BatchShard], warehouse_G: Array, slot_G: Array) -> ChosenRows:
    """Return the rows that are left of groups, in the groups' order."""
    if len(shards) == 1:
        ((warehouse, shard),) = shards.items()
        return ChosenRows.from_warehouse(warehouse, shard.rows_of(slot_G))
    row_numbers, warehouses, orders = [NO_KEYS], [NO_KEYS], [NO_KEYS]
    for warehouse in _present(shards, warehouse_G):
        shard, indices = shards[warehouse], np.flatnonzero(warehouse_G == warehouse)
        numbers = shard.rows_of(slot_G[indices])
        row_numbers.append(numbers)
        warehouses.append(np.full(len(numbers), warehouse))
        orders.append(np.repeat(indices, shard.groups["left"][slot_G[indices]]))
    order = np.argsort(np.concatenate(orders), kind="stable")
    return ChosenRows.from_rows(
        np.concatenate(warehouses)[order], np.concatenate(row_numbers)[order]
    )
