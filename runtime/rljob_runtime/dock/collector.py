"""Garbage collection in a dock server's process: rarely, and without the objects of its start.

A server creates many objects that live for a while and hardly any cycles. With Python's default settings the
collector examines all of them every few thousand rows, which delays requests.
"""

import gc

NEW_OBJECTS, YOUNG, MIDDLE = 50_000, 20, 50


def collect_rarely() -> None:
    """Make this process collect rarely; call it once everything is loaded."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, YOUNG, MIDDLE)
