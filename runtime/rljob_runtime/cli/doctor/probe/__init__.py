"""A probe: short-lived pods, one per node, that inspect their environment and run an all-reduce.

`plan` selects the pods, `pods` builds their manifests, `course` creates, runs and deletes them, and `judge`
turns the results into findings. `in_pod` is the program in the pods; its text is sent with them, because the
image may contain another release of rljob.
"""
