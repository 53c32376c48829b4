"""Tools that a policy calls while it generates: `call_format` finds calls in tokens and makes tokens of
answers, `tool_pool` runs them in child processes, where `tool_child` makes each by its type."""
