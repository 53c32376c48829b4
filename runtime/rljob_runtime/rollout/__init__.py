"""Rollout engines: token ids in, token ids and log-probs out.

`rollout_engine` defines the protocols, `rollout_table` creates the engine that a job names: `rollout_torch`,
vLLM or a package's. Around them: sampling, the KV cache, and turns with tools and games; `parallel_rollout`
shares a model over several devices. Called by `worker` and `weights`. Independent of rewards and of the dock.
"""
