"""Which device workers have died: what a failed run says first.

Called by `launch`. When a process is killed, those that were in a collective with it fail as well, often
earlier than Ray notices the death, and theirs are the errors that arrive.
"""

import time
from collections.abc import Sequence

import ray

from rljob_runtime.placement import Member

NOTICE_SECONDS = 5.0
"""How long Ray is given to notice; workers that live but are busy use it up."""


def dead_devices(members: Sequence[Member]) -> str:
    """`device 1 (HOST), device 3 (HOST) died`, or "" where all that answer in time live."""
    calls = {member.worker.__ray_ready__.remote(): member for member in members}
    pending, dead = list(calls), []
    deadline = time.monotonic() + NOTICE_SECONDS
    while pending and (left := deadline - time.monotonic()) > 0:
        done, pending = ray.wait(pending, timeout=left)
        dead += [calls[call] for call in done if _has_died(call)]
    names = [f"device {member.seat.rank} ({member.place.host})" for member in dead]
    return f"{', '.join(sorted(names))} died" if names else ""


def _has_died(call: ray.ObjectRef) -> bool:
    try:
        ray.get(call, timeout=NOTICE_SECONDS)
    except ray.exceptions.GetTimeoutError:
        return False
    except ray.exceptions.RayActorError:
        return True
    return False
