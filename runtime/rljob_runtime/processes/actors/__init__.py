"""Implement the processes of a run as Ray actors: dock servers, prompt feeder, reward workers, device
workers.

Ray places, calls and restarts them. Sample data moves between them only through the dock.
"""
