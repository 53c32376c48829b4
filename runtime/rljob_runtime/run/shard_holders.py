"""Which update ranks hold what a lost one held, by arithmetic. Called by `recovery`."""

from collections.abc import Collection, Mapping, Sequence

from rljob_api.spec.engines import UpdateParallelism
from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.parallel.ranks import Purpose, RankGrid
from rljob_runtime.worker.transfers import Transfer

Alike = Mapping[str, Sequence[frozenset[int]]]
"""By part of a `KeptState`, for each update rank those that hold the same as it does, itself among them."""
Copies = Mapping[int, Mapping[int, Collection[int]]]
"""By rank that has second copies, and by rank that they are of: the steps that they are after."""


def alike(layouts: Mapping[str, UpdateParallelism], ranks: int) -> dict[str, list[frozenset[int]]]:
    """layouts: of each model that is trained."""
    found: dict[str, list[frozenset[int]]] = {}
    for model, layout in layouts.items():
        weights = state = [frozenset(range(ranks))] * ranks
        if layout.shared:
            grid = RankGrid(UpdateDegrees.model_validate(dict(layout)))
            alone = [frozenset({rank}) for rank in range(ranks)]
            same = [frozenset(grid.group(Purpose.EXPERT_DATA, rank)) for rank in range(ranks)]
            weights = alone if layout.zero == 3 else same
            state = alone if layout.zero else same
        found |= {f"{model}/weights": weights, f"{model}/state": state}
    return found


def sources(
    same: Alike,
    after: Mapping[int, int | None],
    copies: Copies,
    *,
    copied: Collection[str],
    known: Collection[int],
) -> tuple[int, list[Transfer]] | None:
    """The latest step after which all can be, and what those that are not take from whom; None where a part
    of the model is held nowhere.

    after: of the ranks that live, the step that their state is after, None where it is between two. copied:
    parts that second copies have. known: steps that the run can go on after.
    """
    ranks = len(next(iter(same.values())))
    steps = {at for at in after.values() if at is not None}
    steps |= {step for of in copies.values() for held in of.values() for step in held}
    for step in sorted(steps & {*known}, reverse=True):
        holders = {rank for rank, at in after.items() if at == step}
        with_copy = {
            rank: sorted(holder for holder, of in copies.items() if step in of.get(rank, ()))
            for rank in range(ranks)
        }
        found = [
            _transfer(
                part, rank, sorted(same[part][rank] & holders), with_copy[rank] * (part in copied)
            )
            for rank in range(ranks)
            for part in same
            if rank not in holders
        ]
        if None not in found:
            return step, [each for each in found if each is not None]
    return None


def _transfer(
    part: str, rank: int, peers: Sequence[int], with_copy: Sequence[int]
) -> Transfer | None:
    """From a rank that is there, each of them in turn, or out of a copy, its own where it has one."""
    if peers and rank not in with_copy:
        return Transfer(part=part, giver=peers[rank % len(peers)], taker=rank, copied=False)
    if not with_copy:
        return None
    giver = rank if rank in with_copy else with_copy[0]
    return Transfer(part=part, giver=giver, taker=rank, copied=True)
