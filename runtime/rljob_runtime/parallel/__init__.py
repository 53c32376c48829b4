"""Parallel primitives of training: functions over tensors and process groups that know no model.

Called by what puts a model on the ranks of the update layout. `group` None stands for one rank.

Arithmetic, without torch: `ranks` places and groups, `context` which tokens a rank holds, `pipeline_schedule`
order of pipeline steps, `buckets` parameters end to end, `volume` bytes of collectives. Between ranks:
`process_groups` makes process groups, `wire` has the collectives, `sequence` those with gradients. What they
share: `tensor` matrices, `vocabulary` embedding and log-probs, `expert` experts, `ring` (with
`block_attention`) and `ulysses` sequences, `pipeline` layers, `gradients`, `zero` and `fully_sharded` what
data parallel ranks would repeat.
"""
