"""Vision-language models against transformers, sample by sample: positions, log-probs, gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from vision_models import (
    PICTURE,
    VISION_FAMILIES,
    make_picture,
    make_pictured_batch,
    make_vision_reference,
    reference_inputs,
    reference_logits,
)

from rljob_runtime.errors import ConfigError
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.packing import pack
from rljob_runtime.models.tower import VisionTower
from rljob_runtime.models.vision.names import module_name
from rljob_runtime.models.vision.rope_index import batch_positions, token_positions
from rljob_runtime.samples.sample import SampleBatch

TEMPERATURE = 0.7


@pytest.fixture(params=sorted(VISION_FAMILIES))
def reference(request: pytest.FixtureRequest) -> Any:
    """A random model of each family."""
    return make_vision_reference(request.param)


@pytest.fixture
def path(reference: Any, tmp_path: Path) -> Path:
    """Its directory, as transformers saves it."""
    reference.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load(path: Path, *, trained: bool = False) -> Decoder:
    decoder = load_decoder(path, dtype=torch.float32)
    decoder.show(VisionTower.from_path(path, dtype=torch.float32, trained=trained))
    return decoder


def reference_logprobs(reference: Any, batch: SampleBatch) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of what was drawn."""
    logprobs, entropies = [], []
    for sample, text in enumerate(batch.texts):
        start = len(batch.prompts[int(batch.group_of_B[sample])]) - 1
        logits = reference_logits(reference, batch, sample)[start : start + len(text)]
        predicted = (logits / TEMPERATURE).log_softmax(-1)[batch.drawn[sample]]
        logprobs.append(predicted.gather(1, batch.responses[sample][:, None])[:, 0])
        entropies.append(-(predicted.exp() * predicted).sum(-1).detach())
    return torch.cat(logprobs), torch.cat(entropies)


def test_positions_are_those_of_get_rope_index(reference: Any, path: Path) -> None:
    batch = make_pictured_batch()
    vision = load_decoder(path, dtype=torch.float32).architecture.vision
    assert vision is not None

    prompts, texts = batch_positions(batch, vision)

    for sample, group in enumerate(batch.group_of_B.tolist()):
        ours = torch.cat([prompts[group].positions_N3, texts[sample].positions_N3])
        inputs = reference_inputs(batch, sample)
        expected, _ = reference.model.get_rope_index(
            inputs["input_ids"],
            inputs["mm_token_type_ids"],
            image_grid_thw=inputs.get("image_grid_thw"),
        )
        assert torch.equal(ours, expected[:, 0].T), f"sample {sample}"


def test_logprobs_and_entropy_equal_transformers(reference: Any, path: Path) -> None:
    batch = make_pictured_batch()

    ours = load(path).logprobs(batch, temperature=TEMPERATURE, with_entropy=True)

    logprobs, entropies = reference_logprobs(reference, batch)
    torch.testing.assert_close(ours.logprobs_T, logprobs, atol=1e-5, rtol=0)
    assert ours.entropy_T is not None
    torch.testing.assert_close(ours.entropy_T, entropies, atol=1e-5, rtol=0)


def test_samples_alone_and_together_have_the_same_logprobs(path: Path) -> None:
    batch, decoder = make_pictured_batch(), load(path)

    together = decoder.logprobs(batch, temperature=TEMPERATURE).logprobs_T
    parts = [batch.select([sample]) for sample in range(batch.num_samples)]
    alone = [decoder.logprobs(part, temperature=TEMPERATURE).logprobs_T for part in parts]
    joined = decoder.logprobs(SampleBatch.join(parts), temperature=TEMPERATURE).logprobs_T

    torch.testing.assert_close(torch.cat(alone), together, atol=1e-5, rtol=0)
    torch.testing.assert_close(joined, together, atol=1e-5, rtol=0)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("trained", [False, True])
def test_gradients_equal_transformers(
    reference: Any, path: Path, trained: bool, recompute: bool
) -> None:
    batch, decoder = make_pictured_batch(), load(path, trained=trained)
    if recompute:
        decoder.recompute_layers()
    weights = torch.linspace(-1, 1, batch.num_tokens)

    (decoder.logprobs(batch, temperature=TEMPERATURE).logprobs_T * weights).sum().backward()
    (reference_logprobs(reference, batch)[0] * weights).sum().backward()

    config = reference.config.to_dict()
    gradients = {module_name(n, config): p.grad for n, p in decoder.trained_parameters()}
    expected = {
        name: weight.grad
        for name, weight in reference.named_parameters()
        if trained or "visual" not in name
    }
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        if expected[name] is None:  # the tower's learned positions, where no picture reads them
            assert gradient is None
            continue
        scale = expected[name].abs().max().clamp(min=1.0)
        torch.testing.assert_close(
            gradient / scale, expected[name] / scale, atol=1e-5, rtol=0, msg=name
        )


def test_rows_of_text_are_computed_as_without_a_tower(path: Path) -> None:
    batch = make_pictured_batch().select([0])

    alone = load_decoder(path, dtype=torch.float32).logprobs(batch, temperature=1.0).logprobs_T

    assert torch.equal(alone, load(path).logprobs(batch, temperature=1.0).logprobs_T)


def test_a_frozen_tower_belongs_to_no_parameters(path: Path) -> None:
    frozen, trained = load(path), load(path, trained=True)

    names = [name for name, _ in frozen.named_hf_parameters()]
    assert not any(name.startswith("visual.") for name in names)
    assert len([n for n, _ in trained.trained_parameters() if n.startswith("visual.")]) > 30


def test_tokens_that_stand_for_other_pictures_are_refused(path: Path) -> None:
    decoder = load(path)
    vision = decoder.architecture.vision
    assert vision is not None
    picture = make_picture(4, 4, torch.Generator().manual_seed(0))
    apart = torch.tensor([True, True, False, True, True])

    with pytest.raises(
        ConfigError, match=r"5 tokens 71 .* do not stand for 1 pictures of 4 tokens"
    ):
        token_positions(torch.ones(5, dtype=torch.bool), [picture], vision)
    with pytest.raises(ConfigError, match=r"4 tokens 71 .* needs a run of so many"):
        token_positions(apart, [picture], vision)


def test_packed_tokens_that_stand_for_pictures_are_theirs_in_order(path: Path) -> None:
    batch = make_pictured_batch()
    vision = load_decoder(path, dtype=torch.float32).architecture.vision

    packing = pack(batch, device=torch.device("cpu"), vision=vision)

    assert packing.positions_U.shape == (packing.num_tokens, 3)
    assert packing.pictured_P is not None
    assert (packing.tokens_U[packing.pictured_P] == PICTURE).all()
    assert len(packing.pictured_P) == sum(p.num_tokens(2) for p in batch.all_pictures)
