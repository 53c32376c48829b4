"""The decoders in the form that generates fast: fused matrices, one token per sequence at a time.

The `torch` rollout engine calls this; it computes what `decoder` computes, without gradients.
"""
