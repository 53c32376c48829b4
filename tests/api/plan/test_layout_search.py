"""`rljob plan --search`: legal layouts that fit, the fastest first, against a search by brute force."""

import copy
import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rljob_api.check.load import load_job, read_job
from rljob_api.model.architecture import BUILTINS, find_shape
from rljob_api.spec.problems import InvalidJob
from rljob_api.topology.resolved import resolve
from rljob_plan.machines import rates_of
from rljob_plan.memory import plan_memory
from rljob_plan.memory_rules import memory_problems
from rljob_plan.performance import step_parts
from rljob_plan.plan import make_plan, model_problems
from rljob_plan.search.degrees import Degrees
from rljob_plan.search.estimates import Estimator
from rljob_plan.search.job_search import search_job
from rljob_plan.search.ranking import MOST_CHECKED, MOST_UNTIL_ONE_FITS, rank
from rljob_plan.search.reasons import fragment
from rljob_plan.search.remedies import leanest
from rljob_plan.search.search_json import search_json
from rljob_plan.search.search_text import search_text
from rljob_runtime.cli.main import app

PAPER = Path(__file__).parents[3] / "examples" / "paper"
TINY = BUILTINS["tiny"]
TWO = {"spec.accelerator.devicesPerNode": 2}
SMALL = {
    **TWO,
    "spec.batch.globalBatchSize": 4,
    "spec.batch.samplesPerPrompt": 2,
    "spec.batch.maxPromptLength": 16,
    "spec.batch.maxResponseLength": 16,
}


FAILURES = ("failures_per_day=50", "recovery_seconds=1")


def estimates(job, given=()):
    return Estimator(job, TINY, {}, rates_of("emulated", given))


def by_brute_force(manifest, changes, given):
    """The least seconds of every set of degrees on two devices that the rules allow and that fits, ascending;
    each is read as a file would be."""
    best = {}
    for degrees in product(
        (1, 2), (1, 2), (1, 2), (1, 2), (0, 1, 2, 3), ("ulysses", "ring"), (1, 2)
    ):
        data, tensor, pipeline, context, zero, algorithm, chunks = degrees
        if (context == 1 and algorithm == "ring") or (zero and data * context == 1):
            continue
        if data * tensor * pipeline * context != 2 or (pipeline == 1 and chunks > 1):
            continue
        update = {
            "data": data, "tensor": tensor, "pipeline": pipeline, "context": context, "zero": zero,
            "contextAlgorithm": algorithm, "virtualPipeline": chunks,
        }  # fmt: skip
        for rollout in ((2, 1, 1), (1, 2, 1), (1, 1, 2)):
            names = ("data", "tensor", "pipeline")
            kinds = ("none", "peer", "host") if given else ("none",)
            for used in product((1, 2, 4), ("none", "full"), ("none", "optimizer"), kinds):
                degrees_of = dict(zip(names, rollout, strict=True))
                seconds = seconds_of(manifest, changes, update, degrees_of, used, given)
                if seconds is not None:
                    key = (degrees, rollout)
                    best[key] = min(seconds, best.get(key, seconds))
    return sorted(best.values())


def seconds_of(manifest, changes, update, rollout, used, given):
    """None where a rule refuses the layout, or memory does."""
    micro, recompute, offload, redundancy = used
    asked = {
        **changes,
        "spec.update.parallelism": update,
        "spec.rollout.parallelism": rollout,
        "spec.batch.microBatchSize": micro,
        "spec.update.recompute": recompute,
        "spec.update.offload": offload,
        "spec.update.redundancy": redundancy,
    }
    try:
        job = read_job(manifest(asked))
    except InvalidJob:
        return None
    if model_problems(job, base_dir=Path()):
        return None
    spec = resolve(job).spec
    room = plan_memory(spec, TINY).kv_cache.room
    return sum(step_parts(spec, TINY, *rates_of("emulated", given), room=room).values())


