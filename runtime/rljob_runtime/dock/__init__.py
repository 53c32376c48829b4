"""The distributed transfer dock: warehouses store samples, controllers their metadata.

Workers call `client` and `aio`; `local_servers` and `serve` start servers; both sides use `columns`, `rows`
and `graph`. The subpackages are `warehouse`, `controller`, `clients`, and `wire` between them.
"""
