"""The distributed transfer dock: warehouses hold samples, controllers their metadata.

`client` and `aio` are what workers call, `local_servers` and `serve` start servers; `columns`, `rows` and
`graph` are what both sides speak of. Within: `warehouse`, `controller`, `clients`, and `wire` between.
"""
