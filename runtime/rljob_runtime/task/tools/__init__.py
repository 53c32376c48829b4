"""Tools that a policy calls while it generates: `calls` finds calls in tokens and makes tokens of answers,
`pool` runs them in child processes, `table` makes each by its type."""
