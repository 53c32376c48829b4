"""Traces of single steps (spec.profile): recorded by the device workers, written by the driver.

`recorder` runs in a worker, `traces` reads the recorded data, `writing` writes it into the run's folder.
"""
