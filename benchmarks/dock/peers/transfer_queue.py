"""TransferQueue at its best: low-level client, polling mode, whole TensorDicts a put.

Runs in its own environment. Its servers are actors of a Ray, its clients need none: they are told where
the servers listen. Ragged columns are jagged nested tensors made beforehand, views of the
caller's arrays, as dense ones are.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue.client import TransferQueueClient
from transfer_queue.utils.enum_utils import Role
from transfer_queue.utils.zmq_utils import ZMQServerInfo

from benchmarks.dock.sample_flow.payload import Array, Column

POLL_SECONDS = 0.001
NODES_SECONDS = 60.0


class QueueHost:
    """The controller and so many storage units, actors of a Ray that runs here.

    resource: of the nodes that get a unit each; "": any. The units are numbered by their addresses.
    """

    def __init__(self, units: int, address: str, resource: str = "") -> None:
        connect(address)
        storage: dict[str, Any] = {"num_data_storage_units": units}
        if resource:
            _wait_for_nodes(resource, units)
            storage["required_node_resource"] = resource
        configuration = {
            "controller": {"polling_mode": True},
            "backend": {"SimpleStorage": storage},
        }
        made = transfer_queue.init(OmegaConf.create(configuration))
        assert made is not None, "TransferQueue was there already"
        servers = made.backend.SimpleStorage.zmq_info.values()
        self.address = {
            "controller": made.controller.zmq_info.to_dict(),
            "units": [server.to_dict() for server in sorted(servers, key=_by_address)],
        }

    def close(self) -> None:
        """Its actors end with their Ray."""


class QueueSide:
    """See SpreadSide. A batch is a partition, a state a task."""

    def __init__(self, address: dict[str, Any]) -> None:
        controller, *units = [
            ZMQServerInfo(**{**server, "role": Role(server["role"])})
            for server in (address["controller"], *address["units"])
        ]
        self._client = TransferQueueClient(f"benchmark_{os.getpid()}", controller)
        servers = {unit.id: unit for unit in units}
        self._client.initialize_storage_manager("SimpleStorage", {"zmq_info": servers})
        self._num_units = len(units)

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

    def places(self, claim: Any) -> list[int]:
        """See SpreadSide; it routes by the rest of a row's number."""
        return [index % self._num_units for index in claim.global_indexes]

    def held_bytes(self) -> list[int]:
        """See SpreadSide."""
        return []


def connect(address: str) -> None:
    """Join the Ray whose head is on this machine."""
    if not ray.is_initialized():
        ray.init(
            address=address,
            namespace="benchmark",
            _node_ip_address=address.rpartition(":")[0],
            log_to_driver=False,
            logging_level="error",
        )


def _wait_for_nodes(resource: str, count: int) -> None:
    deadline = time.monotonic() + NODES_SECONDS
    while (there := ray.cluster_resources().get(resource, 0)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{there:g} of {count} Ray nodes after {NODES_SECONDS:g} s")
        time.sleep(0.1)


def _by_address(server: ZMQServerInfo) -> tuple[IPv4Address, str]:
    return IPv4Address(server.ip), server.id


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


def open_host(units: int, address: str, resource: str = "") -> QueueHost:
    """See sample_flow.side. address: of the Ray."""
    return QueueHost(units, address, resource)


def open_side(address: dict[str, Any]) -> QueueSide:
    """See sample_flow.side."""
    return QueueSide(address)