@pytest.mark.parametrize(("memory", "given"), [(None, ()), ("14Mi", ()), (None, FAILURES)])
def test_no_legal_layout_that_fits_is_faster_than_those_proposed(manifest, memory, given):
    changes = SMALL | ({"spec.accelerator.memory": memory} if memory else {})
    expected = by_brute_force(manifest, changes, given)

    ranking = rank(estimates(read_job(manifest(changes)), given), top=8)

    found = [proposal.estimate.seconds for proposal in ranking.proposals]
    assert found == sorted(found)
    # A micro-batch that is bounded by tokens may be faster than all that are bounded by prompts.
    assert all(mine <= brute * (1 + 1e-9) for mine, brute in zip(found, expected[:8], strict=True))
    assert not ranking.counts.ended


def test_a_second_copy_is_proposed_where_failures_cost_more_than_it_does(manifest):
    changes = SMALL | {"spec.update.parallelism": {"tensor": 2}, "spec.steps": 1000}
    job = read_job(manifest(changes))

    def cost(kind, *given):
        spec = resolve(read_job(manifest(changes | {"spec.update.redundancy": kind}))).spec
        return step_parts(spec, TINY, *rates_of("emulated", given))

    assert cost("none")["failures"] == 0
    for kind, lost in (("none", 1000 / 2), ("host", 1000 / 2), ("peer", 0)):  # all since the start
        parts = cost(kind, *FAILURES)
        step = sum(parts.values()) - parts["failures"]
        each = 1 + step / 2 + lost * step
        assert parts["failures"] == pytest.approx(50 * 2 / 86400 * step * each)

    found = rank(estimates(job, FAILURES), top=100).proposals
    kinds = {p.estimate.layout.update.tensor: fragment(p, job)["spec"]["update"] for p in found}
    assert kinds[2]["redundancy"] == "peer"
    unasked = rank(estimates(job), top=100).proposals
    assert all("redundancy" not in fragment(p, job)["spec"]["update"] for p in unasked)


def merged(manifest, change):
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(manifest.get(key), dict):
            merged(manifest[key], value)
        else:
            manifest[key] = value
    return manifest


CASES = {
    "two devices": SMALL,
    "a limit": SMALL | {"spec.accelerator.memory": "12Mi"},
    "a critic": SMALL | {"spec.algorithm": {"name": "ppo"}},
    "tokens": SMALL | {"spec.batch.microBatchTokens": 64},
    "async": {
        **SMALL,
        "spec.placement": {"mode": "separated", "updateDevices": 1},
        "spec.flow.mode": "async",
    },
}


@pytest.mark.parametrize("case", CASES)
def test_every_proposal_is_valid_and_fits_when_its_fragment_is_pasted(manifest, case):
    job = read_job(manifest(CASES[case]))

    ranking = rank(estimates(job), top=12, placements="any")

    assert ranking.proposals
    for proposal in ranking.proposals:
        pasted = merged(copy.deepcopy(manifest(CASES[case])), fragment(proposal, job))
        read = read_job(pasted)
        plan = make_plan(read, base_dir=Path())
        assert not plan.problems
        assert plan.job.spec.update == resolve(proposal.job).spec.update
        assert plan.job.spec.rollout == resolve(proposal.job).spec.rollout
        assert plan.memory == proposal.memory


def test_a_search_finds_the_same_again_and_says_how_many_it_looked_at(job):
    small = job(SMALL)

    first, second = (rank(estimates(small), top=5) for _ in range(2))

    assert first == second
    counts = first.counts
    # update: 2 data (ZeRO 0 to 3) + tensor + 2 pipeline + 2 context × 4; rollout: data, tensor, pipeline
    assert counts.tried == (4 + 1 + 2 + 8) * 3
    assert counts.illegal == 0
    assert counts.looked_at + counts.too_large + counts.illegal <= counts.tried


def test_a_better_layout_than_the_jobs_is_ahead_of_it_and_says_by_what(job):
    shared = job(
        SMALL | {"spec.update.parallelism.tensor": 2, "spec.rollout.parallelism.tensor": 2}
    )

    ranking = rank(estimates(shared), top=1)

    best, own = ranking.proposals[0], ranking.job_layout
    assert best.estimate.seconds < own.estimate.seconds
    assert own.rank and own.rank > 1
    text = search_text(ranking, [])
    gained = f"{own.estimate.seconds - best.estimate.seconds:.3g} s"
    assert f"It is {gained}" in text and "ahead of the job's own layout" in text
    assert "tensor 1 in place of 2" in text


