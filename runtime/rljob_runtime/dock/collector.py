"""How a dock server's process collects garbage: rarely, and not what it started with.

A server makes many objects that live for a while and hardly any cycles. With Python's own settings
the collector looks at all of them every few thousand rows, and whoever asks then waits for it.
"""

import gc

NEW_OBJECTS, YOUNG, MIDDLE = 50_000, 20, 50


def collect_rarely() -> None:
    """For this process, once it has loaded what it needs."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, YOUNG, MIDDLE)
