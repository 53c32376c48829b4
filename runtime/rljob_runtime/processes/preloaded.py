"""What the process that workers are forked from imports, so that none of them does. Named by `local`.

What is there is frozen: a worker that collects garbage would look at all of it, and so copy its memory.
"""

import gc

import rljob_runtime.actors.device
import rljob_runtime.actors.dock
import rljob_runtime.actors.feeder
import rljob_runtime.actors.reward
import rljob_runtime.record.profiles.recorder
import rljob_runtime.rewards.child
import rljob_runtime.states.making
import rljob_runtime.states.update  # noqa: F401
from rljob_runtime.data.gym import import_factory

import_factory()
gc.collect()
gc.freeze()
