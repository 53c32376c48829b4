"""The update engines `megatron` and `mindspeed`: layers, gradients and optimizer of Megatron Core, which
MindSpeed adapts to Ascend.

`core` is the table of what is called there, and `on_cpu` what answers it without an accelerator; `model`
makes a decoder of Megatron's layers, `layers` is what these are given of this project's, `weights` translates
names, `engine` is what the update state calls, and `step` what it gives back while samples come. Nothing of
Megatron or MindSpeed is imported before an engine is made.
"""
