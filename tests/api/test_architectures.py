"""Parameter counts against the transformers library, and how models may be cut."""

import json
from pathlib import Path

import pytest
import torch
from model_configs import CONFIGS, MOE, SMALL
from transformers import AutoConfig, AutoModelForCausalLM

from rljob_api.check.shape_rules import shape_problems
from rljob_api.model.architecture import BUILTINS, find_shape, read_shape
from rljob_api.spec.problems import InvalidJob
from rljob_api.spec.workload import Model

VISION = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "patch_size": 4,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
TOWER = {"model_type": "qwen3_vl", "vision_config": VISION}
PAPER = Path(__file__).parents[2] / "examples" / "paper"

PUBLISHED = [json.loads(file.read_text()) for file in sorted(PAPER.glob("models/*/config.json"))]


def count_in_transformers(config):
    options = {key: value for key, value in config.items() if key != "architectures"}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**options))
    gate_biases = [b for name, b in model.named_buffers() if name.endswith("score_correction_bias")]
    return sum(tensor.numel() for tensor in (*model.parameters(), *gate_biases))


@pytest.mark.parametrize("changes", CONFIGS, ids=lambda config: config["model_type"])
def test_small_models_have_as_many_parameters_as_in_transformers(changes):
    config = SMALL | changes

    assert read_shape(config, name="config.json").total().total == count_in_transformers(config)


@pytest.mark.parametrize("config", PUBLISHED, ids=lambda config: config["model_type"])
def test_published_models_have_as_many_parameters_as_in_transformers(config):
    assert read_shape(config, name="config.json").total().total == count_in_transformers(config)


def test_smollm2_has_134_515_008_parameters():
    assert BUILTINS["smollm2-135m-instruct"].total().total == 134_515_008


def test_published_models_with_a_tower_have_the_parameters_that_they_are_published_with():
    tower = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "patch_size": 14}
    text = {
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
    }
    vision = {"vision_config": tower | {"out_hidden_size": 3584}}
    large = read_shape({"model_type": "qwen2_5_vl", **text, **vision}, name="7B")

    tower = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "patch_size": 16}
    more = {"num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17]}
    text = {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
    }
    parts = {"text_config": text, "vision_config": tower | more | {"out_hidden_size": 2560}}
    small = read_shape({"model_type": "qwen3_vl", "tie_word_embeddings": True, **parts}, name="4B")

    assert large.total().total + large.tower == 8_292_166_656
    assert small.total().total + small.tower == 4_437_815_808


def test_tiny_is_the_model_that_the_runtime_makes():
    from rljob_runtime.models import tiny_recipe

    assert read_shape(tiny_recipe.CONFIG, name="tiny") == BUILTINS["tiny"]


def test_a_model_of_an_unknown_family_has_no_shape(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')

    assert find_shape(Model(path="."), base_dir=tmp_path) is None


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        (None, "config.json does not exist; name a Hugging Face directory"),
        ("{", "config.json cannot be read: EOF while parsing"),
        ("[]", "config.json is no model configuration: it is an empty list"),
        ('{"model_type": []}', "model_type is an empty list; must be text"),
        ("[" * 5000, "recursion limit exceeded"),
        ('{"model_type": "\\ud800"}', "cannot be read: half of a surrogate pair"),
        ('{"model_type": "llama"}', "configuration: num_attention_heads is missing"),
        (
            json.dumps(SMALL | {"model_type": "llama", "num_attention_heads": 0}),
            "heads is 0; must be",
        ),
        (
            json.dumps(SMALL | {"model_type": "llama", "num_hidden_layers": 10**12}),
            "num_hidden_layers is 1000000000000; must be a whole number from 1 to 1024",
        ),
        (
            json.dumps(SMALL | {"model_type": "qwen3_vl"}),
            "vision_config is None; must be a mapping",
        ),
        (
            json.dumps(SMALL | TOWER | {"vision_config": VISION | {"depth": 10**6}}),
            "depth is 1000000; must be a whole number from 1 to 1024",
        ),
    ],
)
def test_a_configuration_that_cannot_be_read_is_named(tmp_path, text, fragment):
    if text is not None:
        (tmp_path / "config.json").write_text(text)

    with pytest.raises(InvalidJob) as caught:
        find_shape(Model(path="."), base_dir=tmp_path)

    (problem,) = caught.value.problems
    assert problem.path == "spec.model.path"
    assert fragment in problem.message


UPDATE, ROLLOUT = "spec.update.parallelism", "spec.rollout.parallelism"


