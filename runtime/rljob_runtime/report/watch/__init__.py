"""`rljob watch`: a run's live view, on the terminal and as a page, from its events alone.

`follow` reads events as they come, `runs` knows where they come from and when none can come any more;
`on_terminal` and `watched_page` show them. The page of a job on a cluster is served by its `status_server`
too.
"""
