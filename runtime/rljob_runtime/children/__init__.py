"""Child processes that are asked in lines of JSON, and that end with their parent.

`task` and `report` start them. The content of the requests is defined there.
"""
