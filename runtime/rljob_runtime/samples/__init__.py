"""Samples as tensors, and the names of their batches and columns.

In: rows of the dock. Out: the tensors that a state computes on, over the dock's memory. Used by whoever
computes, and by the driver for names. Knows the dock's columns alone: no model, no engine, no process.
"""
