"""Seeds of everything random: a pure function of the run's seed and a path of names and numbers.

No two places share a seed, whatever the split into ranks and batches.
"""

import hashlib


def derive_seed(run_seed: int, *parts: str | int) -> int:
    """A 63-bit seed for the place that `parts` names, e.g. (run, "sample", step, prompt, sample)."""
    text = "/".join([str(run_seed), *(f"{type(part).__name__}:{part}" for part in parts)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
