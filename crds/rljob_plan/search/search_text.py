"""A ranking of layouts as plain text for the terminal. Called by the CLI's `plan --search`."""

from collections.abc import Iterator

from rljob_plan.search.ranking import Counts, Own, Proposal, Ranking
from rljob_plan.search.reasons import (
    fragment_yaml,
    gigabytes,
    reason,
    shown_parts,
    tightest,
)
from rljob_plan.search.remedies import named


def search_text(ranking: Ranking, remedies: list[str]) -> str:
    """Proposals with their fragments of YAML, and where the job's own layout stands."""
    lines = [f"{ranking.job.metadata.name}: layouts by predicted seconds of a step", ""]
    lines += [*_counts(ranking.counts), ""]
    lines += list(_own(ranking.own))
    for place, proposal in enumerate(ranking.proposals, start=1):
        lines += ["", *_proposal(place, proposal, ranking)]
    if remedies:
        said = "No layout was found that fits." if ranking.counts.ended else "No layout fits."
        lines += ["", said, *(f"  {sentence}" for sentence in remedies)]
    return "\n".join(lines)


def _counts(counts: Counts) -> Iterator[str]:
    yield f"{counts.tried:,} layouts tried, {counts.illegal:,} of them illegal"
    yield (
        f"{counts.too_large:,} take more memory for training, or for generation, than there is, whatever "
        "their micro-batches, recompute and offload"
    )
    rest = counts.tried - counts.illegal - counts.too_large - counts.looked_at
    yield (
        f"{counts.looked_at:,} looked at in the order of what they would take at best: {counts.no_room:,} "
        "do not fit together"
    )
    if counts.unchecked:
        yield (
            f"{counts.unchecked:,} fit if their reshard does, which was not planned: the search ends after "
            "so many; some may be faster than the last shown"
        )
    if counts.ended and rest:
        yield f"{rest:,} not looked at: the search ends after so many; some may be faster than the last shown"
    elif rest:
        yield f"{rest:,} not looked at: none of them can be faster than those shown, or than the job's own"


def _own(own: Own) -> Iterator[str]:
    yield f"The job's own: {named(own.found.layout)}"
    yield f"  {_seconds(own.found.seconds, shown_parts(own.found))}"
    if own.place is None:
        yield from (f"  does not fit: {problem}" for problem in own.problems)
    else:
        least = "at least " if own.at_least else ""
        yield f"  place {least}{own.place:,} by time, of the layouts that fit"


def _proposal(place: int, proposal: Proposal, ranking: Ranking) -> Iterator[str]:
    found, memory = proposal.found, proposal.memory
    yield f"{place}. {named(found.layout)}"
    yield f"  {_seconds(found.seconds, shown_parts(found))}"
    phase = tightest(memory)
    limit = "" if memory.limit is None else f" of {gigabytes(memory.limit)}"
    host = max(one.host for one in memory.phases)
    largest = max(phase.parts, key=lambda name: phase.parts[name])
    yield (
        f"  {gigabytes(phase.device)}{limit} a device in {phase.name}, most of it {largest}; "
        f"{gigabytes(host)} on the host"
    )
    yield f"  {reason(found, ranking.own)}"
    yield from (f"    {line}" for line in fragment_yaml(proposal, ranking.job).splitlines())


def _seconds(seconds: float, shown: dict[str, float]) -> str:
    told = ", ".join(f"{name} {value:.3g}" for name, value in shown.items() if value)
    return f"{seconds:.3g} s: {told}"
