"""What the dock's clients are made of: connections, puts, reads, and the leases that they keep alive."""
