"""Update engines: samples in, an optimizer step out.

`update_engine` is the seam, `update_table` makes the engine that a job names: `update_torch`, MindSpeed's or
a package's. Around them: gradients, ZeRO, moments, offload. Called by `worker` and `weights`. Knows
algorithms by their loss alone, and no dock.
"""
