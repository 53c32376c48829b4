"""Everything that depends on a device's hardware: memory, streams, collectives, and fused operations.

In: an accelerator's type. Out: a backend. `kernels` has one file per operation; `sync_group` is the group for
weights that devices join and leave. Called by engines, models and workers. Imports neither models nor jobs.
"""
