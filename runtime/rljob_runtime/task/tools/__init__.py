"""Tools that a policy calls while it generates: `call_format` finds calls in tokens and makes tokens of
answers, `tool_pool` runs them in child processes, `tool_table` makes each by its type."""
