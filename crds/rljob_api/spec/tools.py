"""Tools that a policy calls while it generates. Members of `engines.Rollout`."""

from typing import Annotated

from pydantic import Field

from rljob_api.spec.extensions import NameOf, Params
from rljob_api.spec.section import Quantity, Section

DEFAULT_TURNS = 8
PYTHON_MEMORY = "512Mi"
RESULT = "result"
"""Name of the tag around a tool's answer, which no tool may have."""


class Tool(Section):
    """A tool: the policy writes `<name>input</name>`, and the answer follows as `<result>answer</result>`."""

    name: str = Field(min_length=1, max_length=32, pattern=r"^[a-z][a-z0-9_]*$")
    """The tag that calls it, and its name in metrics; unique within the job."""

    type: Annotated[str, NameOf(("calculator", "python"))]
    """`calculator`: arithmetic; `python`: runs the input as a Python program in a restricted process and
    answers what it prints; a name with a dot: a tool of an installed package."""

    params: Params = None
    """Parameters of a package's tool."""

    timeout_seconds: float = Field(default=5.0, gt=0, le=3600)
    """Deadline of one call; its process is then killed and the answer reports it. Only this sample waits
    meanwhile."""

    max_answer_tokens: int = Field(default=256, ge=32, le=1_000_000)
    """Most tokens of an answer with its tags; a longer one is cut. They count in maxResponseLength."""

    concurrency: int = Field(default=2, ge=1, le=256)
    """Calls at the same time on each device that generates, each in a separate process; others wait."""

    memory: Quantity | None = None
    """For `python`: most memory of a call's process. Default: 512Mi."""

    @property
    def opening(self) -> str:
        """Return the tag that begins a call."""
        return f"<{self.name}>"

    @property
    def closing(self) -> str:
        """Return the tag that ends a call."""
        return f"</{self.name}>"
