"""Parts of the live screen as pure functions of the run's history; `terminal` draws them."""

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.in_flight_figures import in_flight_text
from rljob_runtime.report.display.reshard_table import reshard_text
from rljob_runtime.report.display.totals import number
from rljob_runtime.report.display.wording import (
    accuracy_text,
    alarm_text,
    count,
    duration,
    figure,
    metric_of,
    one_line,
    percent,
    prompt_text,
    recovery_text,
    replicas_text,
    seconds_of,
    sparkline,
    straggler_text,
)

PHASE_STYLES = {
    "generate": "cyan",
    "reference": "magenta",
    "teacher": "bright_blue",
    "reward-model": "bright_yellow",
    "values": "bright_magenta",
    "compare": "bright_cyan",
    "reward": "yellow",
    "update": "green",
    "critic": "bright_green",
    "sync": "blue",
}
METRICS: tuple[
    tuple[str, str, Callable[[float], str]], ...
] = (  # left and right column of the table
    ("pass rate", "pass_rate", percent),
    ("entropy", "entropy", figure),
    ("length, tokens", "response_length/mean", figure),
    ("KL to reference", "kl", figure),
    ("cut at the limit", "response_length/clipped_share", percent),
    ("clip fraction", "clip_fraction", percent),
    ("groups with signal", "groups/with_signal", percent),
    ("mismatch KL", "mismatch/kl", figure),
    ("tokens/s", "tokens_per_second", count),
    ("gradient norm", "gradient_norm", figure),
    ("staleness", "staleness", figure),
    ("oldest sample", "staleness/max", figure),
    ("staleness, tokens", "staleness/tokens", figure),
    ("groups going on", "partial_rollout/going_on", count),
)
OF_PICTURES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("pictures/s", "pictures_per_second", figure),
    ("picture tokens/s", "picture_tokens_per_second", count),
)
"""An additional line for jobs with pictures."""
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
NUMBER_WIDTH = 30
SPARK_WIDTH = 16
MAX_SAMPLES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """The style of marks. Colours are those of the terminal theme, which suit light and dark."""

    ascii_only: bool
    quiet: str = "dim"
    accent: str = "cyan"

    @classmethod
    def for_console(cls, console: Console) -> "Palette":
        """Use ASCII marks if the terminal's encoding has no others."""
        return cls(ascii_only=not console.encoding.lower().startswith("utf"))


def screen(
    history: RunHistory, palette: Palette, *, time_s: float, width: int, height: int
) -> RenderableType:
    """Render the complete screen in at most `height` - 1 lines; the less important blocks are dropped
    first."""
    width = min(width, 120)
    blocks = [header(history, width), progress(history, palette, time_s=time_s, width=width)]
    if history.step:
        last = phase_bar(history, palette, width=width) + reshard(history, width)
        blocks += [metrics(history, palette, width=width), last]
    for block in (
        alarms(history, width),
        evaluation(history, width),
        warnings(history, width),
    ):
        if block:
            blocks.append(block)
    room = height - 2 - sum(len(block) + 1 for block in blocks)
    shown = samples(history, palette, width=width, height=room)
    if shown:
        blocks.append(shown)
    lines: list[RenderableType] = []
    for block in blocks:
        lines += [*block, Text("")]
    return Group(*lines[: max(height - 1, 1)])


def header(history: RunHistory, width: int) -> list[RenderableType]:
    """Render the job on the left; model, algorithm and devices on the right."""
    started = history.started
    devices = history.devices
    facts = [started.model, started.algorithm, started.dataset]
    facts.append(f"{devices} device{'s' if devices != 1 else ''}" if devices else None)
    row = Table.grid(expand=True)
    row.width = width
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_column(no_wrap=True, overflow="ellipsis", justify="right", style="dim")
    left = Text("rljob  ", style="dim").append(history.name, style="bold not dim")
    row.add_row(left, " · ".join(str(fact) for fact in facts if fact))
    return [row]


def progress(
    history: RunHistory, palette: Palette, *, time_s: float, width: int
) -> list[RenderableType]:
    """Render a bar over the steps with elapsed and remaining time; before step 1 the message of the
    set-up."""
    began = history.began or time_s
    spent = duration(time_s - began)
    if not history.step:
        message = history.progress.message if history.progress else "starting"
        mark = "*" if palette.ascii_only else SPINNER[int(time_s * 8) % len(SPINNER)]
        text = Text(f"{mark} ", style=palette.accent).append(one_line(message), style="default")
        return [_crop(text.append(f"  {spent}", style="dim"), width)]
    eta = history.eta_seconds()
    label = f"  step {history.step}/{history.total_steps}  {spent}"
    label += f"  {duration(eta)} left" if eta else ""
    cells = max(width - len(label), 10)
    filled = round(cells * history.step / max(history.total_steps, 1))
    full, empty = ("#", "-") if palette.ascii_only else ("━", "━")
    bar = Text(full * filled, style=palette.accent)
    bar.append(empty * (cells - filled), style="dim")
    return [_crop(bar.append(label, style="default"), width)]


