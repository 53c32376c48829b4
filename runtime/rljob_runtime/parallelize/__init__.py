"""A decoder on the ranks of the update layout: blocks stay code of one device, techniques come from outside.

Called by whoever trains with several ranks a model: `policy.load_parallel` makes this rank's part of it.
Techniques are applied in this order, each to what the ones before left:

1. `parameters`: every tensor becomes the slice that `rljob_api.layout` gives this rank.
2. `linears`: tensor parallel matrices with sequence parallel tokens between them.
3. `experts`: expert parallel feed-forwards, or experts that are cut as matrices are.
4. `attention`: context parallel attention by Ulysses.
5. `ends`: the vocabulary's embedding and log-probs, and tokens cut to the shares that 2 to 4 take.

What a model returns is then the same on all ranks of a replica (context × tensor), and gradients are
a rank's part of a sum over the group that `parallel.ranks.gradient_purpose` names for the tensor.
Where experts are shared over data ranks, these run equally many passes, each with a token at least.
`tokens` is the arithmetic of shares of packed tokens, `rules` says which degrees a model cannot have.
"""
