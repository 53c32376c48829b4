"""The update engines `megatron` and `mindspeed`: layers, gradients and optimizer of Megatron Core, which
MindSpeed adapts to Ascend.

`core` is the table of what is called there, and `on_cpu` what answers it without an accelerator; `model`
makes a decoder of Megatron's layers, `layers` is what these are given of this project's, `weights` translates
names, `optimizer` has Megatron's gradients and steps, and `engine` puts them together. Nothing of Megatron or
MindSpeed is imported before an engine is made.
"""
