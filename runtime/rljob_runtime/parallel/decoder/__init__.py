"""Distribute a decoder over the ranks of the update layout; its blocks stay code for one device.

Called by code that trains a model on several ranks: `policy.load_parallel` builds this rank's shard of it.
Techniques are applied in this order, each to the result of the ones before:

1. `parameters`: the layers and ends of this rank's pipeline stages, and the slice of every tensor that
   `rljob_api.model.layout` assigns to this rank.
2. `tensor_linears`: tensor parallel matrices with sequence parallel tokens between them.
3. `expert_layers`: expert parallel feed-forwards, or experts that are sharded as matrices are.
4. `context_attention`: context parallel attention, by Ulysses or in a ring.
5. `vocabulary_ends`: the vocabulary's embedding and log-probs, and the tokens split into the shares that 2 to
   4 take.
6. `policy.share_weights`: rows of each tensor a rank (ZeRO 3).

A model's results are then the same on all ranks of a replica (context × tensor). Its gradients are a rank's
summand of a sum over the group that `parallel.ranks.gradient_purpose` returns for the tensor. Where data
ranks share experts, they run equally many passes, each with at least one token.

A model with a pipeline scores by its `logprobs`. To train it, `pipeline_passes.run_micro_batches` takes a
list of micro-batches and a loss, and broadcasts the last stage's results to all ranks. Without a pipeline it
runs the micro-batches one after the other, so an engine may call it for every layout: for an optimizer step
with a loss, then `ParallelOptimizer.step`; without a loss, to score. `tokens` computes the shares of packed
tokens. The rules of the API (`rljob_api.check.shape_rules`) reject degrees that a model cannot have, before a
job starts.
"""
