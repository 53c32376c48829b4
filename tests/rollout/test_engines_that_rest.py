"""An engine whose weights and cache leave the device between generations: in what order it is called."""

from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import Tensor

from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.rollout.sync_probe import policy_logprobs
from rljob_runtime.weights.held_policy import FullPolicy
from rljob_runtime.weights.weight_sync import WeightSync


class SwappedTensors:
    """Takes down what it is called with, and scores as the policy does."""

    def __init__(self, policy: PolicyModel) -> None:
        self.policy, self.made = policy, []

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], *, version: int) -> None:
        self.made.append(f"load version {version}, {len(dict(weights))} tensors")

    def probe(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        self.made.append("probe")
        found = policy_logprobs(self.policy, sequences).split([len(s) - 1 for s in sequences])
        return [logprobs.tolist() for logprobs in found]

    def sleep(self) -> None:
        self.made.append("sleep")

    def wake(self) -> None:
        self.made.append("wake")


@pytest.mark.parametrize("rests", [True, False])
def test_weights_come_before_the_cache_and_both_before_the_probe(save_reference, rests):
    policy = load_policy(save_reference("qwen3")[1], dtype=torch.float32)
    engine, number = SwappedTensors(policy), len(dict(policy.named_hf_parameters()))
    sync = WeightSync(
        policy=FullPolicy(model=policy),
        rollout=engine,  # type: ignore[arg-type]
        dtype=torch.float32,
        synced=torch.float32,
        vocab_size=71,
        max_length=64,
        rests=rests,
    )

    sync.end_generation()
    report = sync.run(version=2)

    loaded = f"load version 2, {number} tensors"
    expected = ["sleep", loaded, "wake", "probe"] if rests else [loaded, "probe"]
    assert engine.made == expected
    assert report.rests == rests
