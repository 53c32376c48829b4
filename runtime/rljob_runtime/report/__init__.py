"""What is shown of a run: a history of its events becomes terminal, page, charts, figures and advice.

In: events, as they come or from a file. Out: text, HTML, Prometheus' text, and what trackers are sent.
Called by `run` and `cli`. Knows no worker and asks none: whatever it shows has been an event.
"""
