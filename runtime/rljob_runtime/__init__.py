"""The runtime that an RLJob launches: Ray processes, engines, the transfer dock."""
