"""Which metrics the report draws as curves, with the words that explain them. Data for `figures`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A metric in a chart of curves. axis: y, or y2 on the right. text: d3 format of values.
    smooth: draw the moving average, with the values faint beneath it."""

    metric: str
    name: str
    colour: str
    axis: str = "y"
    text: str = ".3~g"
    smooth: bool = True


CURVE_CHARTS: tuple[tuple[str, str, str, tuple[Curve, ...]], ...] = (
    (
        "length",
        "Response length",
        "Mean tokens of a response, and the share that was cut at the limit.",
        (
            Curve(metric="response_length/mean", name="tokens", colour="@generate"),
            Curve(
                metric="response_length/clipped_share",
                name="cut at the limit",
                colour="@bad",
                axis="y2",
                text=".1%",
            ),
        ),
    ),
    (
        "turns",
        "Turns and waiting for tools",
        "Mean turns of a sample, and seconds of a step in which a device did nothing but wait for answers.",
        (
            Curve(metric="turns/mean", name="turns", colour="@generate"),
            Curve(metric="tools/idle_seconds", name="seconds idle", colour="@bad", axis="y2"),
            Curve(metric="environment/idle_seconds", name="seconds idle", colour="@bad", axis="y2"),
        ),
    ),
    (
        "entropy",
        "Entropy",
        "Mean entropy of the policy at a response token, in nats; near 0 it explores no more.",
        (Curve(metric="entropy", name="entropy", colour="@reference"),),
    ),
    (
        "kl",
        "KL and clipping",
        "Distance to the reference model, and the share of tokens where the ratio was clipped.",
        (
            Curve(metric="kl", name="KL", colour="@update"),
            Curve(
                metric="clip_fraction",
                name="clipped",
                colour="@reward-phase",
                axis="y2",
                text=".1%",
            ),
        ),
    ),
    (
        "signal",
        "Groups with signal",
        "Share of groups whose rewards differ; the others teach nothing.",
        (Curve(metric="groups/with_signal", name="groups", colour="@accuracy", text=".1%"),),
    ),
    (
        "difficulty",
        "Prompts left out",
        "Training prompts that the difficulty filter leaves out now: all samples were right, or all wrong.",
        (
            Curve(
                metric="difficulty/all_right", name="all right", colour="@accuracy", smooth=False
            ),
            Curve(metric="difficulty/all_wrong", name="all wrong", colour="@bad", smooth=False),
        ),
    ),
    (
        "mismatch",
        "Mismatch of rollout and update",
        "How far the log-probs of the two engines lie apart for the same tokens.",
        (
            Curve(metric="mismatch/kl", name="KL", colour="@generate"),
            Curve(metric="mismatch/max", name="largest", colour="@muted", axis="y2"),
        ),
    ),
    (
        "staleness",
        "Staleness",
        "How many weight versions a step's samples (by their first tokens) are behind the weights that "
        "they train; with a partial rollout also of all tokens.",
        (
            Curve(metric="staleness", name="mean", colour="@generate"),
            Curve(metric="staleness/tokens", name="mean of tokens", colour="@update"),
            Curve(metric="staleness/max", name="oldest", colour="@muted", smooth=False),
        ),
    ),
    (
        "gradient",
        "Gradient norm and learning rate",
        "Norm of the whole gradient before clipping.",
        (
            Curve(metric="gradient_norm", name="norm", colour="@update"),
            Curve(
                metric="learning_rate",
                name="learning rate",
                colour="@muted",
                axis="y2",
                smooth=False,
            ),
        ),
    ),
    (
        "speed",
        "Tokens per second",
        "Prompt and response tokens of a step over its seconds.",
        (
            Curve(metric="tokens_per_second", name="all tokens", colour="@generate"),
            Curve(metric="response_tokens_per_second", name="response tokens", colour="@muted"),
        ),
    ),
)
