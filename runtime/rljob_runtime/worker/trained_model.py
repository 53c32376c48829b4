"""A model that is trained, with its engine: the policy or the critic, as checkpoints hold it.

Called by `build` on every update rank at the same time.
"""

import collections
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rljob_api.topology.second_copies import Kind
from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.devices.collectives import rank_of, size_of
from rljob_runtime.errors import CheckpointError
from rljob_runtime.models.adapter_files import ADAPTER_FOLDER, read_adapter, save_adapter
from rljob_runtime.models.tensor_files import TensorFiles
from rljob_runtime.models.weights import save_hf
from rljob_runtime.parallel.decoder.parameters import ValuesAt, as_they_are
from rljob_runtime.parallel.fully_sharded import first_row, held_rows
from rljob_runtime.record.checkpoint import MODEL_FOLDER, optimizer_file
from rljob_runtime.update.state_places import (
    MAIN,
    REMEDY,
    SavedStates,
    StatePlace,
    StateRange,
    as_rows,
    from_rows,
    places_of,
)
from rljob_runtime.update.update_engine import MovableState
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import AnyUpdateEngine
from rljob_runtime.weights.held_policy import HeldPolicy

PLACES = "places"
"""In the optimizer's file: of each tensor, which items of which weights it is of."""
KL_COEFFICIENT = "algorithm/kl_coefficient"
"""In the optimizer's file: the KL coefficient of the next step, float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """source: directory whose tokenizer and configuration a checkpoint gets. config: instead of source's.
    control: of the KL coefficient, which the policy's checkpoint holds."""

    held: HeldPolicy
    engine: AnyUpdateEngine
    ranks: UpdateRanks
    source: Path
    config: Mapping[str, object] | None = None
    control: KlControl | None = None

    def save(self, folder: Path, *, at: ValuesAt = as_they_are) -> list[Path]:
        """Write the model's directory and the optimizer's state: each rank its part, the first the model,
        merged, and its adapters. Returns the files that this rank wrote.

        at: where the values of a live tensor are now.
        """
        folder.mkdir(exist_ok=True)
        weights, adapters = self.held.whole_weights(at), self.held.whole_adapters()
        first = rank_of(self.ranks.everyone) == 0
        if first:
            save_hf(weights, source=self.source, config=self.config, folder=folder / MODEL_FOLDER)
        elif self.ranks.groups is not None:
            collections.deque(weights, maxlen=0)
        if first and self.held.lora is not None:
            place = folder / ADAPTER_FOLDER
            save_adapter(adapters, self.held.lora, base=self.source, folder=place)
        elif self.ranks.groups is not None:
            collections.deque(adapters, maxlen=0)
        if first or self.ranks.groups is not None:
            state = self.engine.state_dict()
            if self.control is not None:
                coefficient = torch.tensor(self.control.coefficient, dtype=torch.float64)
                state = state | {KL_COEFFICIENT: coefficient}
            places = {name: as_rows(of) for name, of in self._places().items() if name in state}
            torch.save(state | {PLACES: places}, folder / self._optimizer_file)
        models = [folder / MODEL_FOLDER, folder / ADAPTER_FOLDER] if first else []
        files = [file for model in models for file in model.rglob("*") if file.is_file()]
        optimizer = folder / self._optimizer_file
        return [*files, optimizer] if first or self.ranks.groups is not None else files

    def load(self, folder: Path) -> None:
        """Read what `save` wrote, on ranks of any layout. Raises CheckpointError where adapters are of
        another model, or where the state cannot be cut otherwise."""
        if self.held.lora is None:
            self.held.load(folder / MODEL_FOLDER)
        else:
            self.held.load(folder / ADAPTER_FOLDER)
            self._check_base(folder / MODEL_FOLDER)
        state = self._read_state(folder)
        coefficient = state.pop(KL_COEFFICIENT, None)
        self.engine.load_state_dict(state)
        if self.control is not None and coefficient is not None:
            self.control.coefficient = float(coefficient)

    def live(self, at: ValuesAt = as_they_are) -> dict[Kind, dict[str, Tensor]]:
        """What this rank has of the weights that are trained, and of the engine's state, by name: not copies.
        at: as of `save`."""
        trained = self.held.model.trained_parameters()
        state = dict(self.engine.state_dict())
        if self.control is not None:
            state[KL_COEFFICIENT] = torch.tensor(self.control.coefficient, dtype=torch.float64)
        return {
            "weights": {name: at(held_rows(own)).detach() for name, own in trained},
            "state": state,
        }

    def take_up(self, kept: Mapping[Kind, Mapping[str, Tensor]]) -> None:
        """Be as the rank that had this `live`, with the same part of the model."""
        with torch.no_grad():
            for name, own in self.held.model.trained_parameters():
                held_rows(own).copy_(kept["weights"][name])
        state = dict(kept["state"])
        coefficient = state.pop(KL_COEFFICIENT, None)
        self.engine.load_state_dict(state)
        if self.control is not None and coefficient is not None:
            self.control.coefficient = float(coefficient)

    def _places(self) -> dict[str, list[StatePlace]]:
        """Of the engine's state, where it can tell."""
        if not isinstance(self.engine, MovableState):
            return {}
        spans = self.held.spans()
        return {name: list(places_of(of, spans)) for name, of in self.engine.state_ranges().items()}

    def _read_state(self, folder: Path) -> dict[str, Tensor]:
        """This rank's file as it is, or, from ranks of another layout, what this one has of all files."""
        own, file = self._places(), folder / self._optimizer_file
        if file.exists():
            state, saved = read_optimizer(file)
            if not saved or not own or all(own.get(name) == of for name, of in saved.items()):
                return state
        files = [read_optimizer(file) for file in sorted(folder.glob("optimizer*.pt"))]
        if not own or not all(places for _, places in files):
            untold = "what its files are of" if own else "what its engine's state is of"
            raise CheckpointError(
                f"{folder} has no {file.name}: ranks of another layout saved it, and nothing tells {untold}; "
                f"{REMEDY}"
            )
        filled = self._state_of(SavedStates(files), folder, own)
        coefficient = files[0][0].get(KL_COEFFICIENT) if files else None
        return filled | ({} if coefficient is None else {KL_COEFFICIENT: coefficient})

    def _state_of(
        self, states: SavedStates, folder: Path, own: Mapping[str, list[StatePlace]]
    ) -> dict[str, Tensor]:
        """This rank's part of them. Main weights are in a state, but with ZeRO 3, where the model is them."""
        assert isinstance(self.engine, MovableState), "who tells places can tell ranges"
        ranges = self.engine.state_ranges()
        has_main = any(of.kind == MAIN for of in ranges.values())
        if has_main and MAIN not in states.kinds:
            for name, shape, read in self._saved_weights(folder):
                states.add_whole(MAIN, name, shape, read)
        elif MAIN in states.kinds and not has_main:
            self._take_main(states)
        filled = dict[str, Tensor]()
        for name, of in ranges.items():
            if of.kind in states.kinds:  # before the first step some engines have no moments
                filled |= of.stored(name, states.fill(of, own[name]))
        return filled

    def _saved_weights(
        self, folder: Path
    ) -> Iterator[tuple[str, tuple[int, ...], Callable[[], Tensor]]]:
        """Whole, with their shapes, of what is trained."""
        if self.held.lora is not None:
            for name, adapter in read_adapter(folder / ADAPTER_FOLDER, {}).items():
                yield name, tuple(adapter.shape), adapter.detach
            return
        files = TensorFiles(folder / MODEL_FOLDER).split_stacks()
        for name, stored in (files.tensors | files.tower).items():
            yield name, tuple(stored.shape), partial(files.read, name)

    @torch.no_grad()
    def _take_main(self, states: SavedStates) -> None:
        """Into the weights, which are as wide."""
        spans = self.held.spans()
        for name, own in self.held.model.trained_parameters():
            rows = held_rows(own)
            first = first_row(own) * prod(own.shape[1:])
            of = StateRange(kind=MAIN, shape=rows.shape, parameters=(name,), first=first)
            rows.copy_(states.fill(of, places_of(of, spans)))

    def _check_base(self, saved: Path) -> None:
        """A checkpoint holds the merged model: with its adapters, the frozen weights must give the same."""
        files = TensorFiles(saved).split_stacks()
        wrong = [n for n, w in self.held.whole_weights() if not _same(w, files.read(n))]
        if wrong:
            raise CheckpointError(
                f"{self.source} is not the model that the adapters of {saved.parent} were trained on "
                f"({len(wrong)} tensors differ, such as {wrong[0]}); put it back, or start a new job from "
                f"{saved}"
            )

    @property
    def share(self) -> tuple[int, int]:
        """(rank, of) among the update ranks."""
        return rank_of(self.ranks.everyone), size_of(self.ranks.everyone)

    @property
    def _optimizer_file(self) -> str:
        everyone = self.ranks.everyone
        parts = size_of(everyone) if self.ranks.groups is not None else 1
        return optimizer_file(rank_of(everyone), parts)


def read_optimizer(file: Path) -> tuple[dict[str, Tensor], dict[str, list[StatePlace]]]:
    """The state that `TrainedModel.save` wrote there, and the places of its tensors, empty where it has none.
    Tensors are read when they are used. Raises CheckpointError with the file's name."""
    try:
        state: dict[str, Tensor] = torch.load(file, weights_only=True, mmap=True)
        places: Mapping[str, list[Any]] = state.pop(PLACES, {})  # type: ignore[assignment]
        return state, {name: from_rows(rows) for name, rows in places.items()}
    except Exception as error:  # pickle, zip files and torch have errors of their own
        raise CheckpointError(
            f"{file}: cannot be read ({type(error).__name__}: {error}); remove its checkpoint to go on "
            "from the one before"
        ) from error


def _same(merged: Tensor, saved: Tensor) -> bool:
    """Whether two merges of the same tensors may differ so, by rounding on different machines or in a wider
    type, which ZeRO 3 has."""
    close = 4 * max(torch.finfo(each.dtype).eps for each in (merged, saved))
    return torch.allclose(merged, saved.to(merged.device, merged.dtype), rtol=close, atol=close)
