"""Rollout engines: token ids in, token ids and log-probs out.

`rollout_engine` is the seam, `rollout_table` makes the engine that a job names: `rollout_torch`, vLLM or a
package's. Around them: sampling, the KV cache, turns with tools and games; `parallel_rollout` lets devices
share a model. Called by `worker` and `weights`. Knows neither rewards nor the dock.
"""
