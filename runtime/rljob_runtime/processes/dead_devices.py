"""Find the device workers that have died: a run replaces them, or names them first when it has failed.

Called by `launch` and `recovery`. When a process is killed, those in a collective with it fail as well.
Often their errors arrive before its death is noticed.
"""

from rljob_runtime.processes.placement import Actors, Member


def find_dead(actors: Actors) -> tuple[list[Member], list[str]]:
    """Return the devices that have died, and the dead ones of `feeder` and `reward-0`, as far as this
    can be seen within a few seconds."""
    named = actors.others
    died = actors.pool.workers.dead([*actors.devices, *named.values()])
    devices, others = died[: len(actors.members)], died[len(actors.members) :]
    return (
        [member for member, dead in zip(actors.members, devices, strict=True) if dead],
        [name for name, dead in zip(named, others, strict=True) if dead],
    )


def dead_devices(actors: Actors) -> str:
    """Return `device 1 (HOST), device 3 (HOST) died`, or "" if all that answer in time are alive."""
    died = actors.pool.workers.dead(actors.devices)
    dead = [member for member, has_died in zip(actors.members, died, strict=True) if has_died]
    names = [f"device {m.role.rank} ({m.place.host})" for m in dead]
    return f"{', '.join(sorted(names))} died" if names else ""
