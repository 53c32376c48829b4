"""A warehouse: where rows lie, who reads them, what is broadcast, its standby; `warehouse_server` is the
process."""
