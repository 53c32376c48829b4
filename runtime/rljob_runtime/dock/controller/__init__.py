"""A controller: which rows are ready for its state, who holds them, who is next; `controller_server` is the
process."""
