"""TransferQueue at its best on one machine: low-level client, polling mode, whole TensorDicts a put.

Runs in its own environment. Ragged columns are jagged nested tensors made beforehand, views of the
caller's arrays, as dense ones are.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue
from omegaconf import OmegaConf
from sample_flow.payload import Array, Column
from tensordict import TensorDict

POLL_SECONDS = 0.001


class QueueHost:
    """The controller and so many storage units, actors of a Ray that runs here."""

    def __init__(self, units: int, address: str) -> None:
        connect(address)
        backend = {"SimpleStorage": {"num_data_storage_units": units}}
        configuration = {"controller": {"polling_mode": True}, "backend": backend}
        transfer_queue.init(OmegaConf.create(configuration))
        self.address = address

    def close(self) -> None:
        """Its actors end with their Ray."""


class QueueSide:
    """See Side. A batch is a partition, a state a task."""

    def __init__(self, address: str) -> None:
        connect(address)
        transfer_queue.init()
        self._client = transfer_queue.get_client()

    def prepare(self, batch: str, first: int, columns: dict[str, Column]) -> TensorDict:
        """See Side."""
        return tensor_dict(columns)

    def put(self, batch: str, prepared: TensorDict, *, total: int, states: list[str]) -> None:
        """See Side."""
        self._client.put(data=prepared, partition_id=batch)

    def claim(
        self, batch: str, state: str, columns: list[str], limit: int
    ) -> tuple[Any, int] | None:
        """See Side; comes back without rows when fewer than the limit are ready."""
        found = self._client.get_meta(
            data_fields=columns, batch_size=limit, partition_id=batch, task_name=state
        )
        if found.size:
            return found, found.size
        time.sleep(POLL_SECONDS)
        return None

    @contextmanager
    def get(self, claim: Any, columns: list[str], way: str) -> Iterator[Iterable[Array]]:
        """See Side."""
        yield arrays(self._client.get_data(claim))

    def finish(self, state: str, claim: Any) -> None:
        """A claim has consumed its rows."""

    def drop(self, batch: str) -> None:
        """See Side."""
        self._client.clear_partition(partition_id=batch)


def connect(address: str) -> None:
    """Join the Ray that runs here."""
    if not ray.is_initialized():
        ray.init(address=address, namespace="benchmark", log_to_driver=False, logging_level="error")


def tensor_dict(columns: dict[str, Column]) -> TensorDict:
    """Views: dense columns as [rows, length], others as jagged nested tensors."""
    tensors = {}
    for name, column in columns.items():
        values, lengths = torch.from_numpy(column.values), column.lengths
        if (lengths == lengths[0]).all():
            tensors[name] = values.view(len(lengths), -1)
        else:
            offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
            tensors[name] = torch.nested.nested_tensor_from_jagged(values, offsets)
    return TensorDict(tensors, batch_size=[len(lengths)])


def arrays(data: TensorDict) -> list[Array]:
    """What lies in its tensors, without a copy."""
    flat = [t.values() if t.is_nested else t.contiguous() for t in data.values()]
    return [tensor.numpy() for tensor in flat]


def open_host(units: int, address: str) -> QueueHost:
    """See sample_flow.side. address: of the Ray."""
    return QueueHost(units, address)


def open_side(address: str) -> QueueSide:
    """See sample_flow.side."""
    return QueueSide(address)
