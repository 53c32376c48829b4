"""Samples as tensors, and the names of their batches and columns.

In: rows of the dock. Out: the tensors that a state computes on, over the dock's memory. The states that
compute use it, and the driver uses the names. It depends on the dock's columns only: no model, engine or
process.
"""
