"""A warehouse: where rows lie, who reads them, what is broadcast, its standby; `server` is the process."""
