"""The work that end-to-end benchmarks share: words to spell backward, and models that half can.

Both sides of a benchmark get the same directory: our byte tokenizer's marker and a Hugging Face
tokenizer of the same ids lie side by side in it.
"""

# B examples, L positions

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from rljob_runtime.task.tokenizer import BOS_ID, EOS_ID, PAD_ID, save_byte_tokenizer

TEMPLATE = "Spell backward: {word}\n"
SIZES: dict[str, dict[str, int]] = {
    "0.8M": {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "head_dim": 32},
    "4.8M": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "head_dim": 64},
}
MAX_PROMPT_LENGTH, MAX_RESPONSE_LENGTH = 32, 16
PROMPTS_PER_STEP, SAMPLES_PER_PROMPT = 32, 8
LEARNING_RATE = 3e-4
HELD_OUT = 512
WARM_ACCURACY = 0.5
WARM_STEPS, WARM_BATCH = 1500, 128


def write_words(file: Path, *, size: int = 20_000) -> None:
    """Questions of reasoning-gym's spell_backward (3 to 9 letters), each once, as JSON Lines."""
    if file.exists():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a dependency compiles with SyntaxWarnings
        import reasoning_gym
    items = reasoning_gym.create_dataset(
        "spell_backward", size=size, seed=2**20, min_word_len=3, max_word_len=9
    )
    words = sorted({item["metadata"]["word"] for item in items})
    lines = [
        json.dumps({"prompt": TEMPLATE.format(word=word), "answer": word[::-1]}) for word in words
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def job(model: Path, words: Path, **changes: Any) -> dict[str, Any]:
    """The RLJob. changes: sections of the spec, merged one level deep."""
    spec: dict[str, Any] = {
        "seed": 1,
        "model": {"path": str(model)},
        "data": {"jsonl": {"path": str(words)}},
        "rewards": [{"name": "exact", "type": "exact"}],
        "batch": {
            "globalBatchSize": PROMPTS_PER_STEP,
            "samplesPerPrompt": SAMPLES_PER_PROMPT,
            "maxPromptLength": MAX_PROMPT_LENGTH,
            "maxResponseLength": MAX_RESPONSE_LENGTH,
        },
        "update": {"optimizer": {"learningRate": LEARNING_RATE}},
    }
    for name, value in changes.items():
        merge = isinstance(value, dict) and name in spec
        spec[name] = {**spec[name], **value} if merge else value
    return {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "spelling"},
        "spec": spec,
    }


def make_model(folder: Path, *, size: str, words: Path) -> None:
    """A Qwen3 of `size`, trained on words until a sampled answer is right half of the time."""
    if (folder / "config.json").is_file():
        return
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=259,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        **SIZES[size],
    )
    model = Qwen3ForCausalLM(config)
    accuracy = _warm_up(model, [json.loads(line) for line in words.read_text().splitlines()])
    print(f"made the {size} model: sampled accuracy {accuracy:.2f}")
    model.save_pretrained(folder)
    save_byte_tokenizer(folder)
    _save_peer_tokenizer(folder)


def _warm_up(model: torch.nn.Module, items: list[dict[str, str]]) -> float:
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0)).tolist()
    examined, learned = order[:256], order[256:]
    accuracy = 0.0
    for step in range(WARM_STEPS):
        chosen = [learned[(step * WARM_BATCH + i) % len(learned)] for i in range(WARM_BATCH)]
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 20)
        optimizer.zero_grad()
        losses_BL = _losses(model, [items[i] for i in chosen])
        (losses_BL.sum() / (losses_BL != 0).sum()).backward()
        optimizer.step()
        if step % 10 == 9:
            with torch.no_grad():
                wrong_B = _losses(model, [items[i] for i in examined]).sum(-1)
            accuracy = float((-wrong_B).exp().mean())  # of a sampled answer, exactly
            if accuracy >= WARM_ACCURACY:
                break
    return accuracy


def _losses(model: torch.nn.Module, items: list[dict[str, str]]) -> Tensor:
    """Negative log-prob of each answer token and the end token, 0 elsewhere, [B, L]."""
    rows, targets = [], []
    for item in items:
        prompt, answer = [BOS_ID, *item["prompt"].encode()], [*item["answer"].encode(), EOS_ID]
        rows.append(torch.tensor(prompt + answer[:-1]))
        targets.append(torch.tensor([-100] * (len(prompt) - 1) + answer))
    ids_BL = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD_ID)
    targets_BL = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=-100)
    logits = model(ids_BL).logits
    return cross_entropy(logits.flatten(0, 1), targets_BL.flatten(), reduction="none").view_as(
        targets_BL
    )


def _save_peer_tokenizer(folder: Path) -> None:
    """A Hugging Face tokenizer with the byte tokenizer's ids, for ASCII text."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {"<pad>": PAD_ID, "<bos>": BOS_ID, "<eos>": EOS_ID}
    characters = {chr(code): code for code in range(128)}
    tokenizer = Tokenizer(models.WordLevel(characters | special, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS_ID)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    ).save_pretrained(folder)
