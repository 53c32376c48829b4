"""Parallel primitives of training: functions over tensors and process groups that know no model.

Called by what puts a model on the ranks of the update layout, `decoder`, which alone here knows models.
`group` None stands for one rank.

Arithmetic, without torch: `ranks` places and groups, `context` which tokens a rank holds, `pipeline_schedule`
order of pipeline steps, `volume` bytes of collectives. Between ranks: `process_groups` makes process groups,
`sequence` has collectives with gradients (those without are `devices.wire`). What they share: `tensor`
matrices, `vocabulary` embedding and log-probs, `expert` experts, `ring` and `ulysses` sequences, `pipeline`
layers, `fully_sharded` what data parallel ranks would repeat; gradients and ZeRO 1 and 2 are the room
`update`'s.
"""
