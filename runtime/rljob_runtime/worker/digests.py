"""Digests of the samples that a rank trains on, and checksums of its weights.

The update state and the device call this. `record.digests` combines those of all ranks for a step.
"""

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rljob_plan.resharding.boxes import Box
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.models.slice_sums import slice_sum
from rljob_runtime.models.tensor_writer import bytes_in
from rljob_runtime.record.digests import WEIGHTS_MODULUS, RowSums
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.weights.held_policy import LocalPolicy


def add_rows(sums: RowSums, rows: Sequence[RowMeta], samples: SampleBatch) -> None:
    """Add samples as they were read: prompts; token ids and per-token columns, bit by bit; scalars.

    rows: of the samples, in order; empty on ranks that do not lead. Pictures are represented by their tokens
    alone.
    """
    counted_groups: set[int] = set()
    for index, row in enumerate(rows):
        group = int(samples.group_of_B[index])
        if group not in counted_groups:
            counted_groups.add(group)
            sums.add("prompts", (row.group_index,), [_bits(samples.prompts[group])])
        columns = [samples.texts[index], *samples.drawn[index : index + 1]]
        columns += [samples.fields[name][index] for name in sorted(samples.fields)]
        key = (row.group_index, row.sample)
        sums.add("batch", key, map(_bits, columns))
        values = [samples.scalars[name][index : index + 1] for name in sorted(samples.scalars)]
        sums.add("rewards", key, map(_bits, values))


def weights_sums(policy: LocalPolicy, *, name: str) -> dict[str, int]:
    """Return checksums of the trained weights' bits, modulo 2^64, in the format of `RankDigest`.

    There is one per kind of replica, so that ranks with the same slices of a kind have equal checksums. name:
    the model's.
    """
    kinds: dict[str, list[tuple[str, Box]]] = {}
    sums: dict[str, list[Tensor]] = {}
    for kind, tensor, values, box in policy.trained_slices():
        kinds.setdefault(kind, []).append((tensor, box))
        sums.setdefault(kind, []).append(slice_sum(values, box))
    digest = {}
    for kind, slices in kinds.items():
        slice_sums = torch.stack(sums[kind]).tolist()  # waits for the device once per kind
        total = sum(
            v * _salt(name, tensor) for v, (tensor, _) in zip(slice_sums, slices, strict=True)
        )
        outline = repr((name, sorted((tensor, *box) for tensor, box in slices)))
        digest[_hex(outline)] = total % WEIGHTS_MODULUS
    return digest


def sums_of_models(models: Iterable[tuple[str, LocalPolicy]]) -> dict[str, int]:
    """Return the `weights_sums` of several models by name."""
    return {
        key: value
        for name, policy in models
        for key, value in weights_sums(policy, name=name).items()
    }


def _salt(*names: str) -> int:
    """Return an odd number that a tensor's checksum is multiplied by."""
    return int(_hex("/".join(names)), 16) | 1


def _hex(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _bits(tensor: Tensor) -> memoryview:
    return bytes_in(tensor.detach().cpu().contiguous())
