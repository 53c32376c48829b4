"""One pass over one job: observe, decide, apply.

In: a job's name. Out: changes of the cluster, and when to look again. Each pass begins from what is there,
never from what happened. What is to be done, `decide` says.
"""
