"""What engines do on a device that is not the host, and on the host: a program of its own.

torch has its devices from the first backward pass of a process on; a fork of a test's has none to add.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from other_device import other_device

from rljob_runtime.cli.bring_up import generation, steps
from rljob_runtime.cli.bring_up.equipment import MODEL
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.weights import save_hf
from rljob_runtime.rollout.rollout_engine import Sampling
from rljob_runtime.rollout.rollout_torch import TorchRollout

EXPERTS: dict[str, Any] = {
    "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True,
    "mlp_only_layers": [1], "output_router_logits": True, "router_aux_loss_coef": 0.1,
}  # fmt: skip
SAMPLING = Sampling(temperature=1.0, top_p=0.9, top_k=50, max_response_length=16, eos_ids=(258,))
Drawn = tuple[dict[str, list[int]], str]


def main(folder: Path) -> None:
    """Print, as JSON, what came of it here and there by what was done."""
    torch.set_num_threads(1)
    dense, experts = saved(folder / "dense"), saved(folder / "experts", **EXPERTS)
    with other_device() as device:
        found = {
            "dense": gaps(dense, device),
            "experts": gaps(experts, device),
            "none": (drawn(dense, "cpu", "none"), drawn(dense, str(device), "none")),
            "int8": (drawn(dense, "cpu", "int8"), drawn(dense, str(device), "int8")),
            "mixed": mixed(device),
        }
    sys.stdout.write(json.dumps(found))


def saved(folder: Path, **changes: Any) -> Path:
    config = MODEL | {"num_hidden_layers": 2} | changes
    decoder = Decoder(read_architecture(config))
    decoder.initialize(1, std=0.05)
    save_hf(decoder.named_hf_parameters(), folder=folder, config=config)
    return folder


def gaps(path: Path, device: torch.device) -> dict[str, float]:
    """Of steps there, beside steps here."""
    here = steps.train(path, "torch", torch.device("cpu"), MemoryLedger(device="host"))
    ledger = MemoryLedger(device="other")
    there = steps.train(path, "torch", device, ledger, here.logprobs_T)
    assert (here.device, there.device) == ("cpu", "other")
    return steps.gaps_of(there, here)


def drawn(path: Path, device: str, quantization: Any) -> Drawn:
    """Samples, and the sum of the weights that were given afterwards."""
    engine = TorchRollout(
        path, dtype=torch.float32, max_sequences=6, max_length=32, device=device,
        quantization=quantization,
    )  # fmt: skip
    if quantization == "none":
        assert {str(own.device) for own in engine.slices().values()} == {device}
    parts = list(engine.generate(generation.prompt_groups(), SAMPLING))
    policy = load_decoder(path, dtype=torch.float32)
    engine.load_weights(policy.named_hf_parameters(), version=1)
    return {one.uid: one.token_ids for part in parts for one in part}, engine.checksum()


def mixed(device: torch.device) -> str:
    try:
        torch.ones(3, device=device) + torch.ones(3)
    except RuntimeError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
