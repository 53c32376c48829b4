"""Games that samples play: `pool` keeps their sessions in child processes, `table` makes each environment by
its name, `conversation` makes tokens of observations."""
