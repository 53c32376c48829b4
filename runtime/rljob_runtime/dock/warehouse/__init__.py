"""A warehouse: its storage of rows, its answers to reads, its broadcasts, its standby; `warehouse_server` is
the process."""
