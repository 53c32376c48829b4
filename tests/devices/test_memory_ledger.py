"""The memory ledger: what counts, for how long, and what is refused."""

import gc

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.errors import DeviceMemoryError

WEIGHTS, CACHE = MemoryKind.UPDATE_WEIGHTS, MemoryKind.KV_CACHE
KILO = 256  # floats in 1024 bytes


def test_bytes_go_when_the_tensor_dies():
    ledger = MemoryLedger(device="emulated:0")
    weights, cache = torch.zeros(KILO), torch.zeros(2 * KILO)
    ledger.track(WEIGHTS, [weights])
    ledger.track(CACHE, [cache])

    assert (ledger.kind_bytes(WEIGHTS), ledger.kind_bytes(CACHE)) == (1024, 2048)
    del cache
    assert (ledger.kind_bytes(WEIGHTS), ledger.kind_bytes(CACHE)) == (1024, 0)
    del weights
    assert ledger.total_bytes() == 0


def test_a_view_keeps_the_whole_storage():
    ledger = MemoryLedger(device="emulated:0")
    tensor = torch.zeros(KILO)
    ledger.track(WEIGHTS, [tensor])

    view = tensor[:1]
    del tensor
    gc.collect()

    assert ledger.total_bytes() == 1024
    del view
    assert ledger.total_bytes() == 0


def test_a_graph_keeps_what_it_saved():
    ledger = MemoryLedger(device="emulated:0")
    factor = torch.ones(KILO)
    ledger.track(MemoryKind.ACTIVATIONS, [factor])
    result = (torch.ones(KILO, requires_grad=True) * factor).sum()

    del factor
    assert ledger.total_bytes() == 1024
    result.backward()
    assert ledger.total_bytes() == 0


def test_shared_storage_counts_once_under_its_first_kind():
    ledger = MemoryLedger(device="emulated:0")
    tensor = torch.zeros(KILO)

    ledger.track(WEIGHTS, [tensor, tensor.view(2, -1), tensor[3:]])
    ledger.track(MemoryKind.ROLLOUT_WEIGHTS, [tensor])

    assert ledger.report().kind_bytes == {"update weights": 1024}
    assert ledger.kind_of(tensor[3:]) == WEIGHTS
    assert ledger.kind_of(torch.zeros(1)) is None


def test_a_storage_resized_to_nothing_is_released_and_counts_again_when_it_returns():
    ledger = MemoryLedger(device="emulated:0")
    tensor = torch.zeros(KILO)
    ledger.track(WEIGHTS, [tensor])

    tensor.untyped_storage().resize_(0)
    assert ledger.total_bytes() == 0
    tensor.untyped_storage().resize_(1024)
    assert ledger.total_bytes() == 1024


def test_memory_over_the_limit_is_refused_by_name_and_not_counted():
    ledger = MemoryLedger(device="emulated:3", limit_bytes=4096)
    weights, cache = torch.zeros(2 * KILO), torch.zeros(3 * KILO)
    ledger.track(WEIGHTS, [weights])

    with pytest.raises(DeviceMemoryError) as caught:
        ledger.track(CACHE, [cache])

    message, _, held = str(caught.value).partition("\nheld:\n")
    assert message.startswith(
        "device emulated:3: kv cache need 3072 bytes, but 2048 of 4096 bytes are in use; "
        "lower spec.batch.microBatchSize"
    )
    assert held.split() == ["update", "weights", "2,048", "bytes"]
    assert ledger.report().total_peak_bytes == 2048
    del weights
    ledger.track(CACHE, [cache])
    assert ledger.total_bytes() == 3072


def test_the_table_of_what_is_held_begins_with_the_largest():
    ledger = MemoryLedger(device="emulated:0", limit_bytes=4096)
    cache, weights = torch.zeros(KILO), torch.zeros(2 * KILO)
    ledger.track(CACHE, [cache])
    ledger.track(WEIGHTS, [weights])

    message = str(ledger.refusal("out of memory", untracked_bytes=1500))

    assert [line.rsplit(maxsplit=2)[0] for line in message.splitlines()[2:]] == [
        "  update weights",
        "  not tracked, such as activations",
        "  kv cache",
    ]


def test_exactly_the_limit_fits():
    ledger = MemoryLedger(device="emulated:0", limit_bytes=1024)
    ledger.require(WEIGHTS, 1024)
    tensor = torch.zeros(KILO)

    ledger.track(WEIGHTS, [tensor])
    ledger.track(WEIGHTS, [tensor])

    with pytest.raises(DeviceMemoryError):
        ledger.require(CACHE, 1)


def test_peaks_are_kept_by_kind_and_in_total():
    ledger = MemoryLedger(device="emulated:0")
    weights = torch.zeros(2 * KILO)
    ledger.track(WEIGHTS, [weights])
    del weights
    cache = torch.zeros(KILO)
    ledger.track(CACHE, [cache])

    report = ledger.report()

    assert report.kind_peak_bytes == {"update weights": 2048, "kv cache": 1024}
    assert (report.total_bytes, report.total_peak_bytes) == (1024, 2048)
    ledger.reset_peaks()
    assert ledger.report().kind_peak_bytes == {"kv cache": 1024}


class LedgerMachine(RuleBasedStateMachine):
    """Tensors come, are shared and go in any order; the model is a plain list of sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = MemoryLedger(device="emulated:0", limit_bytes=8 * 1024)
        self.held: list[tuple[MemoryKind, torch.Tensor]] = []

    @rule(size=st.integers(0, 4), kind=st.sampled_from(list(MemoryKind)))
    def allocate(self, size, kind):
        tensor = torch.zeros(size * KILO)
        fits = self.total() + tensor.nbytes <= 8 * 1024
        if fits:
            self.ledger.track(kind, [tensor])
            self.held.append((kind, tensor))
        else:
            with pytest.raises(DeviceMemoryError):
                self.ledger.track(kind, [tensor])

    @rule(place=st.integers(0, 20), kind=st.sampled_from(list(MemoryKind)))
    def share(self, place, kind):
        if self.held:
            self.ledger.track(kind, [self.held[place % len(self.held)][1][:1]])

    @rule(place=st.integers(0, 20))
    def free(self, place):
        if self.held:
            del self.held[place % len(self.held)]

    def total(self) -> int:
        return sum(tensor.nbytes for _, tensor in self.held)

    @invariant()
    def the_ledger_knows_what_is_held(self):
        assert self.ledger.total_bytes() == self.total()
        for kind in MemoryKind:
            expected = sum(tensor.nbytes for held, tensor in self.held if held == kind)
            assert self.ledger.kind_bytes(kind) == expected


TestLedger = LedgerMachine.TestCase
