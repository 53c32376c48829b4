"""A decoder on the ranks of the update layout: blocks stay code of one device, techniques come from outside.

Called by whoever trains with several ranks a model: `policy.load_parallel` makes this rank's part of it.
Techniques are applied in this order, each to what the ones before left:

1. `parameters`: layers and ends of this rank's pipeline stages, and of every tensor the slice that
   `rljob_api.model.layout` gives this rank.
2. `tensor_linears`: tensor parallel matrices with sequence parallel tokens between them.
3. `expert_layers`: expert parallel feed-forwards, or experts that are cut as matrices are.
4. `context_attention`: context parallel attention, by Ulysses or in a ring.
5. `vocabulary_ends`: the vocabulary's embedding and log-probs, and tokens cut to the shares that 2 to 4 take.
6. `policy.share_weights`: rows of each tensor a rank (ZeRO 3).

What a model returns is then the same on all ranks of a replica (context × tensor), and gradients are
a rank's part of a sum over the group that `parallel.ranks.gradient_purpose` names for the tensor.
Where experts are shared over data ranks, these run equally many passes, each with a token at least.

A model with a pipeline scores by its `logprobs`; to train it, `pipeline_passes.run_micro_batches` takes a
list of micro-batches and a loss forward and backward, and tells all ranks what the last stage found. Without
a pipeline it does the same one after the other, so an engine may call it for every layout: the list of an
optimizer step with a loss, then `ParallelOptimizer.step`; without a loss, to score. `tokens` is the
arithmetic of shares of packed tokens. Which degrees a model cannot have, the contract's rules say
(`rljob_api.check.shape_rules`), before anything starts.
"""
