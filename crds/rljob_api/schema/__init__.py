"""The resource's definition, and pages about it, generated from the fields: `make generate` writes them."""
