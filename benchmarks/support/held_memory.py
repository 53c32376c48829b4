"""Peak bytes of all tensors that are alive, from the operators that torch dispatches."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class HeldMemory(TorchDispatchMode):
    """`with HeldMemory(there) as held: ...; held.peak`: each storage once, whatever shares it.

    there: tensors that were made before. What an operator allocates within itself is not seen.
    """

    def __init__(self, there: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.peak = 0
        self._see(there)

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = operator(*args, **(kwargs or {}))
        if self._see(tensor for tensor in tree_iter(made) if isinstance(tensor, Tensor)):
            self.peak = max(self.peak, self.bytes_now())
        return made

    def bytes_now(self) -> int:
        """Of the storages that are alive."""
        total, dead = 0, []
        for key, reference in self._storages.items():
            if (storage := reference()) is None:
                dead.append(key)
            else:
                total += storage.nbytes()
        for key in dead:
            del self._storages[key]
        return total

    def _see(self, tensors: Iterable[Tensor]) -> bool:
        """Whether one has a storage that was not there: only then can more be held than before."""
        new = False
        for tensor in tensors:
            storage = tensor.untyped_storage()
            known = self._storages.get(id(storage))
            if known is None or known() is not storage:
                self._storages[id(storage)] = weakref.ref(storage)
                new = True
        return new
