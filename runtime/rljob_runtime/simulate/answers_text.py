"""Results of simulated runs as plain text for the terminal. The CLI calls this."""

from collections.abc import Iterator, Mapping

from rljob_runtime.simulate.answers import Answers, Estimate

LEAST_SHARE = 0.001


def answers_text(answers: Answers) -> str:
    """Return the results as text for the user."""
    return "\n".join(_lines(answers))


def _lines(answers: Answers) -> Iterator[str]:
    runs = "1 run" if answers.seeds == 1 else f"{answers.seeds} runs"
    yield f"{answers.job}: {answers.devices:,} devices, {runs} of {answers.steps} steps in virtual time"
    yield ""
    yield f"tokens/s a device  {_estimate(answers.tokens_per_second)} (Eq. 5)"
    yield f"response tokens/s  {_estimate(answers.response_tokens_per_second)} (all devices)"
    yield f"a step             {_estimate(answers.seconds)} s"
    yield f"the whole job      {_duration(answers.eta_seconds.mean)}"
    if answers.cost is not None:
        yield f"cost               {_estimate(answers.cost)}"
    if answers.staleness:
        yield f"staleness          {answers.staleness:.2f} versions"
    yield from _table("seconds of a step, of the slowest worker", answers.stages, "{:10.2f} s")
    shares = {**answers.busy, **{f"idle: {cause}": share for cause, share in answers.idle.items()}}
    percentages = {name: 100 * share for name, share in shares.items() if share >= LEAST_SHARE}
    yield from _table("what devices do", percentages, "{:10.1f} %")
    volumes = {edge: num_bytes / 1e9 for edge, num_bytes in answers.dock_bytes.items() if num_bytes}
    yield from _table("through the dock in a step", volumes, "{:10.3f} GB")


def _table(title: str, figures: Mapping[str, float], form: str) -> Iterator[str]:
    yield from ("", title)
    for name, value in sorted(figures.items(), key=lambda item: -item[1]):
        yield f"  {name:30s} {form.format(value)}"


def _estimate(value: Estimate) -> str:
    """Format a mean, with half the width of its interval if there are several runs."""
    half_width = (value.high - value.low) / 2
    return f"{value.mean:,.4g}" + (f" ± {half_width:,.2g}" if half_width else "")


def _duration(seconds: float) -> str:
    for unit, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
