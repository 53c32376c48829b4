"""What a device worker does in each of its states: generate, reference, update, weight sync.

A state claims rows from its controller, reads their columns, computes, and writes its own.
"""
