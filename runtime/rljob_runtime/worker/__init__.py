"""What a device does in each of its states: generate, score, compare, update, receive weights.

Input: rows of the dock, claimed from the state's controller. Output: columns of these rows, and reports.
`processes.actors` calls this package; `build` creates the states of a device's role. It does not depend on
Ray or the driver.
"""
