"""What is generated from the fields: the resource's definition with its CEL rules, and pages about it.

In: the classes of `spec`. Out: files that `make generate` writes and `make check` compares. Called at no run.
"""
