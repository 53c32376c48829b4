"""Prompts with pictures on real vLLM: log-probs as of transformers' whole model, its own tower included."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from vision_models import (
    ONE_WIDE_HEAD,
    PICTURE,
    make_pictured_batch,
    make_vision_reference,
    reference_logits,
)

from rljob_runtime.models.tower import VisionTowers, as_matrix
from rljob_runtime.models.vision.names import name_of
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, Sampling
from rljob_runtime.rollout.rollout_vllm import VllmRollout
from rljob_runtime.samples.sample import SampleBatch

pytestmark = [pytest.mark.vllm, pytest.mark.xdist_group("vllm")]

SHOWN = make_pictured_batch()
"""Prompts with no, one and three pictures, the last of 36 tokens, of which vLLM caches 32."""
SAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An engine and what it is of. towers: those that see for it."""

    engine: VllmRollout
    towers: VisionTowers
    reference: Any


@pytest.fixture(scope="module", params=sorted(ONE_WIDE_HEAD))
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Made]:
    path: Path = tmp_path_factory.mktemp("model")
    reference = make_vision_reference(request.param, **ONE_WIDE_HEAD[request.param])
    reference.save_pretrained(path)
    towers = VisionTowers(path=path, cache_tokens=64, arrives=True)
    engine = VllmRollout(
        path,
        dtype=torch.float32,
        max_sequences=16,
        max_length=64,
        seed=1,
        threads=1,
        pictures=True,
        towers=towers,
    )
    yield Made(engine=engine, towers=towers, reference=reference)
    engine.close()


def groups() -> list[PromptGroup]:
    return [
        PromptGroup(
            group=f"train/0/{number}",
            token_ids=prompt.tolist(),
            uids=[f"{number}/{sample}" for sample in range(SAMPLES)],
            seeds=[100 * number + sample for sample in range(SAMPLES)],
            pictures=[
                replace(picture, name=f"{number} {place}")
                for place, picture in enumerate(SHOWN.pictures[number])
            ],
        )
        for number, prompt in enumerate(SHOWN.prompts)
    ]


def generate(engine: VllmRollout, wanted: list[PromptGroup], **how: Any) -> dict[str, Generated]:
    sampling = Sampling(
        temperature=1.0, top_p=1.0, top_k=0, max_response_length=12, eos_ids=(), **how
    )
    return {made.uid: made for chunk in engine.generate(wanted, sampling) for made in chunk}


def expected(reference: Any, uid: str, response: list[int]) -> Tensor:
    """Of transformers' model, which is shown patches."""
    number = int(uid.split("/")[0])
    alone = SampleBatch(
        prompts=[SHOWN.prompts[number]],
        group_of_B=torch.tensor([0]),
        responses=[torch.tensor(response)],
        full_responses=[torch.tensor(response)],
        drawn=[torch.ones(len(response), dtype=torch.bool)],
        pictures=[SHOWN.pictures[number]],
        text_pictures=[[]],
    )
    with torch.no_grad():
        logits_TV = reference_logits(reference, alone, 0)[-len(response) - 1 : -1]
    return logits_TV.log_softmax(-1).gather(1, torch.tensor(response)[:, None])[:, 0]


def assert_as_transformers(reference: Any, found: dict[str, Generated]) -> None:
    for uid, made in found.items():
        given = torch.tensor(made.logprobs)
        torch.testing.assert_close(
            given, expected(reference, uid, made.token_ids), atol=2e-5, rtol=0, msg=uid
        )


def test_drawn_tokens_have_the_logprobs_of_a_model_that_is_shown_the_pixels(made: Made) -> None:
    found = generate(made.engine, groups())

    assert len(found) == SAMPLES * len(SHOWN.prompts)
    assert len({tuple(sample.token_ids) for sample in found.values()}) == len(found)
    assert_as_transformers(made.reference, found)


def test_a_groups_prefix_is_computed_once_and_each_picture_seen_once(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.engine.load_weights([*weights(made.reference).items()], version=1)  # nothing is known
    tower, engine = made.towers.of(torch.float32), made.engine._engine
    cached, seen, step = dict[str, int](), tower.pictures_seen, engine.step

    def noted() -> list[Any]:
        outputs = step()
        cached.update({output.request_id: output.num_cached_tokens for output in outputs})
        return outputs

    monkeypatch.setattr(engine, "step", noted)
    generate(made.engine, groups()[2:])

    assert sorted(cached.values()) == [0, 32, 32]
    assert tower.pictures_seen - seen == 3


def test_a_sample_goes_on_behind_what_has_begun_the_token_of_pictures_among_it(made: Made) -> None:
    whole = generate(made.engine, groups(), greedy=True)
    begun = {
        uid: [*sample.token_ids[:3], PICTURE, *sample.token_ids[4:6]]
        for uid, sample in whole.items()
    }
    wanted = [
        replace(group, uids=[group.uids[0]], seeds=[1], begun=begun[group.uids[0]])
        for group in groups()
    ]

    found = generate(made.engine, wanted)

    for uid, sample in found.items():
        both = expected(made.reference, uid, begun[uid] + sample.token_ids)
        given = torch.tensor(sample.logprobs)
        torch.testing.assert_close(given, both[len(begun[uid]) :], atol=2e-5, rtol=0, msg=uid)


def weights(reference: Any) -> dict[str, Tensor]:
    """By the names and shapes that devices exchange, tied ones once."""
    named = ((name_of(name), weight) for name, weight in reference.named_parameters())
    return {name: as_matrix(weight) for name, weight in named}


def test_new_weights_of_decoder_and_tower_are_those_that_are_generated_with(made: Made) -> None:
    generate(made.engine, groups())  # features and prefixes of before are known
    family = type(made.reference)
    torch.manual_seed(3)
    other = family(made.reference.config).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_(0.0, 0.2)

    made.engine.load_weights(weights(other).items(), version=2)
    found = generate(made.engine, groups())
    made.engine.load_weights(weights(made.reference).items(), version=3)
    again = generate(made.engine, groups())

    assert {sample.version for sample in found.values()} == {2}
    assert_as_transformers(other, found)
    assert_as_transformers(made.reference, again)
