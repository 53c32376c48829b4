"""Agents: programs of a user that play samples through an OpenAI-compatible endpoint. `agent_pool` runs them
in child processes, `chat_request` reads what they ask and makes messages of what the policy drew."""
