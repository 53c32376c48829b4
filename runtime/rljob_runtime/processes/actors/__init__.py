"""The processes of a run, as Ray actors: dock servers, prompt feeder, reward workers, device workers.

Ray places, calls and restarts them; sample data goes between them through the dock alone.
"""
