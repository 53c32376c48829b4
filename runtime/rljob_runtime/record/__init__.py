"""The outputs of a run: events, spans, metrics, checkpoints, traces, and their remote copies.

In: reports of the workers and the driver's events. Out: files of the run's folder, on this machine or on
remote storage. Called by `run`, `processes` and `worker`; read by `report`. Decides nothing.
"""
