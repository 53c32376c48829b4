"""A trained model with its engine, the policy or the critic, in the format of checkpoints.

`build` creates it on every update rank concurrently.
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
from rljob_runtime.parallel.fully_sharded import first_row, local_rows
from rljob_runtime.record.checkpoint import MODEL_FOLDER, optimizer_file
from rljob_runtime.update.state_places import (
    MAIN,
    REMEDY,
    SavedStates,
    StateRange,
    StateSegment,
    as_rows,
    from_rows,
    state_segments,
)
from rljob_runtime.update.update_engine import MovableState
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import AnyUpdateEngine
from rljob_runtime.weights.held_policy import LocalPolicy

PLACES = "places"
"""Key in the optimizer's file: for each tensor, the weights' items that it belongs to."""
KL_COEFFICIENT = "algorithm/kl_coefficient"
"""Key in the optimizer's file: the KL coefficient of the next step, float64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """A model that is trained, and its engine. shard: this rank's shard of the model.

    source: directory whose tokenizer and configuration a checkpoint gets. config: replaces source's. control:
    of the KL coefficient, which the policy's checkpoint stores.
    """

    shard: LocalPolicy
    engine: AnyUpdateEngine
    ranks: UpdateRanks
    source: Path
    config: Mapping[str, object] | None = None
    control: KlControl | None = None

    def save(self, folder: Path, *, read_live: ValuesAt = as_they_are) -> list[Path]:
        """Write the model's directory and the optimizer's state; returns the files that this rank wrote.

        Each rank writes its shard of the state; the first writes the merged model and its adapters.
        read_live: returns the current values of a live tensor.
        """
        folder.mkdir(exist_ok=True)
        weights, adapters = self.shard.full_weights(read_live), self.shard.full_adapters()
        first = rank_of(self.ranks.everyone) == 0
        if first:
            save_hf(weights, source=self.source, config=self.config, folder=folder / MODEL_FOLDER)
        elif self.ranks.groups is not None:
            collections.deque(weights, maxlen=0)
        if first and self.shard.lora is not None:
            adapter_folder = folder / ADAPTER_FOLDER
            save_adapter(adapters, self.shard.lora, base=self.source, folder=adapter_folder)
        elif self.ranks.groups is not None:
            collections.deque(adapters, maxlen=0)
        if first or self.ranks.groups is not None:
            state = self.engine.state_dict()
            if self.control is not None:
                coefficient = torch.tensor(self.control.coefficient, dtype=torch.float64)
                state = state | {KL_COEFFICIENT: coefficient}
            segments = {
                name: as_rows(tensor_segments)
                for name, tensor_segments in self._segments().items()
                if name in state
            }
            torch.save(state | {PLACES: segments}, folder / self._optimizer_file)
        models = [folder / MODEL_FOLDER, folder / ADAPTER_FOLDER] if first else []
        files = [file for model in models for file in model.rglob("*") if file.is_file()]
        optimizer = folder / self._optimizer_file
        return [*files, optimizer] if first or self.ranks.groups is not None else files

    def load(self, folder: Path) -> None:
        """Read what `save` wrote, on ranks of any layout.

        Raises CheckpointError if adapters are of another model, or if the state cannot be split differently.
        """
        if self.shard.lora is None:
            self.shard.load(folder / MODEL_FOLDER)
        else:
            self.shard.load(folder / ADAPTER_FOLDER)
            self._check_base(folder / MODEL_FOLDER)
        state = self._read_state(folder)
        coefficient = state.pop(KL_COEFFICIENT, None)
        self.engine.load_state_dict(state)
        if self.control is not None and coefficient is not None:
            self.control.coefficient = float(coefficient)

    def live(self, read_live: ValuesAt = as_they_are) -> dict[Kind, dict[str, Tensor]]:
        """Return this rank's trained weights and the engine's state, by name: not copies. read_live: as in
        `save`."""
        trained = self.shard.model.trained_parameters()
        state = dict(self.engine.state_dict())
        if self.control is not None:
            state[KL_COEFFICIENT] = torch.tensor(self.control.coefficient, dtype=torch.float64)
        return {
            "weights": {
                name: read_live(local_rows(parameter)).detach() for name, parameter in trained
            },
            "state": state,
        }

    def take_up(self, kept_tensors: Mapping[Kind, Mapping[str, Tensor]]) -> None:
        """Restore the `live` tensors of a rank with the same shard of the model."""
        with torch.no_grad():
            for name, parameter in self.shard.model.trained_parameters():
                local_rows(parameter).copy_(kept_tensors["weights"][name])
        state = dict(kept_tensors["state"])
        coefficient = state.pop(KL_COEFFICIENT, None)
        self.engine.load_state_dict(state)
        if self.control is not None and coefficient is not None:
            self.control.coefficient = float(coefficient)

    def _segments(self) -> dict[str, list[StateSegment]]:
        """Return the segments of the engine's state, empty if it has no ranges."""
        if not isinstance(self.engine, MovableState):
            return {}
        spans = self.shard.spans()
        return {
            name: list(state_segments(state_range, spans))
            for name, state_range in self.engine.state_ranges().items()
        }

    def _read_state(self, folder: Path) -> dict[str, Tensor]:
        """Return this rank's file, or, for another layout, this rank's items from all files."""
        local_segments, file = self._segments(), folder / self._optimizer_file
        if file.exists():
            state, saved = read_optimizer(file)
            if (
                not saved
                or not local_segments
                or all(
                    local_segments.get(name) == tensor_segments
                    for name, tensor_segments in saved.items()
                )
            ):
                return state
        files = [read_optimizer(file) for file in sorted(folder.glob("optimizer*.pt"))]
        if not local_segments or not all(segments for _, segments in files):
            gap = "what its files are of" if local_segments else "what its engine's state is of"
            raise CheckpointError(
                f"{folder} has no {file.name}: ranks of another layout saved it, and nothing tells {gap}; "
                f"{REMEDY}"
            )
        filled = self._state_of(SavedStates(files), folder, local_segments)
        coefficient = files[0][0].get(KL_COEFFICIENT) if files else None
        return filled | ({} if coefficient is None else {KL_COEFFICIENT: coefficient})

    def _state_of(
        self, states: SavedStates, folder: Path, local_segments: Mapping[str, list[StateSegment]]
    ) -> dict[str, Tensor]:
        """Return this rank's items of the states.

        Main weights are part of a state, except with ZeRO 3, where the model's weights are main weights.
        """
        assert isinstance(self.engine, MovableState), "who tells places can tell ranges"
        ranges = self.engine.state_ranges()
        has_main = any(state_range.kind == MAIN for state_range in ranges.values())
        if has_main and MAIN not in states.kinds:
            for name, shape, read in self._saved_weights(folder):
                states.add_full(MAIN, name, shape, read)
        elif MAIN in states.kinds and not has_main:
            self._take_main(states)
        filled = dict[str, Tensor]()
        for name, state_range in ranges.items():
            if state_range.kind in states.kinds:  # some engines have no moments before step 1
                filled |= state_range.stored(name, states.fill(state_range, local_segments[name]))
        return filled

    def _saved_weights(
        self, folder: Path
    ) -> Iterator[tuple[str, tuple[int, ...], Callable[[], Tensor]]]:
        """Yield the full trained weights with their shapes."""
        if self.shard.lora is not None:
            for name, adapter in read_adapter(folder / ADAPTER_FOLDER, {}).items():
                yield name, tuple(adapter.shape), adapter.detach
            return
        files = TensorFiles(folder / MODEL_FOLDER).split_stacks()
        for name, stored in (files.tensors | files.tower).items():
            yield name, tuple(stored.shape), partial(files.read, name)

    @torch.no_grad()
    def _take_main(self, states: SavedStates) -> None:
        """Copy main weights into the weights, which are as wide."""
        spans = self.shard.spans()
        for name, parameter in self.shard.model.trained_parameters():
            rows = local_rows(parameter)
            first = first_row(parameter) * prod(parameter.shape[1:])
            state_range = StateRange(kind=MAIN, shape=rows.shape, parameters=(name,), first=first)
            rows.copy_(states.fill(state_range, state_segments(state_range, spans)))

    def _check_base(self, saved: Path) -> None:
        """Raise CheckpointError unless the frozen weights, merged with the adapters, equal the saved
        model."""
        files = TensorFiles(saved).split_stacks()
        wrong = [n for n, w in self.shard.full_weights() if not _same(w, files.read(n))]
        if wrong:
            raise CheckpointError(
                f"{self.source} is not the model that the adapters of {saved.parent} were trained on "
                f"({len(wrong)} tensors differ, such as {wrong[0]}); put it back, or start a new job from "
                f"{saved}"
            )

    @property
    def share(self) -> tuple[int, int]:
        """Return (rank, number of ranks) among the update ranks."""
        return rank_of(self.ranks.everyone), size_of(self.ranks.everyone)

    @property
    def _optimizer_file(self) -> str:
        everyone = self.ranks.everyone
        num_files = size_of(everyone) if self.ranks.groups is not None else 1
        return optimizer_file(rank_of(everyone), num_files)


def read_optimizer(file: Path) -> tuple[dict[str, Tensor], dict[str, list[StateSegment]]]:
    """Return the state that `TrainedModel.save` wrote to the file, and its tensors' segments, empty if not
    stored.

    Tensors are read on use. Raises CheckpointError with the file's name.
    """
    try:
        state: dict[str, Tensor] = torch.load(file, weights_only=True, mmap=True)
        segments: Mapping[str, list[Any]] = state.pop(PLACES, {})  # type: ignore[assignment]
        return state, {name: from_rows(rows) for name, rows in segments.items()}
    except Exception as error:  # pickle, zipfile and torch raise different types
        raise CheckpointError(
            f"{file}: cannot be read ({type(error).__name__}: {error}); remove its checkpoint to go on "
            "from the one before"
        ) from error


def _same(merged: Tensor, saved: Tensor) -> bool:
    """Return whether two merges of the same tensors are equal up to rounding.

    Other machines, or a wider dtype as in ZeRO 3, may round differently.
    """
    close = 4 * max(torch.finfo(tensor.dtype).eps for tensor in (merged, saved))
    return torch.allclose(merged, saved.to(merged.device, merged.dtype), rtol=close, atol=close)
