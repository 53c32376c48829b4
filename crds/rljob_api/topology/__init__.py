"""Which devices, nodes and pods a job has, what each does, and what they are called. Arithmetic of the
fields."""
