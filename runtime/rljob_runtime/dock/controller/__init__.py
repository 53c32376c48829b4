"""A controller: which rows are ready for its state, who holds them, who gets the next; `controller_server` is
the process."""
