"""The rendezvous of processes before they form a group, and the signatures of their messages.

torch's store accepts any client that reaches its port. rljob's code reads only values that are signed with
the rendezvous' secret, which is a part of the address and is passed only to members. gloo's own values in the
store, the addresses of its processes, are not signed.
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


class Rendezvous:
    """A store for a rendezvous, hosted by the source. host: the only address at which it listens. Raises
    OSError."""

    def __init__(self, host: str) -> None:
        listener = socket.create_server((host, 0))
        port = listener.getsockname()[1]
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            host,
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        self.address = f"{host}:{port}/{secrets.token_hex(SECRET_BYTES)}"


def host_and_port(address: str) -> str:
    """Return host and port of a rendezvous' address, without the secret, for messages."""
    return address.partition("/")[0]


@dataclass(slots=True)
class Signer:
    """Signs members' texts with the rendezvous' secret; "" for a world without a rendezvous, as in tests."""

    secret: str = ""
    _num_topics: int = 0

    def sign(self, text: str, topic: str) -> str:
        """Return the text with its signature for a topic."""
        return json.dumps([self._digest(text, topic), text])

    def read(self, signed: str | bytes, topic: str) -> str:
        """Return the text. Raises WorkerError where the signature is missing or belongs to another topic."""
        try:
            digest, text = parse_json(signed)
            if hmac.compare_digest(digest, self._digest(text, topic)):
                return str(text)
        except (ValueError, TypeError, AttributeError):
            pass
        raise WorkerError(
            f"{topic}: what was said has not the meeting's signature; a process that is no member of the run "
            "reaches its ports, which a NetworkPolicy closes"
        )

    def next_topic(self) -> str:
        """Return the topic of the next exchanged texts; all members call it in the same order."""
        self._num_topics += 1
        return f"shared/{self._num_topics}"

    def _digest(self, text: str, topic: str) -> str:
        signed = f"{topic}\0{text}".encode()
        return hmac.new(self.secret.encode(), signed, hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class SignedStore:
    """Stores members' signed texts by key. store: for process groups, which sign nothing."""

    store: Store
    signer: Signer

    def set(self, key: str, text: str) -> None:
        """Store a signed text for all members."""
        self.store.set(key, self.signer.sign(text, key))

    def get(self, key: str) -> str:
        """Wait for a text and return it. Raises RuntimeError after the store's deadline, WorkerError for a
        text without a member's signature."""
        return self.signer.read(self.store.get(key), key)


def join_rendezvous(address: str, *, seconds: float) -> SignedStore:
    """Connect to the store at this address. seconds: timeout of the connection and of later waits.

    Raises RuntimeError when its host process is gone.
    """
    endpoint, _, secret = address.partition("/")
    host, _, port = endpoint.rpartition(":")
    try:  # a store would retry, although its host process can only be gone
        socket.create_connection((host, int(port)), timeout=seconds).close()
    except OSError as error:
        raise RuntimeError(f"the process that keeps {endpoint} is gone: {error}") from error
    timeout = timedelta(seconds=seconds)
    store = dist.TCPStore(host, int(port), is_master=False, timeout=timeout)  # type: ignore[attr-defined]
    return SignedStore(store, Signer(secret))


def assemble(store: Store, rank: int, size: int, *, seconds: float) -> None:
    """Return once all ranks have arrived. Without it, a new process group would wait for a dead rank as long
    as its collectives may take. Raises WorkerError after `seconds`, which names the missing ranks."""
    store.set(f"assembled/{rank}", "")
    key_by_rank = {other: f"assembled/{other}" for other in range(size)}
    try:
        store.wait([*key_by_rank.values()], timedelta(seconds=seconds))
    except dist.DistStoreError as error:
        missing = [str(other) for other, key in key_by_rank.items() if not store.check([key])]
        raise WorkerError(
            f"rank {', '.join(missing)} of {size} is gone: it did not come within {seconds:g} s to where "
            "they meet"
        ) from error