@pytest.mark.parametrize(
    ("config", "changes", "path", "fragment"),
    [
        ({}, {f"{UPDATE}.tensor": 8}, f"{UPDATE}.tensor", "8 does not divide the model's 4 attent"),
        (
            {"intermediate_size": 98},
            {f"{ROLLOUT}.tensor": 4},
            f"{ROLLOUT}.tensor",
            "use 1, 2, 7, 14, 49 or 98",
        ),
        (
            {"num_attention_heads": 8, "num_key_value_heads": 6, "hidden_size": 96},
            {f"{ROLLOUT}.tensor": 4},
            f"{ROLLOUT}.tensor",
            "4 neither divides the model's 6 key heads nor repeats each equally often; use 1 or 2",
        ),
        ({}, {f"{ROLLOUT}.expert": 2}, f"{ROLLOUT}.expert", "is 2, but the model has no experts"),
        (
            {"model_type": "qwen3_moe", **MOE},
            {f"{UPDATE}.expert": 16},
            f"{UPDATE}.expert",
            "16 does not divide the model's 8 experts",
        ),
        (
            {"model_type": "qwen3_moe", **MOE, "moe_intermediate_size": 3},
            {f"{ROLLOUT}.tensor": 4},
            f"{ROLLOUT}.tensor",
            "is 4, more than the 3 features of an expert that the devices share; lower it",
        ),
        ({}, {f"{ROLLOUT}.pipeline": 4}, f"{ROLLOUT}.pipeline", "is 4, more than the model's 3"),
        ({}, {f"{UPDATE}.pipeline": 4}, f"{UPDATE}.pipeline", "is 4, more than the model's 3"),
        (
            {},
            {f"{UPDATE}.pipeline": 2, f"{UPDATE}.virtualPipeline": 2},
            f"{UPDATE}.virtualPipeline",
            "2 × pipeline 2 is 4 chunks, more than the model's 3 layers",
        ),
        (
            {},
            {f"{UPDATE}.tensor": 2, f"{UPDATE}.context": 4},
            f"{UPDATE}.context",
            "4 × tensor 2 does not divide the model's 4 attention heads, which Ulysses shares out",
        ),
        (
            {"num_attention_heads": 6, "num_key_value_heads": 3, "hidden_size": 96},
            {f"{UPDATE}.context": 2},
            f"{UPDATE}.context",
            "2 neither divides the 3 key heads that tensor 1 leaves each device nor repeats each "
            "equally often; use 1, 3 or 6, or set contextAlgorithm: ring",
        ),
        (
            {},
            {f"{UPDATE}.tensor": 4, f"{UPDATE}.zero": 3},
            f"{UPDATE}.zero",
            "is 3, which does not go with tensor 4, more than the model's 2 key heads; use 0, 1 or 2, "
            "or tensor: 2 or less",
        ),
        (
            {"model_type": "qwen3_moe", **MOE},
            {"spec.rollout": {"engine": "vllm", "quantization": "int8"}},
            "spec.rollout.quantization",
            "is int8, which engine: vllm has for dense models, and this one has 8 experts; use none",
        ),
        ({}, {"spec.rollout.topK": 321}, "spec.rollout.topK", "is 321, more than the model's 320"),
        (
            TOWER,
            {"spec.rollout": {"engine": "mine.engine"}},
            "spec.rollout.engine",
            "is mine.engine, which has no models with a vision tower (qwen3_vl); use torch or vllm",
        ),
        (
            {"head_dim": 24},
            {"spec.rollout": {"engine": "vllm"}},
            "spec.rollout.engine",
            "is vllm, whose attention on CPU has heads of 32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512 "
            "features, and the model's have 24; use torch",
        ),
        (
            TOWER,
            {"spec.update": {"engine": "megatron"}},
            "spec.update.engine",
            "is megatron, which has no models with a vision tower (qwen3_vl); use torch",
        ),
    ],
)
def test_degrees_must_divide_the_model(job, config, changes, path, fragment):
    shape = read_shape(SMALL | {"model_type": "llama"} | config, name="config.json")
    spec = job({"spec.accelerator.devicesPerNode": 16, **changes}).spec

    found = {problem.path: problem.message for problem in shape_problems(spec, shape)}

    assert fragment in found[path]


def test_key_heads_may_be_repeated_and_ring_needs_no_heads(job):
    shape = read_shape(SMALL | {"model_type": "llama"}, name="config.json")
    ring = {"tensor": 2, "context": 4, "contextAlgorithm": "ring"}
    spec = job({"spec.accelerator.devicesPerNode": 8, UPDATE: ring, f"{ROLLOUT}.tensor": 4}).spec

    assert shape_problems(spec, shape) == []
