"""The blocks that layers of all families are built from: single-device code, one block per file.

`decoder` assembles them; parameter names are Hugging Face's. The rollout's versions are in `fused`.
"""
