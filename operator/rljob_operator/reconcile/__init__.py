"""One pass over one job: observe, decide, apply.

In: a job's name. Out: changes of the cluster, and when to run the next pass. Each pass starts from the
current state, never from the event that triggered it. `decide` chooses what to do.
"""
