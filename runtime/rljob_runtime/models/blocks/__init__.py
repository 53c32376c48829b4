"""The parts that layers of all families are built from: single-device code, one block a file.

Put together by `decoder`; parameter names are Hugging Face's. The rollout's forms are in `fused`.
"""
