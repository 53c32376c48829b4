"""An agent: a user's program that plays a sample through an OpenAI-compatible endpoint. Member of
`engines.Rollout`."""

from pydantic import Field

from rljob_api.spec.section import Section


class Agent(Section):
    """A function that plays one sample: it gets the prompt's task, calls the policy with any client of
    OpenAI's chat completions, and returns a reward or nothing (docs/agents.md)."""

    path: str = Field(min_length=1, max_length=1024)
    """The Python file; relative to the job's file."""

    function: str = Field(default="play", min_length=1, max_length=128)
    """Name of the function in the file, `def` or `async def`: `play(task)`. If it has parameters `base_url`
    and `api_key`, it gets them too; they are also in OPENAI_BASE_URL and OPENAI_API_KEY."""

    timeout_seconds: float = Field(default=600.0, gt=0, le=86_400)
    """Deadline of one session, including the policy's answers. Its process is then killed, and the sample
    ends with the answers so far."""

    concurrency: int = Field(default=8, ge=1, le=1024)
    """Sessions at the same time on each device that generates, each in a separate process; others wait."""
