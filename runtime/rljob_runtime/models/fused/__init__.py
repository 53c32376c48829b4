"""The decoders in the form that generates fast: fused matrices, one token a sequence at a time.

Called by the `torch` rollout engine; computes what `fused_decoder` computes, without gradients.
"""
