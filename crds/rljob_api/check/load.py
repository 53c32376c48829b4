"""Read a file into a checked RLJob, or report all of its problems together.

Called by the CLI, by the runtime (a resolved spec) and by the operator (`read_job` on a manifest). It reads
nothing but the file; rules that need the model's config.json are in `shape_rules`.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from rljob_api.check.agent_rules import AGENT_RULES
from rljob_api.check.algorithm_rules import ALGORITHM_RULES
from rljob_api.check.cluster_rules import CLUSTER_RULES
from rljob_api.check.critic_rules import CRITIC_RULES
from rljob_api.check.elastic_rules import ELASTIC_RULES
from rljob_api.check.environment_rules import ENVIRONMENT_RULES
from rljob_api.check.evaluation_rules import EVALUATION_RULES
from rljob_api.check.flow_rules import FLOW_RULES
from rljob_api.check.guard_rules import GUARD_RULES
from rljob_api.check.layout_rules import LAYOUT_RULES
from rljob_api.check.lora_rules import LORA_RULES
from rljob_api.check.metadata_rules import metadata_problems
from rljob_api.check.pod_rules import POD_RULES
from rljob_api.check.profile_rules import PROFILE_RULES
from rljob_api.check.rules import RULES
from rljob_api.check.size import size_problem
from rljob_api.check.tool_rules import TOOL_RULES
from rljob_api.check.tracking_rules import TRACKING_RULES
from rljob_api.check.turn_rules import TURN_RULES
from rljob_api.check.vision_rules import VISION_RULES
from rljob_api.check.yaml_text import parse_yaml
from rljob_api.spec.messages import problem_of, show
from rljob_api.spec.problems import InvalidJob, Problem
from rljob_api.spec.rljob import RLJob, RLJobSpec

MAX_BYTES = 4 << 20
MAX_PROBLEMS = 50
"""Problems that are shown of one section: describing them takes longer than finding them."""


def load_job(path: Path) -> RLJob:
    """Return the job in a YAML file. Raises InvalidJob with every problem that can be detected."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidJob([Problem(str(path), f"cannot be read: {reason}")]) from error
    except UnicodeDecodeError as error:
        message = f"is no UTF-8 text (byte {error.start + 1}); save it as UTF-8"
        raise InvalidJob([Problem(str(path), message)]) from error
    if len(content) > MAX_BYTES:
        message = f"is larger than {MAX_BYTES >> 20} MiB, which no Kubernetes object may be"
        raise InvalidJob([Problem(str(path), message)])
    return read_job(parse_yaml(text, name=str(path)), name=str(path))


def read_job(manifest: Any, *, name: str = "RLJob") -> RLJob:
    """Return the job in a parsed manifest. Raises InvalidJob; name: path of the document in messages."""
    if not isinstance(manifest, dict):
        problem = "is empty" if manifest is None else f"is {show(manifest)}"
        message = f"{problem}; write an RLJob: apiVersion, kind, metadata, spec"
        raise InvalidJob([Problem(name, message)])
    if (too_large := size_problem(manifest)) is not None:
        raise InvalidJob([too_large])
    try:
        job = RLJob.model_validate(manifest, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)
        shown = _some_of_each_section(details)
        problems = [problem_of(detail, root=RLJob, prefix="") for detail in shown]
        if len(details) > len(shown):
            more = f"has {len(details)} faults, {len(shown)} of which are shown"
            problems.append(Problem(name, more))
        broken = {str(d["loc"][1]) for d in details if d["loc"][0] == "spec" and len(d["loc"]) > 1}
        if isinstance(manifest.get("spec"), dict):
            problems += rule_problems(_parsed_sections(manifest["spec"], broken))
        raise InvalidJob(problems) from error
    problems = [*rule_problems(job.spec), *metadata_problems(job)]
    if problems:
        raise InvalidJob(problems, job)
    return job


def _some_of_each_section(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Return the error details in their order, without the excess of a section that has very many."""
    counts, shown = Counter[object](), []
    for detail in details:
        section = detail["loc"][:2] if len(detail["loc"]) > 2 else ()
        counts[section] += 1
        if counts[section] <= MAX_PROBLEMS:
            shown.append(detail)
    return shown


def rule_problems(spec: RLJobSpec) -> list[Problem]:
    """Return the problems of the cross-field rules. A rule stops if it reads a broken section."""
    problems: list[Problem] = []
    training = (*RULES, *ALGORITHM_RULES, *LAYOUT_RULES, *LORA_RULES, *CRITIC_RULES)
    for rule in (
        *training,
        *EVALUATION_RULES,
        *GUARD_RULES,
        *ELASTIC_RULES,
        *PROFILE_RULES,
        *TRACKING_RULES,
        *FLOW_RULES,
        *TOOL_RULES,
        *TURN_RULES,
        *ENVIRONMENT_RULES,
        *AGENT_RULES,
        *VISION_RULES,
        *CLUSTER_RULES,
        *POD_RULES,
    ):
        problems_of_rule = iter(rule(spec))
        while (problem := _next(problems_of_rule)) is not None:
            problems.append(problem)
    return problems


class _BrokenSection(AttributeError):
    """A rule read a section that did not parse."""


class _Sections:
    """Substitute for RLJobSpec that has only the sections that parsed."""

    def __init__(self, sections: dict[str, Any]) -> None:
        self._sections = sections

    def __getattr__(self, name: str) -> Any:
        try:
            return self._sections[name]
        except KeyError:
            raise _BrokenSection(name) from None


def _next(problems: Iterator[Problem]) -> Problem | None:
    try:
        return next(problems, None)
    except _BrokenSection:
        return None


def _parsed_sections(spec: dict[str, Any], broken: set[str]) -> RLJobSpec:
    sections: dict[str, Any] = {}
    for name, field in RLJobSpec.model_fields.items():
        alias = field.alias or name
        if alias in broken:
            continue
        if alias in spec:
            adapter = TypeAdapter(field.rebuild_annotation())
            sections[name] = adapter.validate_python(spec[alias], by_alias=True, by_name=False)
        elif not field.is_required():
            sections[name] = field.get_default(call_default_factory=True)
    return cast(RLJobSpec, _Sections(sections))
