"""All that is known of a device's hardware: memory, streams, collectives, and operations with fused forms.

In: an accelerator's type. Out: a backend. `kernels` has one file an operation; `sync_group` is the group for
weights that devices join and leave. Called by engines, models and workers. Knows neither models nor jobs.
"""
