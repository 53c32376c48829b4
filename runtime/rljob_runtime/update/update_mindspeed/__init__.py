"""The update engine `mindspeed`: Megatron Core's model, gradients and optimizer, adapted by MindSpeed.

`megatron` is the table of what is called there, `model` makes a GPTModel of the policy, `megatron_weights`
translates names and layouts, `engine` is what the update state calls, and `megatron_step` what it gives back
while samples come. Nothing of MindSpeed or Megatron is imported before an engine is made.
"""
