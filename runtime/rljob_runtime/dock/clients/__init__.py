"""The components of the dock's clients: connections, puts, reads, and the leases that they renew."""
