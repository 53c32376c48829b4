"""Seeds of all random draws: a pure function of the run's seed and a path of names and numbers.

No two draws share a seed, whatever the split into ranks and batches.
"""

import hashlib


def derive_seed(run_seed: int, *path: str | int) -> int:
    """Return a 63-bit seed for the draw that `path` names, e.g. (run, "sample", step, prompt, sample)."""
    text = "/".join([str(run_seed), *(f"{type(key).__name__}:{key}" for key in path)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
