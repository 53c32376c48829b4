"""The table of update engines: creates the one that the job names, on this rank."""

from collections.abc import Callable
from typing import Any, cast

from rljob_runtime.extensions import check_members, load, update_use
from rljob_runtime.update.update_engine import UpdateEngine, UpdateSetup

AnyUpdateEngine = UpdateEngine[Any]
"""An engine with any type of step: `finish` receives the step that `begin` returned."""


def make_update(setup: UpdateSetup) -> AnyUpdateEngine:
    """Create the engine `spec.update.engine`.

    Raises ConfigError if it is not installed or cannot train the model, and DeviceMemoryError.
    """
    return ENGINES.get(setup.spec.update.engine, make_extension)(setup)


def make_torch(setup: UpdateSetup) -> AnyUpdateEngine:
    """Create the engine `torch`; engines of packages may wrap it."""
    from rljob_runtime.update import update_torch

    if setup.spec.update.recompute == "full":
        setup.policy.recompute_layers()
    return update_torch.TorchUpdateEngine(
        setup.policy,
        optimizer=setup.spec.update.optimizer,
        total_steps=setup.total_steps,
        temperature=setup.spec.rollout.temperature,
        ranks=setup.ranks,
        purposes=setup.purposes,
        ledger=setup.ledger,
        swap=setup.swap,
    )


def make_megatron(setup: UpdateSetup) -> AnyUpdateEngine:
    """Create the engine `megatron` or `mindspeed`; engines of packages may wrap it."""
    from rljob_runtime.update.update_megatron.engine import make_engine

    return make_engine(setup)


def make_extension(setup: UpdateSetup) -> AnyUpdateEngine:
    """Create the engine of an installed package."""
    use = update_use(setup.spec.update.engine)
    engine = load(use)(setup)
    check_members(engine, UpdateEngine, use)
    return cast(AnyUpdateEngine, engine)


ENGINES: dict[str, Callable[[UpdateSetup], AnyUpdateEngine]] = {
    "torch": make_torch,
    "megatron": make_megatron,
    "mindspeed": make_megatron,
}
