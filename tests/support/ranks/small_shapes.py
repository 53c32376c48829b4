"""Shapes of models that are small enough to count by hand: dense, and with experts."""

from rljob_api.model.architecture import ExpertSizes, Shape

DENSE = Shape(
    family="llama", vocab=1000, hidden=64, layers=4, intermediate=128, heads=8, kv_heads=4,
    head_dim=8,
)  # fmt: skip
SPARSE = Shape(
    family="qwen3_moe", vocab=1000, hidden=64, layers=4, intermediate=128, heads=8, kv_heads=4,
    head_dim=8, experts=ExpertSizes(count=8, intermediate=32),
)  # fmt: skip
