"""A probe: short-lived pods, one a node, that look around and then sum a tensor over all of them.

`plan` says which pods, `pods` makes their manifests, `course` makes, asks and deletes them, `judge` tells
what it means. `in_pod` is the program in the pods; it travels with them, as the image's rljob may be another.
"""
