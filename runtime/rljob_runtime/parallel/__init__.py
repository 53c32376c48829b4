"""Parallel primitives of training: functions over tensors and process groups that know no model.

Called by what puts a model on the ranks of the update layout. `group` None stands for one rank.
"""
