"""Which RLJob of the cluster something is about. Used by everything that names or owns objects."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One RLJob as the API server knows it. generation: of the spec that was read."""

    namespace: str
    name: str
    uid: str
    generation: int
