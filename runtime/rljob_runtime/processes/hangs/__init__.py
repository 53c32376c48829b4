"""Report the state of each process when a run hangs: its stacks, and for the dock its contents."""
