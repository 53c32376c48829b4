"""A checkpoint of any layout of the ranks that train, loaded in any other: every rank then has the very items
that are its own, of weights and of the optimizer's state. Ranks are one after the other in this process, and
their collectives do nothing.

What is right is known without the places that files tell: a state's items are made of those of the model's
files that an engine of float32 in the same layout has.
"""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from engine_steps import EXPERTS, MODELS, save_model, setup_of, spec_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from parallel_training import grid_of
from shared_steps import ranks_of
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from rljob_api.spec.lora import Lora
from rljob_runtime.errors import CheckpointError
from rljob_runtime.models.adapter_files import ADAPTER_FOLDER, save_adapter
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.weights import save_hf
from rljob_runtime.parallel.fully_sharded import local_rows
from rljob_runtime.parallel.ranks import RankGrid
from rljob_runtime.record.checkpoint import MODEL_FOLDER
from rljob_runtime.update.moments import moment_in_float8, moment_values, scales_name
from rljob_runtime.update.optimizers import WholeOptimizer
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import make_torch
from rljob_runtime.weights.held_policy import load_local_policy
from rljob_runtime.worker.trained_model import PLACES, TrainedModel

LAYOUTS: dict[str, dict[str, int]] = {
    "one": {},
    "tensor 2": {"tensor": 2},
    "tensor 4": {"tensor": 4},  # key heads are repeated
    "pipeline 3": {"pipeline": 3},
    "virtual pipeline 2": {"pipeline": 2, "virtualPipeline": 2},
    "context 2, tensor 2, zero 1": {"context": 2, "tensor": 2, "zero": 1},
    "data 2": {"data": 2},
    "data 2, zero 1": {"data": 2, "zero": 1},
    "data 3, zero 2": {"data": 3, "zero": 2},
    "data 5, zero 3": {"data": 5, "zero": 3},  # the last has no rows of some
    "data 2, tensor 2, zero 3": {"data": 2, "tensor": 2, "zero": 3},
    "data 2, tensor 2, pipeline 2, zero 1": {"data": 2, "tensor": 2, "pipeline": 2, "zero": 1},
}
EXPERT_LAYOUTS = LAYOUTS | {
    "data 2, expert 2, zero 1": {"data": 2, "expert": 2, "zero": 1},
    "data 4, expert 2, tensor 2": {"data": 4, "expert": 2, "tensor": 2},
    "pipeline 3, data 2, expert 2": {"pipeline": 3, "data": 2, "expert": 2},
}
CRITIC = {"architectures": ["Qwen2ForSequenceClassification"], "num_labels": 1}
FLAT = {"num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 24, "vocab_size": 60}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is trained, and how. model: its config."""

    model: dict[str, Any]
    layouts: dict[str, dict[str, int]] = field(default_factory=lambda: LAYOUTS)
    dtype: torch.dtype = torch.float32
    lora: Lora | None = None
    scores: bool = False
    optimizer: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "policy": Kind(model=MODELS["qwen3"]),
    "experts": Kind(model=EXPERTS, layouts=EXPERT_LAYOUTS),
    "critic": Kind(model=MODELS["qwen2"] | CRITIC, scores=True),
    "adapters": Kind(model=MODELS["qwen2"], lora=Lora(rank=3, target_modules=["all-linear"])),
    "main weights": Kind(model=EXPERTS, layouts=EXPERT_LAYOUTS, dtype=torch.bfloat16),
    "moments in 8 bits": Kind(model=MODELS["llama"], optimizer={"momentsDtype": "float8"}),
}


class Loaded(TrainedModel):
    """Adapters' base is not compared, as no collective merges it."""

    def _check_base(self, saved: Path) -> None:
        pass


