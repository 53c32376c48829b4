"""Parallel primitives of training: functions over tensors and process groups, without knowledge of models.

Called by `decoder`, the one package here that knows models and distributes them over the update layout.
A `group` of None means a single rank.

Rank arithmetic, without torch: `ranks` computes coordinates and groups, `context` the tokens of a rank,
`pipeline_schedule` the order of pipeline steps, `volume` the bytes of collectives. Communication:
`process_groups` creates process groups; `sequence` has collectives with gradients (`devices.wire` has those
without). Sharding: `tensor` shards matrices, `vocabulary` embeddings and log-probs, `expert` experts, `ring`
and `ulysses` sequences, `pipeline` layers, and `fully_sharded` what data parallel ranks would repeat.
Gradients and ZeRO 1 and 2 belong to the package `update`.
"""
