"""How weights get from the layout that trains to the one that generates.

In: tensors of an update engine. Out: a rollout engine that holds them, checked. `reshard` executes plans
between layouts on one set of devices; `weight_sync` sends whole tensors to separate ones. Called by `worker`.
Knows engines by their seams alone, and no samples.
"""
