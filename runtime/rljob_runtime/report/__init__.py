"""The displays of a run: a history of its events becomes terminal, page, charts, figures and advice.

In: events, live or from a file. Out: text, HTML, Prometheus text, and the metrics sent to trackers. Called by
`run` and `cli`. It never calls workers: all displayed data comes from events.
"""
