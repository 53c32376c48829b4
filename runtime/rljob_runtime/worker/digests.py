"""Digests of the samples that a rank trains on, and sums of the weights that it holds then.

Called by the update state and by the device. `record.digests` makes a step's of all ranks'.
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
from rljob_runtime.weights.held_policy import HeldPolicy


def add_rows(sums: RowSums, rows: Sequence[RowMeta], samples: SampleBatch) -> None:
    """Count samples in as they were read: prompts; token ids and per-token columns, bit by bit; scalars.
    rows: theirs, in order; none on ranks that do not lead. Pictures are told by their tokens alone."""
    seen: set[int] = set()
    for place, row in enumerate(rows):
        group = int(samples.group_of_B[place])
        if group not in seen:
            seen.add(group)
            sums.add("prompts", (row.group_index,), [_bits(samples.prompts[group])])
        columns = [samples.texts[place], *samples.drawn[place : place + 1]]
        columns += [samples.fields[name][place] for name in sorted(samples.fields)]
        key = (row.group_index, row.sample)
        sums.add("batch", key, map(_bits, columns))
        values = [samples.scalars[name][place : place + 1] for name in sorted(samples.scalars)]
        sums.add("rewards", key, map(_bits, values))


def weights_sums(held: HeldPolicy, *, name: str) -> dict[str, int]:
    """Sums of the bits of what is trained, modulo 2^64, as `RankDigest` has them: one for each kind of
    replicas, so that ranks which hold the same slices of a kind say the same. name: the model's."""
    kinds: dict[str, list[tuple[str, Box]]] = {}
    sums: dict[str, list[Tensor]] = {}
    for kind, tensor, own, box in held.trained():
        kinds.setdefault(kind, []).append((tensor, box))
        sums.setdefault(kind, []).append(slice_sum(own, box))
    found = {}
    for kind, places in kinds.items():
        values = torch.stack(sums[kind]).tolist()  # the device is waited for once a kind
        total = sum(v * _salt(name, tensor) for v, (tensor, _) in zip(values, places, strict=True))
        outline = repr((name, sorted((tensor, *box) for tensor, box in places)))
        found[_hex(outline)] = total % WEIGHTS_MODULUS
    return found


def joined(models: Iterable[tuple[str, HeldPolicy]]) -> dict[str, int]:
    """The same of several models by name."""
    return {
        key: value for name, held in models for key, value in weights_sums(held, name=name).items()
    }


def _salt(*names: str) -> int:
    """An odd number that a tensor's sum is multiplied by."""
    return int(_hex("/".join(names)), 16) | 1


def _hex(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _bits(tensor: Tensor) -> memoryview:
    return bytes_in(tensor.detach().cpu().contiguous())
