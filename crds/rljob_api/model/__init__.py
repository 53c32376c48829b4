"""Compute the shape of a language model: its tensors and layers, and the slice that each rank of a layout
holds.

In: a config.json and degrees. Out: slices and bytes; `volumes` has the paper's equations. No weights are
read.
"""
