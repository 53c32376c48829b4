"""What the process that workers are forked from imports, so that none of them does. Named by `local_workers`.

What is there is frozen: a worker that collects garbage would look at all of it, and so copy its memory.
"""

import gc
from importlib import import_module

from rljob_runtime.processes.stop_signals import disregard

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

disregard()  # before what takes seconds to import
for module in MODULES:
    import_module(module)
import_module("rljob_runtime.task.data.gym").import_factory()
gc.collect()
gc.freeze()
