"""What a device does in each of its states: generate, score, compare, update, take weights.

In: rows that the dock holds, claimed from the state's controller. Out: columns of these rows, and reports.
Called by `processes.actors`. `build` makes the states of a device's role. Knows neither Ray nor the driver.
"""
