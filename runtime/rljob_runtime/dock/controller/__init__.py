"""A controller: which rows are ready for its state, who holds them, who is next; `server` is the process."""