def test_where_nothing_fits_it_says_what_would(manifest):
    changes = SMALL | {"spec.accelerator.memory": "2Mi"}
    job = read_job(manifest(changes))

    ranking, remedies = search_job(job, base_dir=Path(), top=3)

    assert not ranking.proposals
    assert ranking.job_layout.rank is None and ranking.job_layout.problems
    least, *others = remedies
    assert least.startswith("The layout that needs least (update")
    assert "of 2Mi a device" in least
    assert any(sentence.startswith("More devices:") for sentence in others)
    assert search_json(ranking, remedies)["remedies"] == remedies


ALONE = {
    **TWO,
    "spec.algorithm": {"name": "ppo"},
    "spec.batch.samplesPerPrompt": 1,
    "spec.batch.maxPromptLength": 512,
    "spec.batch.maxResponseLength": 512,
}
SMALLEST: dict[str, Any] = {
    "tokens": (TWO, {"spec.batch.microBatchTokens": 192}, "10400Ki"),
    "one sample a prompt": (ALONE, {"spec.batch.microBatchSize": 1}, "18000Ki"),
}


@pytest.mark.parametrize("case", SMALLEST)
def test_what_is_too_large_does_not_depend_on_the_jobs_own_micro_batches(job, case):
    changes, smallest, memory = SMALLEST[case]
    limited = changes | {"spec.accelerator.memory": memory}

    usual, own = (estimates(job(limited | more)) for more in ({}, smallest))

    degrees = Degrees(usual, usual.job.spec.placement)
    assert Degrees(own, own.job.spec.placement).updates == degrees.updates
    assert 0 < len(degrees.updates) < len(usual.space.updates(usual.job.spec.placement).legal)
    least = [leanest(one, "job") for one in (usual, own)]
    assert least[0] == least[1]
    assert least[0] is not None
    (micro,) = smallest.values()
    assert micro in (least[0].setting.micro_batch_size, least[0].setting.micro_batch_tokens)


class Resharding(Estimator):
    """Without memory for the reshard, except of the layouts that `fits` says."""

    def __init__(self, job, fits):
        super().__init__(job, TINY, {}, rates_of("emulated"))
        self._fits = fits

    def memory(self, layout, *, with_reshard=False):
        if with_reshard and not self._fits(layout):
            return replace(super().memory(layout), limit=0)
        return super().memory(layout, with_reshard=with_reshard)


SHARED = SMALL | {"spec.update.parallelism.tensor": 2, "spec.rollout.parallelism.tensor": 2}
FOUR = SMALL | {"spec.accelerator.devicesPerNode": 4}


def test_layouts_without_room_for_their_reshard_do_not_count_for_the_jobs_place(job):
    shared = job(SHARED)
    usual = rank(estimates(shared), top=1)

    alone = rank(
        Resharding(shared, lambda layout: layout == usual.job_layout.estimate.layout), top=1
    )

    assert usual.job_layout.rank and usual.job_layout.rank > 2
    assert [one.estimate.layout for one in alone.proposals] == [usual.job_layout.estimate.layout]
    assert alone.job_layout.rank == 1
    assert alone.fitting == 1
    assert alone.counts.no_room == alone.counts.looked_at - 1


def test_others_are_looked_at_in_place_of_those_without_room_for_their_reshard(job):
    shared = job(SHARED)
    usual = rank(estimates(shared), top=9)
    refused = [one.estimate.layout for one in usual.proposals[:3]]

    ranking = rank(Resharding(shared, lambda layout: layout not in refused), top=6)

    assert [one.estimate for one in ranking.proposals] == [
        one.estimate for one in usual.proposals[3:]
    ]


def test_one_that_fits_behind_many_that_do_not_is_found(job):
    def fits(layout):
        return layout.update.tensor == 4 and layout.rollout.tensor == 4

    ranking = rank(Resharding(job(FOUR), fits), top=1)

    assert ranking.counts.no_room > MOST_CHECKED
    (only,) = ranking.proposals
    assert fits(only.estimate.layout)
    assert not ranking.counts.ended
    assert ranking.job_layout.rank is None


