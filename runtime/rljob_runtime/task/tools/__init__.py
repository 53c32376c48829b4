"""Run tools that a policy calls while it generates.

`call_format` finds calls in tokens and makes tokens of answers. `tool_pool` runs the tools in child
processes, where `tool_child` creates each by its type.
"""
