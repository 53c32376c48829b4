"""The table of checks, in the order in which they run. Imports nothing that the checks import."""

from dataclasses import dataclass

MOST_SECONDS = 1200.0
"""Of a whole bring-up: no node is asked for longer."""
MANY = 64
ROOM = "rljob_runtime.cli.bring_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row. name: as users see it. seconds: after which its processes are killed. work: a module and
    its function. most: of its processes, one a device. says: what passes."""

    name: str
    seconds: float
    work: str
    says: str
    most: int = 1


CHECKS = (
    Check(
        name="device",
        seconds=60,
        work=f"{ROOM}.on_device:device",
        says="devices are visible, of one type, and multiply matrices as the host does",
    ),
    Check(
        name="memory",
        seconds=60,
        work=f"{ROOM}.on_device:memory",
        says="half of what is free is taken, holds what is written, and is given back; more is refused",
    ),
    Check(
        name="kernels",
        seconds=120,
        work=f"{ROOM}.on_device:kernels",
        says="each kernel's result and gradients are its reference's on the host",
    ),
    Check(
        name="collectives",
        seconds=90,
        work=f"{ROOM}.on_ranks:collectives",
        most=MANY,
        says="a group over all devices computes each collective that training uses",
    ),
    Check(
        name="host-swap",
        seconds=60,
        work=f"{ROOM}.on_device:host_swap",
        says="tensors leave to the host and come back with the same bits",
    ),
    Check(
        name="step-torch",
        seconds=90,
        work=f"{ROOM}.steps:torch_step",
        says="GRPO steps of the engine `torch` are those on the host",
    ),
    Check(
        name="step-megatron",
        seconds=150,
        work=f"{ROOM}.steps:megatron_step",
        says="GRPO steps of `mindspeed` (`megatron` without NPUs) are those of `torch` on the host",
    ),
    Check(
        name="generation",
        seconds=240,
        work=f"{ROOM}.generation:vllm",
        says="vLLM draws tokens whose log-probs are the model's, also with weights that it is given",
    ),
    Check(
        name="reshard",
        seconds=90,
        work=f"{ROOM}.on_ranks:reshard",
        most=8,
        says="allgather-swap gives each device its slices, and moves the bytes that were planned",
    ),
    Check(
        name="quickstart",
        seconds=240,
        work=f"{ROOM}.whole_run:quickstart",
        says="`rljob run` of three steps succeeds",
    ),
)
NAMES = tuple(check.name for check in CHECKS)
FIRST = CHECKS[0].name
"""What all others need."""
