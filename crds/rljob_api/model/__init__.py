"""The shape of a language model, by arithmetic: tensors, layers, and which slices a rank of a layout holds.

In: a config.json and degrees. Out: parts and bytes; `volumes` has the paper's equations. Reads no weights.
"""
