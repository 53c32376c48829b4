"""Generate files from the fields: the resource's definition with its CEL rules, and pages about it.

In: the classes of `spec`. Out: files that `make generate` writes and `make check` compares. No run calls it.
"""
