"""A model that is trained, with its engine: the policy or the critic, as checkpoints hold it.

Called by `build` on every update rank at the same time.
"""

import collections
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rljob_runtime.algorithms.kl_control import KlControl
from rljob_runtime.devices.collectives import rank_of, size_of
from rljob_runtime.errors import CheckpointError
from rljob_runtime.models.adapter_files import ADAPTER_FOLDER, save_adapter
from rljob_runtime.models.tensor_files import TensorFiles
from rljob_runtime.models.weights import save_hf
from rljob_runtime.parallel.decoder.parameters import ValuesAt, as_they_are
from rljob_runtime.record.checkpoint import MODEL_FOLDER, optimizer_file
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_table import AnyUpdateEngine
from rljob_runtime.weights.held_policy import HeldPolicy

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
            torch.save(state, folder / self._optimizer_file)
        models = [folder / MODEL_FOLDER, folder / ADAPTER_FOLDER] if first else []
        files = [file for model in models for file in model.rglob("*") if file.is_file()]
        optimizer = folder / self._optimizer_file
        return [*files, optimizer] if first or self.ranks.groups is not None else files

    def load(self, folder: Path) -> None:
        """Read what `save` wrote. Raises CheckpointError where adapters are of another model."""
        if self.held.lora is None:
            self.held.load(folder / MODEL_FOLDER)
        else:
            self.held.load(folder / ADAPTER_FOLDER)
            self._check_base(folder / MODEL_FOLDER)
        file = folder / self._optimizer_file
        state = read_optimizer(file)
        coefficient = state.pop(KL_COEFFICIENT, None)
        self.engine.load_state_dict(state)
        if self.control is not None and coefficient is not None:
            self.control.coefficient = float(coefficient)

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


def read_optimizer(file: Path) -> dict[str, Tensor]:
    """What `TrainedModel.save` wrote there. Raises CheckpointError with the file's name."""
    try:
        state: dict[str, Tensor] = torch.load(file, weights_only=True)
    except Exception as error:  # pickle, zip files and torch have errors of their own
        raise CheckpointError(
            f"{file}: cannot be read ({type(error).__name__}: {error}); remove its checkpoint to go on "
            "from the one before"
        ) from error
    return state


def _same(merged: Tensor, saved: Tensor) -> bool:
    """Whether two merges of the same tensors may differ so, by rounding on different machines."""
    close = 4 * torch.finfo(merged.dtype).eps
    return torch.allclose(merged, saved.to(merged.device, merged.dtype), rtol=close, atol=close)
