"""Operations that devices have fused forms of, one file each. Called by models, engines and parallel.

A file has the operation, its plain-torch reference of the same signature, and the form for Ascend,
which the operation picks by its tensors' device; all other devices run the portable form.

Ascend forms call `torch.ops.npu`. Nothing imports torch_npu for it: an NPU tensor exists only where
torch_npu is loaded, and loading it registers its operators. They are called with the arguments that
torch_npu 2.10 to 2.13 have in common; `tests/devices/kernels` runs them on CPU against these schemas.

How much faster a portable form is than its reference, as its docstring says, was measured forward and
backward in float32 on one thread of an AMD EPYC, both in turns in one process.

Gradients on Ascend: torch_npu registers autograd for npu_fusion_attention, npu_rms_norm, npu_swiglu,
npu_rotary_mul, npu_moe_token_permute and npu_moe_token_unpermute (its library has their `Backward0`
nodes), and its nodes keep what the backward operators need. So these are called as they are; calling
the backward operators from here would only repeat torch_npu's bookkeeping, which changes with its
versions. npu_grouped_matmul has no such node: its gradient is written out in `grouped_matmul`. A block
of ring attention has its gradient from npu_fusion_attention_grad, given the sums over all blocks.
"""
