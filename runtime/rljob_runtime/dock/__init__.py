"""The distributed transfer dock: warehouses hold samples, controllers their metadata."""
