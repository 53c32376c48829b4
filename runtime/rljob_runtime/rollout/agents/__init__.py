"""Samples that an agent plays: `endpoint` takes requests, `session` finds the turn that each goes on behind,
`agent_turns` gives them to the engine and takes what it drew. Called by the rollout engines."""
