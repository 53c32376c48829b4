"""Format a ranking of layouts as plain text for the terminal. Called by the CLI's `plan --search`."""

from collections.abc import Iterator

from rljob_plan.search.ranking import JobLayout, Proposal, Ranking, SearchCounts
from rljob_plan.search.reasons import (
    fragment_yaml,
    gigabytes,
    reason,
    shown_parts,
    tightest,
)
from rljob_plan.search.remedies import layout_words


def search_text(ranking: Ranking, remedies: list[str]) -> str:
    """Return proposals with their fragments of YAML, and the rank of the job's own layout."""
    lines = [f"{ranking.job.metadata.name}: layouts by predicted seconds of a step", ""]
    lines += [*_counts(ranking.counts), ""]
    lines += list(_job_layout(ranking.job_layout))
    for position, proposal in enumerate(ranking.proposals, start=1):
        lines += ["", *_proposal(position, proposal, ranking)]
    if remedies:
        said = "No layout was found that fits." if ranking.counts.ended else "No layout fits."
        lines += ["", said, *(f"  {sentence}" for sentence in remedies)]
    return "\n".join(lines)


def _counts(counts: SearchCounts) -> Iterator[str]:
    yield f"{counts.tried:,} layouts tried, {counts.illegal:,} of them illegal"
    yield (
        f"{counts.too_large:,} take more memory for training, or for generation, than there is, whatever "
        "their micro-batches, recompute and offload"
    )
    remaining = counts.tried - counts.illegal - counts.too_large - counts.looked_at
    yield (
        f"{counts.looked_at:,} looked at in the order of what they would take at best: {counts.no_room:,} "
        "do not fit together"
    )
    if counts.unchecked:
        yield (
            f"{counts.unchecked:,} fit if their reshard does, which was not planned: the search ends after "
            "so many; some may be faster than the last shown"
        )
    if counts.ended and remaining:
        yield (
            f"{remaining:,} not looked at: the search ends after so many; "
            "some may be faster than the last shown"
        )
    elif remaining:
        yield (
            f"{remaining:,} not looked at: none of them can be faster than those shown, "
            "or than the job's own"
        )


def _job_layout(job_layout: JobLayout) -> Iterator[str]:
    yield f"The job's own: {layout_words(job_layout.estimate.layout)}"
    yield f"  {_seconds(job_layout.estimate.seconds, shown_parts(job_layout.estimate))}"
    if job_layout.rank is None:
        yield from (f"  does not fit: {problem}" for problem in job_layout.problems)
    else:
        least = "at least " if job_layout.at_least else ""
        yield f"  place {least}{job_layout.rank:,} by time, of the layouts that fit"


def _proposal(position: int, proposal: Proposal, ranking: Ranking) -> Iterator[str]:
    estimate, memory = proposal.estimate, proposal.memory
    yield f"{position}. {layout_words(estimate.layout)}"
    yield f"  {_seconds(estimate.seconds, shown_parts(estimate))}"
    phase = tightest(memory)
    limit = "" if memory.limit is None else f" of {gigabytes(memory.limit)}"
    host = max(one.host for one in memory.phases)
    largest = max(phase.parts, key=lambda name: phase.parts[name])
    yield (
        f"  {gigabytes(phase.device)}{limit} a device in {phase.name}, most of it {largest}; "
        f"{gigabytes(host)} on the host"
    )
    yield f"  {reason(estimate, ranking.job_layout)}"
    yield from (f"    {line}" for line in fragment_yaml(proposal, ranking.job).splitlines())


def _seconds(seconds: float, shown: dict[str, float]) -> str:
    parts = ", ".join(f"{name} {value:.3g}" for name, value in shown.items() if value)
    return f"{seconds:.3g} s: {parts}"
