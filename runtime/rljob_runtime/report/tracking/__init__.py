"""Trackers: where the metrics of steps and evaluations go beside the run's events (spec.tracking).

`trackers` subscribes to the events; each tracker is a file of its own and lives in a child process, so that
nothing that it does reaches the run.
"""
