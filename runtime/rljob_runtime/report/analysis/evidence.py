"""A sentence for each part of a step, from a run's events. Pure; called by `run`."""

from collections.abc import Callable, Mapping

from rljob_runtime.dock.stats import ROOM
from rljob_runtime.report.analysis.pass_cost import fixed_seconds
from rljob_runtime.report.analysis.step_figures import StepFigures
from rljob_runtime.report.display.wording import percent, seconds_of


def evidence_of(name: str, figures: StepFigures) -> str:
    """Describe a part of the step, from medians over steps in `figures`."""
    describe = EVIDENCE.get(name)
    return describe(figures) if describe else ""


def _generate(figures: StepFigures) -> str:
    work = figures.busy.get("generate", 0.0)
    half_time = seconds_of(figures.half_seconds)
    return f"generation takes {seconds_of(work)}, half of its samples are there after {half_time}"


def _tail(figures: StepFigures) -> str:
    work, tail = figures.busy.get("generate", 0.0), figures.tail
    text = f"the last fifth of the samples takes {percent(tail / work if work else 0.0, 0)} of generation"
    lengths = figures.lengths
    if "max" in lengths:
        text += (
            f"; lengths: mean {lengths['mean']:.0f}, four fifths up to {lengths['p80']:.0f}, longest "
            f"{lengths['max']:.0f} tokens"
        )
    return text


def _reward(figures: StepFigures) -> str:
    return f"scoring works {seconds_of(figures.busy.get('reward', 0.0))}" + _waiting(
        figures, "reward"
    )


def _inference(figures: StepFigures) -> str:
    return "log-probs and values" + _waiting(figures, "reference")


def _update(figures: StepFigures) -> str:
    text = f"the update works {seconds_of(figures.busy.get('update', 0.0))}"
    if not figures.passes:
        return text
    tokens = sum(tokens for tokens, _ in figures.passes) / len(figures.passes)
    passes = "one pass" if figures.num_passes == 1 else f"{figures.num_passes:.0f} passes"
    text += f", in {passes} of {tokens:.0f} tokens"
    fixed = fixed_seconds(figures.passes)
    if fixed is None:
        return text
    return f"{text}, {1000 * fixed:.0f} ms of each whatever its tokens"


def _reshard(figures: StepFigures) -> str:
    text = f"devices stand still {seconds_of(figures.busy.get('sync', 0.0))} for new weights"
    parts = figures.reshard
    if not parts:
        return f"{text}, which come as a stream of whole tensors"
    return (
        f"{text}: exchanges {seconds_of(parts.get('gather_seconds', 0.0))}, checks "
        f"{seconds_of(parts.get('check_seconds', 0.0))}, waits for copies to the host "
        f"{seconds_of(parts.get('swap_waited_seconds', 0.0))}"
    )


def _dock(figures: StepFigures) -> str:
    waits = {s: w[ROOM] for s, w in figures.waits.items() if w.get(ROOM)}
    texts = ", ".join(f"{state} {seconds_of(seconds)}" for state, seconds in waits.items())
    return f"warehouses were full: waits for room of {texts}"


def _other(_: StepFigures) -> str:
    return "no state runs: calls, reports and waits between stages"


def _waiting(figures: StepFigures, awaited: str) -> str:
    """List the states that waited for this one in the dock, longest first."""
    waits = {s: w[awaited] for s, w in figures.waits.items() if w.get(awaited, 0.0) > 0}
    order = sorted(waits, key=lambda state: -waits[state])
    texts = ", ".join(f"{state} waits {seconds_of(waits[state])} for it" for state in order)
    return f"; {texts}" if texts else ""


EVIDENCE: Mapping[str, Callable[[StepFigures], str]] = {
    "generate": _generate,
    "tail": _tail,
    "reward": _reward,
    "inference": _inference,
    "update": _update,
    "reshard": _reshard,
    "dock": _dock,
    "other": _other,
}
