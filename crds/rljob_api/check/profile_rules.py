"""Rules on profiles: their steps and devices must exist. Called by `load`."""

from collections import Counter
from collections.abc import Iterator

from rljob_api.check.rules import Rule
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJobSpec
from rljob_api.topology.devices import used_devices


def profile_rule(spec: RLJobSpec) -> Iterator[Problem]:
    """Require that each step and device is named once and exists."""
    if spec.profile is None:
        return
    devices = used_devices(spec.placement, spec.accelerator)
    for name, numbers in (("steps", spec.profile.steps), ("ranks", spec.profile.ranks)):
        for number, times in Counter(numbers).items():
            if times > 1:
                yield Problem(f"spec.profile.{name}", f"has {number} {times} times; name it once")
    last = max(spec.profile.steps)
    if last > spec.steps:
        yield Problem(
            "spec.profile.steps",
            f"has {last}, but the job makes {spec.steps} steps (spec.steps); use 1 to {spec.steps}",
        )
    highest = max(spec.profile.ranks)
    if 0 < devices <= highest:
        yield Problem(
            "spec.profile.ranks",
            f"has {highest}, but the job has {devices} devices; use 0 to {devices - 1}",
        )


PROFILE_RULES: tuple[Rule, ...] = (profile_rule,)
