"""The controller server: `ControllerLedger` behind a socket, fed by the warehouses.

There is one process for each worker state, placed with its workers. Claims that cannot be granted wait here
until a broadcast makes rows ready; there is no polling.
"""

import asyncio
import contextlib
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from rljob_runtime.dock.controller.claims import ClaimGrant, ClaimRequest
from rljob_runtime.dock.controller.ledger import ControllerLedger
from rljob_runtime.dock.controller.ledger_inspection import inspection
from rljob_runtime.dock.controller.subscription import Subscription
from rljob_runtime.dock.controller.waits import ParkedClaim
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.wire.messages import (
    AskControllerStats,
    ClaimAnswer,
    ClaimRows,
    ControllerStats,
    ControllerWelcome,
    GiveBack,
    Hello,
    Inspect,
    Inspection,
    Notices,
    OwnerGone,
    Renew,
    RenewAnswer,
    ReturnedRows,
    Snapshot,
    Subscribe,
)
from rljob_runtime.dock.wire.peer import Answer, Peer, Reply
from rljob_runtime.dock.wire.wire_server import DockServer
from rljob_runtime.errors import DockError, DockRefused, DockTimeout


class ControllerServer(DockServer):
    """Serves one state's claims.

    warehouses: (host, port) of each, in the dock's order, or a function that returns the current address.
    """

    def __init__(
        self,
        *,
        state: str,
        graph: StateGraph,
        warehouses: Sequence[tuple[str, int] | Callable[[], tuple[str, int]]],
        token: str,
        lease_seconds: float = 600.0,
        host: str = "127.0.0.1",
        port: int = 0,
        shared_directory: str | None = None,
    ) -> None:
        super().__init__(
            role=f"controller/{state}",
            token=token,
            host=host,
            port=port,
            shared_directory=shared_directory,
        )
        needs = frozenset(graph.state(state).needs)
        self._graph = graph
        self.ledger = ControllerLedger(
            state=state,
            needs=needs,
            lease_seconds=lease_seconds,
            epoch=secrets.token_hex(8),
            num_warehouses=len(warehouses),
        )
        self._waiting: deque[ParkedClaim] = deque()
        self._sessions: dict[str, set[Peer]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._subscriptions = [
            Subscription(
                index=index,
                address=address,
                hello=Hello(
                    token=token,
                    role=f"warehouse/{index}",
                    owner=self.role,
                    session=self.ledger.epoch,
                ),
                subscribe=Subscribe(state=state, needs=sorted(needs), seen=[]),
                on_snapshot=self._take_snapshot,
                on_notices=self._take_notices,
            )
            for index, address in enumerate(warehouses)
        ]
        self.answer(ClaimRows, self._claim)
        self.answer(Renew, self._renew)
        self.answer(GiveBack, self._give_back)
        self.answer(OwnerGone, self._owner_gone)
        self.answer(AskControllerStats, self._stats)
        self.answer(Inspect, self._inspect)

    async def start(self) -> tuple[str, int]:
        """Listen and subscribe to the warehouses, without waiting for them."""
        address = await super().start()
        for subscription in self._subscriptions:
            subscription.start()
        return address

    async def stop(self) -> None:
        """Stop the subscriptions, then the server."""
        if self._alarm is not None:
            self._alarm.cancel()
        for subscription in self._subscriptions:
            await subscription.stop()
        await super().stop()

    def welcome(self) -> ControllerWelcome:
        """Return the welcome, from which a peer learns how often to renew its leases."""
        fields = msgspec.structs.asdict(super().welcome())
        return ControllerWelcome(**fields, lease_seconds=self.ledger.lease_seconds)

    def peer_lost(self, peer: Peer) -> None:
        """Release the rows of an owner's process immediately when its last connection is gone."""
        peers = self._sessions.get(peer.session, set())
        peers.discard(peer)
        if not peers and self._sessions.pop(peer.session, None) is not None:
            with self._change():
                self.ledger.owner_gone(peer.owner, peer.session)

    def _claim(self, peer: Peer, message: ClaimRows, _: memoryview) -> Answer:
        self._sessions.setdefault(peer.session, set()).add(peer)
        request = _claim_request(peer, message)
        grant = self.ledger.claim(request, time.monotonic())
        if grant is not None:
            self._set_alarm()
            return _claim_answer(grant)
        return self._wait(request, message.timeout)

    async def _wait(self, request: ClaimRequest, timeout_seconds: float) -> Reply:
        waiting = ParkedClaim(
            request=request,
            answer=asyncio.get_running_loop().create_future(),
            awaited_state=lambda: self._awaited_state(request),
            since=time.monotonic(),
        )
        self._waiting.append(waiting)
        self._answer_parked()  # a broadcast may have arrived between the claim and this turn of the loop
        try:
            return await asyncio.wait_for(waiting.answer, timeout_seconds)
        except TimeoutError:
            text = self.ledger.explain(request, timeout_seconds)
            raise DockTimeout(text) from None
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    def _renew(self, peer: Peer, message: Renew, _: memoryview) -> Reply:
        self._sessions.setdefault(peer.session, set()).add(peer)
        time_s, lost = time.monotonic(), []
        for leased in message.leases:
            lost += self.ledger.renew(
                leased.lease,
                owner=peer.owner,
                session=peer.session,
                uids=leased.uids,
                time_s=time_s,
            )
        self._set_alarm()
        return Reply(message=RenewAnswer(lost=lost))

    def _give_back(self, peer: Peer, message: GiveBack, _: memoryview) -> Reply:
        with self._change():
            returned = self.ledger.give_back(message.lease, message.uids)
        return Reply(message=ReturnedRows(returned=returned))

    def _owner_gone(self, peer: Peer, message: OwnerGone, _: memoryview) -> Reply:
        with self._change():
            returned = self.ledger.owner_gone(message.owner)
        return Reply(message=ReturnedRows(returned=returned))

    def _stats(self, peer: Peer, message: AskControllerStats, _: memoryview) -> Reply:
        ledger = self.ledger
        holders: Counter[str] = Counter()
        for lease in ledger.leases.values():
            holders[lease.owner] += lease.num_rows
        ready = sum(batch.num_ready for batch in ledger.batches.values())
        return Reply(
            message=ControllerStats(
                role=self.role,
                rows=ledger.num_rows,
                ready=ready,
                leased=holders.total(),
                holders=holders,
                acknowledged=ledger.acknowledged,
                leases=len(ledger.leases),
                expired=ledger.leases.expired,
                waiting=len(self._waiting),
                refused=self.refused,
                requests=self.requests,
                warehouses=sum(s.connected for s in self._subscriptions),
            )
        )

    def _inspect(self, peer: Peer, message: Inspect, _: memoryview) -> Reply:
        time_s = time.monotonic()
        state = inspection(
            self.ledger, self._waiting, time_s, lambda w: self._awaited_state(w.request)
        )
        return Reply(message=Inspection(told={"role": self.role, **state}))

    def _take_snapshot(self, warehouse: int, snapshot: Snapshot) -> None:
        with self._change():
            self.ledger.apply_snapshot(
                warehouse, snapshot.epoch, snapshot.batches, snapshot.rows, time.monotonic()
            )

    def _take_notices(self, warehouse: int, notices: Notices) -> None:
        with self._change():
            self.ledger.apply(warehouse, notices)

    def _awaited_state(self, request: ClaimRequest) -> str:
        """Return the state that a claim waits for: its own where others hold the remaining rows."""
        missing = self.ledger.next_missing_columns(request)
        if missing is not None and not missing:
            return self.ledger.state
        return self._graph.first_writer(missing or ())

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        """Wrap a change of the ledger: attribute the waiting time of parked claims before it, answer them
        after it."""
        time_s = time.monotonic()
        for waiting in self._waiting:
            if not waiting.answer.done():
                waiting.attribute(time_s)
        yield
        self._answer_parked()

    def _answer_parked(self) -> None:
        """Answer every parked claim that can be granted, oldest first."""
        time_s = time.monotonic()
        for waiting in list(self._waiting):
            if waiting.answer.done():
                continue
            try:
                grant = self.ledger.claim(waiting.request, time_s)
            except DockError as error:
                waiting.answer.set_exception(error)
                continue
            if grant is not None:
                waiting.answer.set_result(_claim_answer(grant, waiting.finish(time_s)))
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Schedule the expiry of the first lease. Renewals only move it later, so one alarm is enough."""
        if self._alarm is None and (deadline := self.ledger.leases.next_deadline()) is not None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(max(0.0, deadline - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        with self._change():
            self.ledger.expire(time.monotonic())


def _claim_request(peer: Peer, claim: ClaimRows) -> ClaimRequest:
    limit, share = claim.limit, claim.share
    if limit is not None and limit < 1:
        raise DockRefused(f"claim of {claim.batch} with limit={limit}: it is at least 1")
    if share is not None and not (0 <= share.rank < share.of and share.window >= 0):
        raise DockRefused(
            f"share ({share.rank}, {share.of}) balanced over {share.window} groups: rank is from 0 to "
            f"{share.of - 1}, and the groups at least 0"
        )
    return ClaimRequest(
        owner=peer.owner,
        session=peer.session,
        request=claim.request,
        batch=claim.batch,
        limit=limit,
        whole_groups=claim.whole_groups,
        share=share,
        min_version=claim.min_version,
    )


def _claim_answer(grant: ClaimGrant, waited: dict[str, float] | None = None) -> Reply:
    return Reply(
        message=ClaimAnswer(
            rows=grant.rows,
            done=grant.done,
            lease=grant.lease,
            waited=waited,
        )
    )
