"""One pass over one job: observe, decide, apply. Each pass begins from what is there, never from what
happened."""