def metrics(history: RunHistory, palette: Palette, *, width: int) -> list[RenderableType]:
    """Render the reward in a line, then two columns of metrics (one on a narrow terminal)."""
    lines = []
    reward, spread = metric_of(history, "reward/mean"), metric_of(history, "reward/std")
    if reward is not None:
        text = Text(f"{'reward':<20}", style="default").append(figure(reward), style="bold")
        text.append(f" ± {figure(spread)}" if spread is not None else "", style="dim")
        room = max(min(48, width - len(text) - 2), 0)
        course = sparkline(history.series("reward/mean"), room, ascii_only=palette.ascii_only)
        lines.append(text.append("  " + course, style=palette.accent))
    columns = 2 if width >= 2 * NUMBER_WIDTH + 10 else 1
    spark = max(0, min(SPARK_WIDTH, (width - 4) // columns - NUMBER_WIDTH))
    shows_pictures = metric_of(history, OF_PICTURES[0][1]) is not None
    table = METRICS + OF_PICTURES * shows_pictures
    for first in range(0, len(table), columns):
        line = Text()
        for label, name, text_of in table[first : first + columns]:
            value = metric_of(history, name)
            shown = "–" if value is None else text_of(value)
            course = sparkline(history.series(name), spark, ascii_only=palette.ascii_only)
            line.append(f"{label:<20}", style="dim")
            line.append(f"{shown:>8}  ", style="bold red" if shown == "nan" else "")
            line.append(f"{course:<{spark}}    ", style=palette.accent)
        line.rstrip()
        lines.append(line)
    return [_crop(line, width) for line in lines]


def phase_bar(history: RunHistory, palette: Palette, *, width: int) -> list[RenderableType]:
    """Render the time of the last step as a proportional bar and a legend."""
    last = history.last_step()
    seconds = history.phase_seconds(history.step)
    total = sum(seconds.values())
    if last is None or total <= 0:
        return []
    label = Text(f"{'last step':<20}", style="default").append(seconds_of(last.seconds) + "  ")
    cells = max(width - len(label.plain), 10)
    legend = Text(" " * (20 if width >= 110 else 0))
    done, drawn = 0.0, 0
    for name, value in seconds.items():
        style = PHASE_STYLES.get(name, "white")
        done += value
        until = round(cells * done / total)
        mark = name[0] if palette.ascii_only else "▇"
        label.append(mark * (until - drawn), style=style)
        drawn = until
        legend.append("■ " if not palette.ascii_only else f"{name[0]}=", style=style)
        legend.append(f"{name} {seconds_of(value)}  ", style="dim")
    return [_crop(label, width), _crop(legend, width)]


def reshard(history: RunHistory, width: int) -> list[RenderableType]:
    """Render the last step's reshard in a line, and the last weights received in flight."""
    texts = {}
    if history.step in history.reshards:
        texts["reshard"] = reshard_text(history, history.step)
    if history.in_flight:
        texts["weights in flight"] = in_flight_text(history.in_flight[max(history.in_flight)])
    lines = [Text(f"{label:<20}").append(text, style="dim") for label, text in texts.items()]
    return [_crop(line, width) for line in lines]


def evaluation(history: RunHistory, width: int) -> list[RenderableType]:
    """Render the last evaluation beside the first."""
    if not history.evaluations:
        return []
    first = history.evaluations[min(history.evaluations)]
    last = history.evaluations[max(history.evaluations)]
    text = Text(f"{'held-out accuracy':<20}", style="default")
    if last is not first:
        text.append(f"{percent(first.accuracy)} → ", style="dim")
    text.append(accuracy_text(last), style="bold")
    if last is not first:
        gain = 100 * (last.accuracy - first.accuracy)
        text.append(f"  {gain:+.1f} points", style="green" if gain > 0 else "red")
    text.append(f"  after step {last.step}, n = {count(last.n)}", style="dim")
    return [_crop(text, width)]


def alarms(history: RunHistory, width: int) -> list[RenderableType]:
    """Render the active alarms, and the last one that rolled the run back."""
    shown = history.active_alarms()
    back = [event for event in history.alarms if event.rolled_back_to is not None][-1:]
    texts = [alarm_text(event) for event in [*back, *(e for e in shown if e not in back)]]
    return [_crop(Text(f"!! {text}", style="bold red"), width) for text in texts[-4:]]


def warnings(history: RunHistory, width: int) -> list[RenderableType]:
    """Render the last warnings, stragglers, missing devices, the last death, and the count of failed
    rewards."""
    texts = [event.message for event in history.warnings[-2:]]
    texts += [straggler_text(event) for event in history.slow_devices()[-2:]]
    if away := history.left_out():
        texts.append(replicas_text(away))
    if history.recoveries:
        last_death = recovery_text(history.recoveries[-1])
        texts.append(f"{len(history.recoveries)} recoveries; last: {last_death}")
    if history.reward_errors:
        last = history.reward_errors[-1]
        texts.append(f"{history.errors()} rewards failed; last: {last.reward}: {last.message}")
    return [_crop(Text(f"! {one_line(text)}", style="yellow"), width) for text in texts]


def samples(
    history: RunHistory, palette: Palette, *, width: int, height: int
) -> list[RenderableType]:
    """Render a prompt of the last step, its best and its worst responses, in `height` lines."""
    last = history.last_step()
    if last is None or not last.samples or height < 3:
        return []
    group = max(last.samples, key=lambda g: len({r.reward for r in g.responses}))
    ranked = sorted(group.responses, key=lambda r: -(r.reward or 0.0))
    take = min(MAX_SAMPLES, height - 1, len(ranked))
    chosen = ranked[: (take + 1) // 2] + ranked[len(ranked) - take // 2 :]
    # The end of a prompt is more informative than its start, which may be worked examples.
    prompt = prompt_text(group)
    room = max(width - 20, 8)
    prompt = prompt if len(prompt) <= room else "…" + prompt[1 - room :]
    title = Text().append(f"{'sample prompt':<20}", style="dim").append(prompt)
    lines: list[RenderableType] = [_crop(title, width)]
    best = max((r.reward or 0.0) for r in ranked)
    for response in chosen:
        good = (response.reward or 0.0) >= best > 0
        text = Text().append(f"{'  reward ' + figure(number(response.reward)):<20}", style="dim")
        text.append(one_line(response.text.strip()), style="green" if good else "default")
        lines.append(_crop(text, width))
    return lines


def _crop(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text
