"""Samples as tensors, and the names of their batches and columns. Between the dock and whoever computes."""
