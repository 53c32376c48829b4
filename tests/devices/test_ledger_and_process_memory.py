"""The ledger of an emulated device against what the operating system says of its process."""

import json
import subprocess
import sys

CODE = """
import json, torch
from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.devices.memory_ledger import MemoryKind

torch.set_num_threads(1)
backend = CpuBackend(name="emulated:0")
before = backend.memory()
weights = [torch.ones(32 * 2**20) for _ in range(4)] + [torch.ones(2**20) for _ in range(16)]
backend.ledger.track(MemoryKind.UPDATE_WEIGHTS, weights)
held = backend.memory()
del weights[:4]
rest = backend.memory()
print(json.dumps([[m.allocated_bytes, m.reserved_bytes - before.reserved_bytes] for m in (held, rest)]))
"""


def test_half_a_gigabyte_of_weights_is_what_the_process_grows_by_and_gives_back():
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=300
    )

    held, rest = json.loads(done.stdout)
    assert held[0] == (4 * 128 + 16 * 4) * 2**20
    assert rest[0] == 16 * 4 * 2**20
    assert abs(held[1] - held[0]) < 0.1 * held[0]
    assert abs(rest[1] - rest[0]) < 0.1 * held[0]
