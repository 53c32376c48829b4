"""Where processes meet before they are a group, and how they sign what they say there.

torch's store takes whoever reaches its port. What rljob's own code reads there is signed with the meeting's
secret, a part of its address, which members alone are given. Where gloo's processes listen stands there
unsigned, as gloo has it.
"""

import hashlib
import hmac
import json
import secrets
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from rljob_api.spec.json_text import parse_json
from rljob_runtime.errors import WorkerError

SECRET_BYTES = 16


class Meeting:
    """A place to meet, kept by the source. host: its own address, the only one at which it listens. Raises
    OSError."""

    def __init__(self, host: str) -> None:
        listening = socket.create_server((host, 0))
        port = listening.getsockname()[1]
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
        self.address = f"{host}:{port}/{secrets.token_hex(SECRET_BYTES)}"


def place_of(address: str) -> str:
    """A meeting's host and port, without its secret: for messages."""
    return address.partition("/")[0]


@dataclass(slots=True)
class Signer:
    """Signs what members say with the meeting's secret; "" where a world met in none, as a test's does."""

    secret: str = ""
    _shared: int = 0

    def sign(self, text: str, about: str) -> str:
        """The text, for who knows what it is about."""
        return json.dumps([self._digest(text, about), text])

    def read(self, signed: str | bytes, about: str) -> str:
        """Raises WorkerError for what is not signed, or as something else."""
        try:
            digest, text = parse_json(signed)
            if hmac.compare_digest(digest, self._digest(text, about)):
                return str(text)
        except (ValueError, TypeError, AttributeError):
            pass
        raise WorkerError(
            f"{about}: what was said has not the meeting's signature; a process that is no member of the run "
            "reaches its ports, which a NetworkPolicy closes"
        )

    def share(self) -> str:
        """What the next text of each member is about, which all of them ask for in one order."""
        self._shared += 1
        return f"shared/{self._shared}"

    def _digest(self, text: str, about: str) -> str:
        signed = f"{about}\0{text}".encode()
        return hmac.new(self.secret.encode(), signed, hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class SignedStore:
    """Members' texts by key. store: for process groups, which sign nothing."""

    store: Store
    signer: Signer

    def set(self, key: str, text: str) -> None:
        """For everybody who met."""
        self.store.set(key, self.signer.sign(text, key))

    def get(self, key: str) -> str:
        """Waits for it. Raises RuntimeError after the store's deadline, WorkerError for what no member
        said."""
        return self.signer.read(self.store.get(key), key)


def attend(address: str, *, seconds: float) -> SignedStore:
    """The place to meet at this address. seconds: how long its owner and the others are waited for.

    Raises RuntimeError when nobody keeps it.
    """
    place, _, secret = address.partition("/")
    host, _, port = place.rpartition(":")
    try:  # a store would try again and again, though its owner can only be gone
        socket.create_connection((host, int(port)), timeout=seconds).close()
    except OSError as error:
        raise RuntimeError(f"the process that keeps {place} is gone: {error}") from error
    limit = timedelta(seconds=seconds)
    store = dist.TCPStore(host, int(port), is_master=False, timeout=limit)  # type: ignore[attr-defined]
    return SignedStore(store, Signer(secret))


def assemble(store: Store, rank: int, size: int, *, seconds: float) -> None:
    """Return once all ranks are there. A process group that is made before waits for who died on the way as
    long as its collectives may take. Raises WorkerError after so long, which says who is missing."""
    store.set(f"assembled/{rank}", "")
    there = {other: f"assembled/{other}" for other in range(size)}
    try:
        store.wait([*there.values()], timedelta(seconds=seconds))
    except dist.DistStoreError as error:
        missing = [str(other) for other, key in there.items() if not store.check([key])]
        raise WorkerError(
            f"rank {', '.join(missing)} of {size} is gone: it did not come within {seconds:g} s to where "
            "they meet"
        ) from error
