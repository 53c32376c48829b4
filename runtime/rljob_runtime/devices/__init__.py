"""Devices: memory ledger, collectives."""
