"""Which device workers have died: what a failed run says first.

Called by `launch`. When a process is killed, those that were in a collective with it fail as well, often
earlier than its death is noticed, and theirs are the errors that arrive.
"""

from rljob_runtime.processes.placement import Actors


def dead_devices(actors: Actors) -> str:
    """`device 1 (HOST), device 3 (HOST) died`, or "" where all that answer in time live."""
    dead = actors.pool.workers.dead(actors.devices)
    names = [
        f"device {member.role.rank} ({member.place.host})"
        for member, died in zip(actors.members, dead, strict=True)
        if died
    ]
    return f"{', '.join(sorted(names))} died" if names else ""
