"""Whatever the lengths, ranks and failures: full batches, every prompt once, no token beyond the bound."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.prompts.candidates import Candidates
from rljob_runtime.prompts.open_groups import OpenGroups
from rljob_runtime.prompts.open_prompts import OpenPrompts
from rljob_runtime.prompts.pools import Pools
from rljob_runtime.prompts.rounds import Round
from rljob_runtime.prompts.selection import select_groups

BUDGET = 4


@dataclass
class Group:
    """A prompt on its way. left: tokens that its longest sample still needs. oldest: version of the
    first token, None before it."""

    position: int
    left: int
    oldest: int | None = None


@dataclass
class World:
    """A dock without rows and ranks without engines. length_of: tokens of each position's longest sample.
    oldest: version of the first token of each position whose samples have ended."""

    length_of: list[int]
    bound: int
    prompts: int
    pools: dict[str, dict[int, Group]] = field(default_factory=dict)
    ages: list[int] = field(default_factory=list)
    oldest: dict[int, int] = field(default_factory=dict)

    def generate(self, step: int, now: Round, version: int, ranks: int) -> dict[int, int]:
        """One round by all ranks; the position in each place of the batch."""
        pool = self.pools.pop(str(now.pool), {})
        for place, position in enumerate(now.fresh, now.groups - len(now.fresh)):
            assert place not in pool, "a fresh group took the place of one that went on"
            pool[place] = Group(position, self.length_of[position % len(self.length_of)])
        assert sorted(pool) == list(range(now.groups)), "the pool has a hole"
        batch: dict[int, int] = {}
        following = self.pools.setdefault(str(now.next_pool), {})
        for rank in range(ranks):
            mine = {place: group for place, group in pool.items() if place % ranks == rank}
            self._work(step, version, mine, batch, following)
        return batch

    def _work(
        self,
        step: int,
        version: int,
        mine: dict[int, Group],
        batch: dict[int, int],
        following: dict[int, Group],
    ) -> None:
        oldest = {place: version if g.oldest is None else g.oldest for place, g in mine.items()}
        choice = OpenGroups(
            step=step,
            max_staleness=self.bound,
            prompts=self.prompts,
            budget=BUDGET,
            oldest=oldest,
        )

        def completed(place: int) -> None:
            slot = choice.completed(place)
            if slot is not None:
                assert slot not in batch, "two groups in one place of the batch"
                batch[slot] = mine[place].position
                self.ages.append(step - 1 - oldest[place])
                self.oldest[mine[place].position] = oldest[place]

        for place in [place for place, group in mine.items() if not group.left]:
            completed(place)
        while True:
            for place in sorted(choice.unfinished, key=lambda place: mine[place].left):
                group, budget = mine[place], choice.budget_of(place)
                group.oldest = oldest[place]
                group.left -= group.left if budget is None else min(budget, group.left)
                if not group.left:
                    completed(place)
            if choice.full:
                break
        for place, after in choice.going_on().items():
            assert after not in following, "two groups went on to one place"
            following[after] = mine[place]


def divisors(number: int) -> list[int]:
    return [i for i in range(1, number + 1) if number % i == 0]


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    prompts=st.integers(1, 8),
    steps=st.integers(1, 7),
    bound=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
def test_every_history_trains_each_prompt_once_within_the_bound(
    data: st.DataObject, prompts: int, steps: int, bound: int, lengths: list[int]
) -> None:
    extra = data.draw(st.integers(1, prompts))
    pools = Pools(prompts=prompts, extra=extra, steps=steps)
    world = World(length_of=lengths, bound=bound, prompts=prompts)
    trained: list[int] = []
    names: set[str] = set()
    failures = data.draw(st.integers(0, 4))

    step = 1
    while step <= steps:
        now = pools.make_round(step)
        if now.groups == len(now.fresh):
            assert str(now.pool) not in names, "the name of a pool was used twice"
        names |= {str(now.pool), str(now.next_pool)}
        # one version ahead is the most that an asynchronous run allows, and only with room for it
        behind = data.draw(st.integers(0, 1)) if bound > 1 else 0
        ranks = data.draw(st.sampled_from(divisors(prompts)))
        batch = world.generate(step, now, max(step - 1 - behind, 0), ranks)
        assert sorted(batch) == list(range(prompts)), "the batch has a hole"
        if failures and data.draw(st.booleans()):
            failures -= 1
            pools.start_over()
            if data.draw(st.booleans()):  # and the run goes on from its checkpoint
                pools = Pools(
                    prompts=prompts,
                    extra=extra,
                    steps=steps,
                    account=OpenPrompts(
                        first_new=pools.account.first_new, open=set(pools.account.open)
                    ),
                )
                names, world.pools = set(), {}
            continue
        trained += batch.values()
        pools.account.close(batch.values())
        step += 1

    assert sorted(trained) == list(range(steps * prompts)), "a prompt was left out or came twice"
    assert not pools.account.open and pools.account.first_new == steps * prompts
    assert max(world.ages) <= bound


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    prompts=st.integers(1, 8),
    steps=st.integers(1, 6),
    bound=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
def test_candidates_that_grow_in_pools_fill_each_step_and_train_no_prompt_twice(
    data: st.DataObject, prompts: int, steps: int, bound: int, lengths: list[int]
) -> None:
    extra, account = data.draw(st.integers(1, prompts)), OpenPrompts()
    pools = Pools(prompts=prompts, extra=extra, steps=steps, several=True, account=account)
    candidates = Candidates(
        prompts=prompts, steps=steps, most_rounds=None, fills=False, account=account, pools=pools
    )
    world = World(length_of=lengths, bound=bound, prompts=prompts)
    left_over: list[int] = []
    trained: list[int] = []
    silent: set[int] = set()
    failures = data.draw(st.integers(0, 3))

    step = 1
    while step <= steps:
        candidates.begin(step)
        batch, left_over, told = left_over, [], set(silent)
        version = step - 1 - (data.draw(st.integers(0, 1)) if bound > 1 else 0)
        while (now := candidates.next_round(step)) is not None:
            assert now.pool is not None and now.filled == len(batch)
            ranks = data.draw(st.sampled_from(divisors(prompts)))
            made = world.generate(step, now.pool, max(version, 0), ranks)
            assert [place + now.pool.first for place in sorted(made)] == list(now.groups)
            places = [made[place] for place in sorted(made)]
            signals = [data.draw(st.sampled_from([True, True, False])) for _ in places]
            last = {
                i
                for i, position in enumerate(places)
                if now.next_batch is None or step - world.oldest[position] > bound
            }
            chosen = select_groups(signals, missing=now.missing, fill=False, last=last)
            found = chosen.with_positions(places)
            candidates.record_selection(found)
            batch, left_over = [*batch, *found.taken], [*left_over, *found.left_over]
            told |= {*found.silent}
        assert len(batch) == prompts and len(left_over) < prompts
        if failures and data.draw(st.booleans()):
            failures, left_over = failures - 1, []
            candidates.start_over()
            continue
        trained += batch
        silent = told
        assert all(step - 1 - world.oldest[position] <= bound for position in batch)
        candidates.finish_step([])
        step += 1

    assert len(set(trained)) == len(trained) == steps * prompts, "a prompt came twice"
    begun = {*trained, *silent} | account.open
    assert begun == set(range(account.first_new)), "a prompt was left out"
    assert not silent & {*trained}


def test_long_prompts_wait_until_the_bound_and_then_run_to_their_end() -> None:
    pools = Pools(prompts=2, extra=2, steps=9)
    world = World(length_of=[40, 2, 2, 2], bound=2, prompts=2)
    batches = []

    for step in range(1, 5):
        batch = world.generate(step, pools.make_round(step), step - 1, ranks=1)
        pools.account.close(batch.values())
        batches.append(sorted(batch.values()))

    assert batches == [[1, 2], [3, 5], [0, 6], [4, 7]]


def test_where_too_few_are_done_all_go_on_by_another_budget() -> None:
    choice = OpenGroups(
        step=1, max_staleness=3, prompts=2, budget=BUDGET, oldest=dict.fromkeys(range(4), 0)
    )

    assert choice.completed(3) == 0
    assert not choice.full
    assert choice.unfinished == [0, 1, 2]
    assert choice.completed(1) == 1
    assert choice.completed(2) is None, "the batch is full: it goes on as it is"
    assert choice.going_on() == {0: 0, 2: 1}


def test_places_are_kept_for_groups_that_grow_too_old() -> None:
    oldest = {0: 2, 1: 1, 2: 4, 3: 4}
    choice = OpenGroups(step=5, max_staleness=3, prompts=2, budget=BUDGET, oldest=oldest)

    assert choice.forced == {1}
    assert [choice.budget_of(group) for group in choice.unfinished] == [
        None,
        BUDGET,
        BUDGET,
        BUDGET,
    ]
    assert choice.completed(3) == 0
    assert choice.completed(2) is None
    assert choice.completed(1) == 1
    assert choice.going_on() == {0: 0, 2: 1}
