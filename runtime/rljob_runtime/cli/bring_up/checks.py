"""The table of checks, in the order in which they run. Imports nothing that the checks import."""

from dataclasses import dataclass

MAX_SECONDS = 1200.0
"""Limit of a full bring-up: no node is occupied for longer."""
MAX_DEVICES = 64
PACKAGE = "rljob_runtime.cli.bring_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row. name: as shown to users. seconds: deadline at which its processes are killed. work: a module
    and its function. max_processes: limit of its processes, one per device. description: what the check
    verifies."""

    name: str
    seconds: float
    work: str
    summary: str
    max_processes: int = 1


CHECKS = (
    Check(
        name="device",
        seconds=60,
        work=f"{PACKAGE}.on_device:device",
        summary="devices are visible, of one type, and multiply matrices as the host does",
    ),
    Check(
        name="memory",
        seconds=60,
        work=f"{PACKAGE}.on_device:memory",
        summary="half of what is free is taken, holds what is written, and is given back; more is refused",
    ),
    Check(
        name="kernels",
        seconds=120,
        work=f"{PACKAGE}.on_device:kernels",
        summary="each kernel's result and gradients are its reference's on the host",
    ),
    Check(
        name="collectives",
        seconds=90,
        work=f"{PACKAGE}.on_ranks:collectives",
        max_processes=MAX_DEVICES,
        summary="a group over all devices computes each collective that training uses",
    ),
    Check(
        name="host-swap",
        seconds=60,
        work=f"{PACKAGE}.on_device:host_swap",
        summary="tensors leave to the host and come back with the same bits",
    ),
    Check(
        name="step-torch",
        seconds=90,
        work=f"{PACKAGE}.steps:torch_step",
        summary="GRPO steps of the engine `torch` are those on the host",
    ),
    Check(
        name="step-megatron",
        seconds=150,
        work=f"{PACKAGE}.steps:megatron_step",
        summary="GRPO steps of `mindspeed` (`megatron` without NPUs) are those of `torch` on the host",
    ),
    Check(
        name="generation",
        seconds=240,
        work=f"{PACKAGE}.generation:vllm",
        summary="vLLM draws tokens whose log-probs are the model's, also with weights that it is given",
    ),
    Check(
        name="reshard",
        seconds=90,
        work=f"{PACKAGE}.on_ranks:reshard",
        max_processes=8,
        summary="allgather-swap gives each device its slices, and moves the bytes that were planned",
    ),
    Check(
        name="quickstart",
        seconds=240,
        work=f"{PACKAGE}.whole_run:quickstart",
        summary="`rljob run` of three steps succeeds",
    ),
)
NAMES = tuple(check.name for check in CHECKS)
FIRST = CHECKS[0].name
"""The check that all others depend on."""
