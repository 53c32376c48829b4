"""Jobs with tools: what they need, and what excludes them."""

import pytest

from rljob_plan.plan import plan_samples

CALC = {"name": "calc", "type": "calculator", "maxAnswerTokens": 32}
TOOLS = {"spec.rollout.tools": [CALC]}
PATH = "spec.rollout.tools"


def test_a_job_with_a_tool_has_turns_and_a_column_more(job) -> None:
    plain, made = job(), job(TOOLS)

    assert (plain.spec.most_turns, made.spec.most_turns) == (1, 8)
    assert job(TOOLS | {"spec.rollout.maxTurns": 3}).spec.most_turns == 3
    more = plan_samples(made).flow.response_items - plan_samples(plain).flow.response_items
    assert more == 1


def test_a_job_without_tools_says_nothing_of_them(job) -> None:
    said = job().spec.rollout.model_dump(by_alias=True)

    assert "tools" not in said and "maxTurns" not in said


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        (
            {"spec.rollout.maxTurns": 3},
            "spec.rollout.maxTurns",
            "without spec.rollout.tools, spec.data.env",
        ),
        (TOOLS | {"spec.rollout.maxTurns": 1}, "spec.rollout.maxTurns", "must be at least 2"),
        ({PATH: [CALC, CALC]}, f"{PATH}[1].name", "'calc' is taken by an earlier tool; rename"),
        ({PATH: [CALC | {"name": "result"}]}, f"{PATH}[0].name", "is the tag of answers; rename"),
        ({PATH: [CALC | {"name": "Calc"}]}, f"{PATH}[0].name", "'Calc'; use small letters"),
        ({PATH: [CALC | {"type": "calulator"}]}, f"{PATH}[0].type", "did you mean 'calculator'?"),
        (
            {PATH: [CALC | {"memory": "1Gi"}]},
            f"{PATH}[0].memory",
            "only for type python, not for calculator; leave it out",
        ),
        (
            {PATH: [CALC | {"params": {"a": 1}}]},
            f"{PATH}[0].params",
            "only for tools of packages, not for calculator; leave it out",
        ),
        (
            {PATH: [CALC | {"maxAnswerTokens": 64}]},
            f"{PATH}[0].maxAnswerTokens",
            "is 64, which leaves no room for the call in a response of 64 tokens",
        ),
        (
            {PATH: [CALC | {"timeoutSeconds": 3600}]},
            f"{PATH}[0].timeoutSeconds",
            "is 3600, but a whole stage of a step has 3600 s",
        ),
        (TOOLS | {"spec.data.stop": ["\n", "<calc"]}, "spec.data.stop[1]", "in the tags of tool"),
        (TOOLS | {"spec.rollout.engine": "acme.fast"}, PATH, "the protocol of a package's engine"),
        (TOOLS | {"spec.update.engine": "acme.fast"}, PATH, "would train on the tokens of tools"),
        (
            TOOLS
            | {
                "spec.data": {"preferences": {"path": "pairs.jsonl"}},
                "spec.rewards": [],
                "spec.algorithm": {"name": "dpo"},
                "spec.batch.samplesPerPrompt": 2,
            },
            PATH,
            "have no use with spec.data.preferences",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(problems, changes, path, message) -> None:
    found = {problem.path: problem.message for problem in problems(changes)}

    assert message in found.get(path, ""), found
