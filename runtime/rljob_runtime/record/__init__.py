"""What a run leaves: events, spans, metrics, checkpoints, traces, and copies of them elsewhere.

In: reports of workers and the driver's words. Out: files of the run's folder, on this machine or on remote
storage. Called by `run`, `processes` and `worker`; `report` reads it. Decides nothing.
"""
