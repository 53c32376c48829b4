"""Run games that samples play.

`game_pool` keeps their sessions in child processes. `environment_table` creates each environment by its
name. `conversation` encodes observations as tokens.
"""
