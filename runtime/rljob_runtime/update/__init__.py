"""Update engines: samples in, an optimizer step out.

`update_engine` has the protocol, `update_table` creates the engine that a job names: `update_torch`,
MindSpeed's or a package's. The other modules are gradients, ZeRO, moments and offload. `worker` and `weights`
call this package. It uses algorithms only through their loss, and does not access the dock.
"""
