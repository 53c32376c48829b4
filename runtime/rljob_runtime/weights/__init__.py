"""Move weights from the layout that trains to the layout that generates.

Input: tensors of an update engine. Output: a rollout engine that holds them, verified. `port` is a device's
end of the transfer: slices by a plan (`reshard_state`, which `reshard` executes), or full tensors
(`weight_sync`). `arrivals` receives either while a device generates. Called by `worker`. Uses engines through
their protocols only, and no samples.
"""
