"""Trackers receive the metrics of steps and evaluations in addition to the run's events (spec.tracking).

`trackers` subscribes to the events. Each tracker is a module of its own and runs in a child process, so that
its failures never reach the run.
"""
