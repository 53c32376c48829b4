"""Samples that agents play. Called by the rollout engines.

`endpoint` receives requests, `session` finds the turn that each request continues, and `agent_turns` passes
them to the engine and returns what it generated.
"""
