"""Run agents: programs of a user that play samples through an OpenAI-compatible endpoint.

`agent_pool` runs them in child processes. `chat_request` parses their requests and makes messages from
the policy's output.
"""
