"""Import what workers need in the process that they are forked from, so that no worker imports it. Named
by `local_workers`.

The imported objects are frozen: garbage collection in a worker would otherwise visit them all, and so
copy their memory.
"""

import gc
from importlib import import_module

from rljob_runtime.processes.stop_signals import ignore_stop_signals

MODULES = (
    "rljob_runtime.processes.actors.device_worker",
    "rljob_runtime.processes.actors.dock_worker",
    "rljob_runtime.processes.actors.feeder",
    "rljob_runtime.processes.actors.reward_worker",
    "rljob_runtime.record.profiles.recorder",
    "rljob_runtime.rollout.rollout_torch",
    "rljob_runtime.task.rewards.scorer_child",
    "rljob_runtime.update.update_torch",
    "rljob_runtime.worker.build",
    "rljob_runtime.worker.update",
)

ignore_stop_signals()  # before the imports, which take seconds
for module in MODULES:
    import_module(module)
import_module("rljob_runtime.task.data.gym").import_factory()
gc.collect()
gc.freeze()