class Checkpoints:
    """Of each kind and layout, made when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.of = cache(self._of)
        self._source = cache(self._made)

    def model(self, kind: Kind, rank: int, grid: RankGrid, *, exact: bool = False) -> Loaded:
        """A rank's, of the model's files. exact: in float32 whatever the kind's type is."""
        folder, single = self.files(kind), grid.size == 1 or grid.degrees.data == grid.size
        shares = not single or grid.degrees.zero > 0
        ranks = ranks_of(grid) if shares and grid.size > 1 else UpdateRanks(everyone=_world())
        held = load_local_policy(
            folder / MODEL_FOLDER,
            ranks,
            dtype=torch.float32 if exact else kind.dtype,
            scores=kind.scores,
            lora=kind.lora,
        )
        if kind.lora is not None:
            held.load(folder / ADAPTER_FOLDER)
        settings = {} if exact else kind.optimizer
        spec = spec_of(engine="torch", optimizer=settings)
        engine = make_torch(setup_of(folder / MODEL_FOLDER, spec, ranks, held))
        return Loaded(shard=held, engine=engine, ranks=ranks, source=folder / MODEL_FOLDER)

    def files(self, kind: Kind) -> Path:
        """Weights in float32, with adapters that change something."""
        return self._source(next(name for name, known in KINDS.items() if known is kind))

    def _made(self, name: str) -> Path:
        kind, folder = KINDS[name], self._folder / name / "files"
        folder.mkdir(parents=True)
        save_model(folder / MODEL_FOLDER, kind.model | FLAT)
        if kind.lora is not None:
            held = load_local_policy(
                folder / MODEL_FOLDER, UpdateRanks(), dtype=torch.float32, lora=kind.lora
            )
            random = torch.Generator().manual_seed(1)
            drawn = [(n, torch.randn(a.shape, generator=random)) for n, a in held.full_adapters()]
            save_adapter(
                drawn, kind.lora, base=folder / MODEL_FOLDER, folder=folder / ADAPTER_FOLDER
            )
        return folder

    def _of(self, name: str, layout: str) -> Path:
        """What ranks save whose optimizers have what `expected` says."""
        kind, folder = KINDS[name], self._folder / name / layout
        files, grid = self.files(kind), self.grid(kind, layout)
        for rank in range(grid.size):
            with alone_as(rank, grid.size):
                model = self.model(kind, rank, grid)
                state = model.engine.state_dict()
                wanted = expected(self.model(kind, rank, grid, exact=True))
                for item, values in wanted.items():
                    take(state, item, values)
                engine: Any = model.engine
                engine.step = engine.version = 7
                model.save(folder)
        shutil.rmtree(folder / MODEL_FOLDER)  # of collectives that did nothing
        shutil.rmtree(folder / ADAPTER_FOLDER, ignore_errors=True)
        shutil.copytree(files, folder, dirs_exist_ok=True)
        if kind.dtype != torch.float32 and grid.degrees.zero != 3:
            weights = dict(
                load_decoder(files / MODEL_FOLDER, dtype=kind.dtype).named_hf_parameters()
            )
            save_hf(weights.items(), source=files / MODEL_FOLDER, folder=folder / MODEL_FOLDER)
        return folder

    def grid(self, kind: Kind, layout: str) -> RankGrid:
        return grid_of(self.files(kind) / MODEL_FOLDER, **kind.layouts[layout])


def _world() -> Any:
    return dist.group.WORLD if dist.is_initialized() else None


@contextlib.contextmanager
def alone_as(rank: int, size: int) -> Iterator[None]:
    """Be one of so many ranks."""
    if size == 1:
        yield
        return
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def stepped(model: TrainedModel) -> dict[str, dict[str, Tensor]]:
    """What the rank's optimizer steps, by parameter, and before it by what a state's names begin with."""
    optimizer: Any = model.engine._optimizer  # type: ignore[attr-defined]
    if isinstance(optimizer, WholeOptimizer):
        return {"": optimizer._adamw._stepped}
    adamws = {f"{share.purpose}.": share.adamw for share in optimizer._shares}
    return {name: getattr(own, "_adamw", own)._stepped for name, own in adamws.items()}


