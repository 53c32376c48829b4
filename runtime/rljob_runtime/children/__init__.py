"""Child processes that are asked in lines of JSON, and that end with their parent.

Called by `task` and `report`. Knows nothing of what is asked.
"""
