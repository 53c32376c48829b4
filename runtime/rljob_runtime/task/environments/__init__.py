"""Games that samples play: `game_pool` keeps their sessions in child processes, `environment_table` makes
each environment by its name, `conversation` makes tokens of observations."""
