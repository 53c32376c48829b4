"""`rljob watch`: a live view of a run, on the terminal and as a page, from its events alone.

`follow` reads new events; `runs` provides their source and detects the end of a run; `on_terminal` and
`watched_page` display them. A job's own `status_server` also serves the page on a cluster.
"""
