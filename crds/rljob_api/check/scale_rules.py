"""Check the number of rollout devices of a job that trains. Called by the runtime when another one is
requested."""

from rljob_api.check.load import rule_problems
from rljob_api.spec.problems import Problem
from rljob_api.spec.rljob import RLJob, RLJobSpec
from rljob_api.topology.elastic import is_elastic, scaled

COUNT_PATH = "spec.placement.rolloutDevices"


def scale_problems(job: RLJob, rollout: int) -> list[Problem]:
    """Return why a valid job cannot have `rollout` devices that generate."""
    if not is_elastic(job.spec):
        return [Problem(COUNT_PATH, _fixed(job.spec))]
    if rollout < 1:
        return [Problem(COUNT_PATH, f"is {rollout}; must be at least 1")]
    model_devices = job.spec.rollout.parallelism.model_devices
    if rollout % model_devices:
        below = rollout // model_devices * model_devices
        legal = f"{below} or {below + model_devices}" if below else str(model_devices)
        reason = f"{model_devices} devices hold a model together (spec.rollout.parallelism)"
        return [Problem(COUNT_PATH, f"is {rollout}, but {reason}; use {legal}")]
    return rule_problems(scaled(job, rollout).spec)


def _fixed(spec: RLJobSpec) -> str:
    if spec.placement.mode == "colocated":
        return "cannot change with mode colocated, where every device trains; make a new job"
    return "cannot change without updateDevices, which say how many devices stay; make a new job"
