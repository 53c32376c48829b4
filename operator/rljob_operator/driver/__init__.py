"""What a job's driver says: Ray's API of submitted jobs, and the run's own status endpoint."""
