"""Compute which update ranks hold the same shards as a lost one. Pure; called by `recovery`."""

from collections.abc import Collection, Mapping, Sequence

from rljob_api.spec.engines import UpdateParallelism
from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.parallel.ranks import Purpose, RankGrid
from rljob_runtime.worker.transfers import Transfer

ShardHolders = Mapping[str, Sequence[frozenset[int]]]
"""By shard of a `KeptState`, for each update rank the ranks that hold the same as it does, itself
included."""
Copies = Mapping[int, Mapping[int, Collection[int]]]
"""By rank that has second copies, and by rank whose state they copy: the steps that the copies are at."""


def shard_holders(
    layouts: Mapping[str, UpdateParallelism], ranks: int
) -> dict[str, list[frozenset[int]]]:
    """Return, by shard, the ranks that hold the same as each rank. layouts: of each model that is trained."""
    holders: dict[str, list[frozenset[int]]] = {}
    for model, layout in layouts.items():
        weights = state = [frozenset(range(ranks))] * ranks
        if layout.shared:
            grid = RankGrid(UpdateDegrees.model_validate(dict(layout)))
            single = [frozenset({rank}) for rank in range(ranks)]
            group = [frozenset(grid.group(Purpose.EXPERT_DATA, rank)) for rank in range(ranks)]
            weights = single if layout.zero == 3 else group
            state = single if layout.zero else group
        holders |= {f"{model}/weights": weights, f"{model}/state": state}
    return holders


def plan_transfers(
    holders: ShardHolders,
    step_by_rank: Mapping[int, int | None],
    copies: Copies,
    *,
    copied: Collection[str],
    reachable: Collection[int],
) -> tuple[int, list[Transfer]] | None:
    """Return the latest step that all ranks can reach, and the transfers that bring every rank there. Returns
    None if no rank has some shard of the model.

    step_by_rank: for each living rank, the step that its state is at, None if it is between two. copied:
    shards that second copies have. reachable: steps that the run can continue from.
    """
    ranks = len(next(iter(holders.values())))
    steps = {rank_step for rank_step in step_by_rank.values() if rank_step is not None}
    steps |= {
        step
        for by_owner in copies.values()
        for copied_steps in by_owner.values()
        for step in copied_steps
    }
    for step in sorted(steps & {*reachable}, reverse=True):
        ranks_at_step = {rank for rank, rank_step in step_by_rank.items() if rank_step == step}
        with_copy = {
            rank: sorted(
                holder for holder, by_owner in copies.items() if step in by_owner.get(rank, ())
            )
            for rank in range(ranks)
        }
        transfers = [
            _transfer(
                shard,
                rank,
                sorted(holders[shard][rank] & ranks_at_step),
                with_copy[rank] * (shard in copied),
            )
            for rank in range(ranks)
            for shard in holders
            if rank not in ranks_at_step
        ]
        if None not in transfers:
            return step, [transfer for transfer in transfers if transfer is not None]
    return None


def _transfer(
    shard: str, rank: int, peers: Sequence[int], with_copy: Sequence[int]
) -> Transfer | None:
    """Return the transfer of a shard to a rank: from each of its living peers in turn, or from a second copy,
    its own if it has one. Returns None if there is neither."""
    if peers and rank not in with_copy:
        return Transfer(part=shard, giver=peers[rank % len(peers)], taker=rank, copied=False)
    if not with_copy:
        return None
    giver = rank if rank in with_copy else with_copy[0]
    return Transfer(part=shard, giver=giver, taker=rank, copied=True)
