"""Answers of simulated runs as plain text for the terminal. Called by the CLI."""

from collections.abc import Iterator, Mapping

from rljob_runtime.simulate.answers import Answers, Estimate

LEAST_SHARE = 0.001


def answers_text(found: Answers) -> str:
    """What a user reads."""
    return "\n".join(_lines(found))


def _lines(found: Answers) -> Iterator[str]:
    runs = "1 run" if found.seeds == 1 else f"{found.seeds} runs"
    yield f"{found.job}: {found.devices:,} devices, {runs} of {found.steps} steps in virtual time"
    yield ""
    yield f"tokens/s a device  {_estimate(found.tokens_per_second)} (Eq. 5)"
    yield f"response tokens/s  {_estimate(found.response_tokens_per_second)} (all devices)"
    yield f"a step             {_estimate(found.seconds)} s"
    yield f"the whole job      {_duration(found.eta_seconds.mean)}"
    if found.cost is not None:
        yield f"cost               {_estimate(found.cost)}"
    if found.staleness:
        yield f"staleness          {found.staleness:.2f} versions"
    yield from _table("seconds of a step, of the slowest worker", found.stages, "{:10.2f} s")
    shares = {**found.busy, **{f"idle: {cause}": share for cause, share in found.idle.items()}}
    known = {name: 100 * share for name, share in shares.items() if share >= LEAST_SHARE}
    yield from _table("what devices do", known, "{:10.1f} %")
    volumes = {edge: held / 1e9 for edge, held in found.dock_bytes.items() if held}
    yield from _table("through the dock in a step", volumes, "{:10.3f} GB")


def _table(title: str, figures: Mapping[str, float], form: str) -> Iterator[str]:
    yield from ("", title)
    for name, value in sorted(figures.items(), key=lambda item: -item[1]):
        yield f"  {name:30s} {form.format(value)}"


def _estimate(value: Estimate) -> str:
    """With half the width of its interval, where there are several runs."""
    half = (value.high - value.low) / 2
    return f"{value.mean:,.4g}" + (f" ± {half:,.2g}" if half else "")


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
