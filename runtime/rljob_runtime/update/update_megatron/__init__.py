"""The update engines `megatron` and `mindspeed`: layers, gradients and optimizer of Megatron Core, which
MindSpeed adapts to Ascend.

`core` is the table of Megatron's functions and classes, and `on_cpu` replaces its accelerator calls. `model`
creates a decoder of Megatron's layers, `layers` adapts these to this project, `weights` translates names,
`optimizer` has Megatron's gradients and steps, and `engine` assembles them. Nothing of Megatron or MindSpeed
is imported before an engine is created.
"""