def test_the_jobs_own_layout_is_proposed_however_many_do_not_fit(job):
    slow = {"spec.update.parallelism.tensor": 4, "spec.rollout.parallelism.pipeline": 4}
    slowest = job(FOUR | slow)
    own = estimates(slowest).space.job_layout

    ranking = rank(Resharding(slowest, lambda layout: layout == own), top=1)

    assert ranking.counts.no_room == MOST_CHECKED
    assert [one.estimate.layout for one in ranking.proposals] == [own]


def test_a_search_that_gives_up_does_not_say_that_no_layout_fits(job):
    ranking = rank(Resharding(job(FOUR), lambda _: False), top=1)

    counts = ranking.counts
    assert not ranking.proposals
    assert counts.no_room == MOST_UNTIL_ONE_FITS
    assert counts.ended and counts.unchecked == ranking.fitting > 0
    text = search_text(ranking, ["More devices: buy them."])
    assert "No layout was found that fits." in text and "No layout fits." not in text
    assert f"{counts.unchecked} fit if their reshard does, which was not planned" in text
    assert search_json(ranking, [])["layouts"]["endedEarly"]


@pytest.mark.parametrize("name", ["qwen2.5-7b", "qwen2.5-32b", "deepseek-r1-671b"])
def test_the_papers_layouts_are_among_those_that_fit(name):
    job = load_job(PAPER / f"{name}.yaml")
    shape = find_shape(job.spec.model, base_dir=PAPER)
    assert shape is not None

    ranking = rank(Estimator(job, shape, {}, rates_of("ascend910c")), top=1, most=20)

    (best,) = ranking.proposals
    assert ranking.job_layout.rank is not None
    assert not memory_problems(resolve(job).spec, ranking.job_layout.memory)
    assert best.estimate.seconds <= ranking.job_layout.estimate.seconds
    assert not model_problems(best.job, base_dir=PAPER)


def rljob(tmp_path, manifest, changes, *options):
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(manifest(changes)))
    return CliRunner().invoke(app, ["plan", str(file), *options])


def test_the_command_prints_proposals_as_text_and_as_json(tmp_path, manifest):
    text = rljob(tmp_path, manifest, SMALL, "--search", "--top", "2")
    found = json.loads(rljob(tmp_path, manifest, SMALL, "--search", "--top", "2", "--json").stdout)

    assert text.exit_code == 0
    assert "The job's own: update data 2; rollout data 2" in text.stdout
    assert len(found["proposals"]) == 2
    first = found["proposals"][0]
    assert sum(first["parts"].values()) == pytest.approx(first["seconds"])
    assert set(first["fragment"]["spec"]) == {"batch", "rollout", "update"}


def test_rates_that_are_given_take_the_place_of_the_tables(tmp_path, manifest):
    plain, slow = (
        json.loads(rljob(tmp_path, manifest, SMALL, "--search", "--json", *more).stdout)
        for more in ((), ("--rate", "latency_seconds=1"))
    )

    assert plain["own"]["parts"]["communication"] < 1 < slow["own"]["parts"]["communication"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--rate", "speed=3"),
            "--rate: 'speed=3' names no rate; use one of dispatch_bytes, failures_",
        ),
        (("--rate", "flops=fast"), "--rate: 'flops=fast' has no positive number; write flops=1e12"),
        (("--rate", "flops=0"), "--rate: 'flops=0' has no positive number"),
    ],
)
def test_what_is_no_rate_is_refused_by_name(tmp_path, manifest, options, said):
    result = rljob(tmp_path, manifest, SMALL, "--search", *options)

    assert result.exit_code == 2
    assert said in result.stderr


def test_options_of_the_search_are_refused_without_it(tmp_path, manifest):
    result = rljob(tmp_path, manifest, SMALL, "--top", "3")

    assert result.exit_code == 2
    assert result.stderr == "--top: has no use without --search; add --search or leave it out\n"
