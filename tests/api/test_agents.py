"""Jobs whose samples an agent plays, and what they do not go with."""

import pytest

PATH = "spec.rollout.agent"
AGENT = {PATH: {"path": "play.py"}}


def test_a_job_with_an_agent_has_turns_and_outcomes(job) -> None:
    plain, made = job(), job(AGENT)

    assert (plain.spec.most_turns, made.spec.most_turns) == (1, 8)
    assert (plain.spec.has_outcomes, made.spec.has_outcomes) == (False, True)
    assert made.spec.rollout.agent.function == "play"
    assert "agent" not in plain.spec.rollout.model_dump(by_alias=True)


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        (
            {"spec.rollout.tools": [{"name": "calc", "type": "calculator", "maxAnswerTokens": 32}]},
            PATH,
            "and spec.rollout.tools exclude each other",
        ),
        ({"spec.rollout.engine": "acme.fast"}, PATH, "needs spec.rollout.engine torch or vllm"),
        ({"spec.update.engine": "acme.fast"}, PATH, "would train on the tokens of the agent"),
        (
            {"spec.rollout.parallelism.tensor": 2},
            "spec.rollout.parallelism.tensor",
            "go to one device, which does not tell the others; use 1",
        ),
        (
            {"spec.flow.partialRollout": {"budgetTokens": 8}},
            "spec.flow.partialRollout",
            "cannot wait for the next step",
        ),
        ({"spec.data.chat": True}, "spec.data.chat", "are always in the chat template"),
        (
            {PATH: {"path": "play.py", "timeoutSeconds": 3600}},
            f"{PATH}.timeoutSeconds",
            "is 3600, but a whole stage of a step has 3600 s",
        ),
    ],
)
def test_what_an_agent_does_not_go_with_is_refused(
    problems, changes: dict[str, object], path: str, message: str
) -> None:
    found = {problem.path: problem.message for problem in problems(AGENT | changes)}

    assert message in found[path]


def test_a_reward_of_an_agent_needs_one_and_is_one(problems) -> None:
    ours = {"name": "won", "type": "agent"}
    without = problems({"spec.rewards": [ours]})
    twice = problems(AGENT | {"spec.rewards": [ours, ours | {"name": "again"}]})

    assert [problem.path for problem in without] == ["spec.rewards[0].type"]
    assert [problem.path for problem in twice] == ["spec.rewards[1].type"]
