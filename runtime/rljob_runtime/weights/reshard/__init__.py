"""Executes the plans of `rljob_plan.resharding` on tensors: collectives, buffers, and what leaves when.

Knows neither jobs nor engines: those hand it the tensors that they train, and take what they generate with.
"""
