"""What the process that workers are forked from imports, so that none of them does. Named by `local_workers`.

What is there is frozen: a worker that collects garbage would look at all of it, and so copy its memory.
"""

import gc

from rljob_runtime.task.data.gym import import_factory

import_factory()
gc.collect()
gc.freeze()
