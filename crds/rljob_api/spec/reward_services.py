"""Rewards that other services compute: a reward model on the job's devices, an HTTP service, a judge.

Members of `workload.Reward`, each for the type of its name.
"""

from typing import Annotated

from pydantic import Field

from rljob_api.spec.engines import Dtype, UpdateParallelism
from rljob_api.spec.section import Section

Url = Annotated[
    str, Field(min_length=8, max_length=2048, pattern=r"^https?://[^\s/?#@]+([/?#][^\s]*)?$")
]
"""A URL that cannot contain a password."""
Variable = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class RewardModel(Section):
    """A classifier of sequences with one label: its score of prompt and response is the reward."""

    path: str = Field(min_length=1, max_length=1024)
    """Hugging Face directory with the policy's tokenizer; relative to the job's file."""

    parallelism: UpdateParallelism = UpdateParallelism()
    """Degrees of the reward model's layout on the devices that train."""

    dtype: Dtype = "float32"
    """Type of its weights and of its computation."""


class HttpReward(Section):
    """A service that scores: it gets `{"prompt", "response", "answer"}` by POST, with tools also
    `transcript`, and returns `{"score": number}`."""

    url: Url
    """Where requests go."""

    retries: int = Field(default=2, ge=0, le=10)
    """Further attempts after a failed connection, an answer that is too late or is not JSON, or status 408,
    429 or 5xx; all of them share timeoutSeconds."""

    concurrency: int = Field(default=4, ge=1, le=256)
    """Requests at the same time."""

    token_variable: Variable | None = None
    """Environment variable with the bearer token; on a cluster, of worker pods (podTemplates.worker.env)."""


class JudgeReward(HttpReward):
    """A language model that grades, behind an OpenAI-compatible endpoint (`/chat/completions`)."""

    url: Url
    """Base address of the endpoint, e.g. `http://judge:8000/v1`."""

    model: str = Field(min_length=1, max_length=256)
    """Name of the model there."""

    template: str = Field(
        default="Question:\n{prompt}\n\nExpected answer:\n{answer}\n\nAnswer to grade:\n{response}\n\n"
        "How good is the answer, from 0 to 10? Write the grade alone, as `Grade: <number>`.",
        min_length=1,
        max_length=16_384,
    )
    """Text that is sent to the judge, with {prompt}, {response}, {answer} and, for tools, {transcript} filled
    in."""

    pattern: str = Field(default=r"Grade:\s*([0-9]+(?:\.[0-9]+)?)", min_length=1, max_length=1024)
    """Regular expression whose last match in the judge's answer has the grade in its first group."""

    highest_grade: float = Field(default=10.0, gt=0, le=1_000_000)
    """The grade that gives 1; higher grades also give 1."""

    max_tokens: int = Field(default=512, ge=1, le=100_000)
    """Longest answer of the judge."""
