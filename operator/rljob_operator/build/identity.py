"""The RLJob of the cluster that an object belongs to. Used by everything that names or owns objects."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIdentity:
    """One RLJob as the API server identifies it. generation: of the spec that was read."""

    namespace: str
    name: str
    uid: str
    generation: int
