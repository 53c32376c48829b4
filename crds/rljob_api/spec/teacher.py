"""The teacher of on-policy distillation, a language model that is never trained. Its fields match those of
`critic`."""

from pydantic import Field

from rljob_api.spec.engines import Dtype, UpdateParallelism
from rljob_api.spec.section import Section


class Teacher(Section):
    """A language model that grades the policy's tokens, on the devices that train, in a separate layout."""

    path: str = Field(min_length=1, max_length=1024)
    """Hugging Face directory with the policy's tokenizer; relative to the job's file."""

    parallelism: UpdateParallelism = UpdateParallelism()
    """Degrees of the teacher's layout."""

    dtype: Dtype = "float32"
    """Type of its weights and of its computation."""
