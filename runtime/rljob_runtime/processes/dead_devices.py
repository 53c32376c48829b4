"""Which device workers have died: whom a run replaces, or what it says first when it has failed.

Called by `launch` and `recovery`. When a process is killed, those that were in a collective with it fail as
well, often earlier than its death is noticed, and theirs are the errors that arrive.
"""

from rljob_runtime.processes.placement import Actors, Member


def the_dead(actors: Actors) -> tuple[list[Member], list[str]]:
    """Devices that have died, and of `feeder` and `reward-0` those that have, as far as that shows in a few
    seconds."""
    named = actors.others
    died = actors.pool.workers.dead([*actors.devices, *named.values()])
    devices, others = died[: len(actors.members)], died[len(actors.members) :]
    return (
        [member for member, dead in zip(actors.members, devices, strict=True) if dead],
        [name for name, dead in zip(named, others, strict=True) if dead],
    )


def dead_devices(actors: Actors) -> str:
    """`device 1 (HOST), device 3 (HOST) died`, or "" where all that answer in time live."""
    died = actors.pool.workers.dead(actors.devices)
    dead = [member for member, its in zip(actors.members, died, strict=True) if its]
    names = [f"device {m.role.rank} ({m.place.host})" for m in dead]
    return f"{', '.join(sorted(names))} died" if names else ""
