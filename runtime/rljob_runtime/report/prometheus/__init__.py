"""The Prometheus metrics of a run: `families` names them, `exposition` stores and writes them.

`run_figures` sets them from the run's events; docs/metrics.md describes each.
"""
