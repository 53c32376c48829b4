"""How weights get from the layout that trains to the one that generates.

In: tensors of an update engine. Out: a rollout engine that holds them, checked. `port` is what a device has
of it: slices by a plan (`reshard_state`, which `reshard` executes), or whole tensors (`weight_sync`);
`arrivals` takes either while a device generates. Called by `worker`. Knows engines by their seams alone, and
no samples.
"""
