"""Operations with fused forms on devices, one file each. Called by models, engines and parallel.

A file has the operation, its plain-torch reference of the same signature, and the form for Ascend, which the
operation selects by its tensors' device. All other devices run the portable form.

Ascend forms call `torch.ops.npu` without importing torch_npu: an NPU tensor exists only where torch_npu is
loaded, and loading it registers its operators. They are called with the arguments that
torch_npu 2.10 to 2.13 have in common; `tests/devices/kernels` runs them on CPU against these schemas.

Docstrings state how much faster a portable form is than its reference. This was measured forward and backward
in float32 on one thread of an AMD EPYC, alternating both in one process.

Gradients on Ascend: torch_npu registers autograd for npu_fusion_attention, npu_rms_norm, npu_swiglu,
npu_rotary_mul, npu_moe_token_permute and npu_moe_token_unpermute (its library has their `Backward0`
nodes), which save the inputs of the backward operators. So they are called directly: calling the backward
operators here would repeat torch_npu's bookkeeping, which changes between versions. npu_grouped_matmul has no
such node: `grouped_matmul` implements its gradient. Ring attention computes a block's gradient by
npu_fusion_attention_grad, with the sums over all blocks.
"""