def expected(exact: TrainedModel) -> dict[str, Tensor]:
    """A state of this rank, as `main`, `exp_avg` and `exp_avg_sq` of each parameter: of its own items."""
    found = {}
    for share, weights in stepped(exact).items():
        for name, own in weights.items():
            items = own.detach().clone()
            found |= {
                f"{share}main.{name}": items,
                f"{share}exp_avg.{name}": 3 * items,
                f"{share}exp_avg_sq.{name}": items.square(),
            }
        found[f"{share}adamw_step"] = torch.tensor(7.0)
    return found


def take(state: dict[str, Tensor], name: str, values: Tensor) -> None:
    """Into a live state, where it has such a tensor."""
    kind = next((k for k in ("exp_avg_sq", "exp_avg") if f"{k}." in name), "")
    if name not in state:
        assert "main." in name, name
    elif scales_name(name, kind) in state:
        wide = values.sqrt() if kind == "exp_avg_sq" else values
        for of, tensor in moment_in_float8(name, kind, wide).items():
            state[of].copy_(tensor)
    else:
        state[name].copy_(values)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    torch.set_num_threads(1)
    return Checkpoints(tmp_path_factory.mktemp("layouts"))


@st.composite
def moves(draw: st.DrawFn) -> tuple[str, str, str]:
    """A kind, and two of its layouts."""
    name = draw(st.sampled_from(sorted(KINDS)))
    layouts = st.sampled_from(sorted(KINDS[name].layouts))
    return name, draw(layouts), draw(layouts)


@example(("main weights", "data 5, zero 3", "data 2, expert 2, zero 1"))
@example(("main weights", "tensor 2", "data 2, tensor 2, zero 3"))
@example(("moments in 8 bits", "tensor 2", "data 2, zero 1"))
@given(move=moves())
@settings(max_examples=6)
def test_every_rank_of_any_layout_has_its_items_from_a_checkpoint_of_any_other(
    checkpoints: Checkpoints, move: tuple[str, str, str]
) -> None:
    name, before, after = move
    kind, folder = KINDS[name], checkpoints.of(name, before)
    grid = checkpoints.grid(kind, after)

    for rank in range(grid.size):
        with alone_as(rank, grid.size):
            model = checkpoints.model(kind, rank, grid)
            for _, own in model.shard.model.trained_parameters():
                local_rows(own).detach().zero_()
            model.load(folder)
            exact = checkpoints.model(kind, rank, grid, exact=True)
            check(model, exact, kind)


def check(model: TrainedModel, exact: TrainedModel, kind: Kind) -> None:
    state = model.engine.state_dict()
    for item, values in expected(exact).items():
        if item in state and kind.optimizer and "exp_avg" in item:
            of = "exp_avg_sq" if "exp_avg_sq." in item else "exp_avg"
            root = values.sqrt() if of == "exp_avg_sq" else values
            found = moment_values(state, item, of)
            # Two roundings to a neighbour among values that are an eighth apart.
            atol = 1e-5 * float(root.abs().max()) if root.numel() else 0.0
            torch.testing.assert_close(found, root, rtol=0.27, atol=atol, msg=item)
        elif item in state:
            assert state[item].equal(values), item
    assert state["step"] == state["version"] == 7
    wanted = dict(exact.shard.model.trained_parameters())
    for name, own in model.shard.model.trained_parameters():
        rows, whole = local_rows(own), local_rows(wanted[name])
        assert rows.equal(whole.to(rows.dtype)), name
    assert any("main." in item for item in state) == any(
        own.dtype != torch.float32 for _, own in model.shard.model.trained_parameters()
    )


def test_files_that_do_not_tell_what_they_are_of_are_refused_in_another_layout(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    kind = KINDS["policy"]
    folder = shutil.copytree(checkpoints.of("policy", "tensor 2"), tmp_path / "old")
    for file in folder.glob("optimizer*"):
        state = torch.load(file, weights_only=True)
        del state[PLACES]
        torch.save(state, file)
    one = checkpoints.grid(kind, "one")

    with pytest.raises(CheckpointError, match=r"old has no optimizer\.pt: ranks of another layout"):
        checkpoints.model(kind, 0, one).load(folder)
    with alone_as(1, 2):  # as it is, in its own
        checkpoints.model(kind, 1, checkpoints.grid(kind, "tensor 2")).load(folder)
