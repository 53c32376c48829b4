"""Reference and update states of ranks that share a model: one reads for its replica, all learn alike."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp  # once, not in every fork
from forked_docks import ForkedDock
from forked_ranks import on_ranks
from made_samples import GROUPS, SAMPLES, Samples, make_spec
from parallel_training import SETTINGS, grid_of
from reference_models import make_reference

from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.errors import DockError
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import state_graph
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_torch import TorchUpdateEngine
from rljob_runtime.weights.held_policy import load_local_policy
from rljob_runtime.worker.inference import InferenceState
from rljob_runtime.worker.update import UpdateState

BATCH = BatchName(kind="train", step=1)


@dataclass(kw_only=True)
class Training:
    """One training batch on ranks that come together over a dock. kl: without it, there is no reference,
    and groups that teach nothing have no gradient. missing: groups that never come. failed: groups whose
    scores failed."""

    path: Path
    degrees: dict[str, Any]
    kl: float = 0.1
    missing: int = 0
    failed: tuple[int, ...] = ()
    batch: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.grid = grid_of(self.path, **self.degrees)
        spec = make_spec(kl=self.kl, devices=self.grid.size, degrees=self.degrees, **self.batch)
        self.samples = Samples(spec, BATCH, failed=self.failed)

    def run(self) -> list[Any]:
        with ForkedDock(state_graph(self.samples.spec).states) as self.dock:
            feeder = self.dock.client("feed", "feeder")
            feeder.put_rows(str(BATCH), self.samples.rows(), total=GROUPS * SAMPLES)
            found = on_ranks(self.grid.size, self._rank, seconds=300)
            if not self.missing:
                assert self.dock.client("update", "x").claim(str(BATCH), timeout_seconds=5).done
            return found

    def _rank(self, rank: int) -> Any:
        ranks = UpdateRanks()
        if self.grid.size > 1:
            ranks = UpdateRanks.of(ProcessGroups(self.grid, timeout_seconds=60), dist.group.WORLD)
        policy, frozen = (
            load_local_policy(self.path, ranks, dtype=torch.float32) for _ in range(2)
        )
        before = {name: weight.clone() for name, weight in policy.full_weights()}
        engine = TorchUpdateEngine(
            policy.model,
            optimizer=SETTINGS,
            total_steps=1,
            temperature=1.0,
            ranks=ranks,
            purposes=policy.purposes,
        )
        if rank == 0:
            threading.Thread(target=self._produce, daemon=True).start()
        report = failure = None
        try:
            if self.kl:
                self._reference(frozen.model, ranks, rank)
            dock = self.dock.client("update", f"update-{rank}")
            report = UpdateState(
                engine=engine,
                dock=dock,
                ranks=ranks,
                spec=self.samples.spec,
                control=KlControl.of(self.samples.spec.algorithm.params),
            ).run(BATCH)
        except DockError as error:
            failure = str(error)
        weights = {name: weight.clone() for name, weight in policy.full_weights()}
        fixed_fields_rule = all(weight.equal(before[name]) for name, weight in weights.items())
        return report, weights, failure, fixed_fields_rule

    def _reference(self, model: Any, ranks: UpdateRanks, rank: int) -> None:
        spec = self.samples.spec
        InferenceState(
            model=model,
            column="reference_logprobs",
            evaluation=None,
            dock=self.dock.client("reference", f"reference-{rank}"),
            ranks=ranks,
            temperature=1.0,
            sizes=spec.batch,
            pass_groups=spec.batch.micro_batch_size,
            timeout_seconds=30,
        ).run(BATCH)

    def _produce(self) -> None:
        order = range(GROUPS - self.missing)
        self.samples.write(self.dock, order, pause=0.02, elsewhere=["reference"])
        if self.missing:
            self.dock.client("feed", "feeder").drop_batch(str(BATCH))


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str], Path]:
    """Saves a family's random model; its experts' balance counts in the loss."""

    def save(family: str) -> Path:
        make_reference(family).save_pretrained(tmp_path / "model")
        file = tmp_path / "model" / "config.json"
        balanced = {"output_router_logits": True, "router_aux_loss_coef": 0.5}
        file.write_text(json.dumps(json.loads(file.read_text()) | balanced))
        return tmp_path / "model"

    return save


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tensor": ("qwen2-tied", {"tensor": 2}, {"batch": {"microBatchSize": 2}}),
    "experts over data, several steps": (
        "qwen3-moe", {"data": 2, "expert": 2},
        {"kl": 0.0, "batch": {"miniBatchSize": 4, "epochs": 2}},
    ),
    "pipeline, several steps": (
        "qwen2-tied", {"pipeline": 2, "data": 2}, {"batch": {"miniBatchSize": 4}},
    ),
    "tensor, experts over data, ZeRO 2": (
        "deepseek-v3", {"tensor": 2, "data": 2, "expert": 2, "zero": 2}, {},
    ),
    "tensor, ZeRO 3, several steps, groups that teach nothing": (
        "qwen3-moe", {"tensor": 2, "data": 2, "zero": 3},
        {"kl": 0.0, "batch": {"miniBatchSize": 4}},
    ),
    "context, ZeRO 3": ("qwen2-tied", {"context": 2, "data": 2, "zero": 3}, {}),
    "experts over data, scores that failed": (
        "qwen3-moe", {"data": 2, "expert": 2}, {"kl": 0.0, "failed": (1, 2, 3, 4, 5)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_ranks_that_share_a_model_learn_from_a_dock_what_one_rank_learns(
    case: str, save: Callable[[str], Path]
) -> None:
    family, degrees, settings = CASES[case]
    path = save(family)
    alone, expected, _, fixed_fields_rule = Training(path=path, degrees={}, **settings).run()[0]
    assert not fixed_fields_rule

    found = Training(path=path, degrees=degrees, **settings).run()

    replicas = grid_of(path, **degrees).groups(Purpose.REPLICA)
    rows = {ranks[0]: GROUPS * SAMPLES // len(replicas) for ranks in replicas}
    ages = [report.rows_by_age.total() for report, _, _, _ in found]
    assert ages == [rows.get(rank, 0) for rank in range(len(found))]
    for report, weights, _, _ in found:
        assert report.metrics == pytest.approx(alone.metrics, rel=1e-3, abs=1e-5)
        for name, weight in weights.items():
            torch.testing.assert_close(weight, expected[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("family", "degrees"), [("qwen2-tied", {"tensor": 2}), ("qwen3-moe", {"data": 2, "expert": 2})]
)
def test_a_batch_that_is_dropped_half_way_fails_on_all_ranks_and_changes_no_weight(
    family: str, degrees: dict[str, Any], save: Callable[[str], Path]
) -> None:
    results = Training(path=save(family), degrees=degrees, missing=1).run()

    for report, _, failure, fixed_fields_rule in results:
        assert report is None and failure and fixed_fields_rule
