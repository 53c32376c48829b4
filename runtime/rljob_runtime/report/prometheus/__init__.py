"""What a run tells Prometheus: `families` names the metrics, `exposition` keeps and writes them.

`run_figures` fills them from the run's events; docs/metrics.md describes each.
"""
