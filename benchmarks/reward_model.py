"""A reward model that learns right from wrong responses to a job's prompts, by torch and transformers alone.

Called by `preferences.py`. What it saves is a sequence classifier with one label in Hugging Face's format,
as `rewards: [{type: model}]` takes it.
"""

# B responses, T tokens

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import logging
from win_rate import held_out_prompts, responses

from rljob_api.rljob import RLJob
from rljob_runtime.data.source import Prompt
from rljob_runtime.models.tokenizer import EOS_ID, PAD_ID, ByteTokenizer, save_byte_tokenizer

PROMPTS_OF_A_STEP = 64
LEARNING_RATE = 1e-3
RISE_STEPS = 20
TEMPERATURES = (1.0, 1.5)
"""Of the policy's own responses: its mistakes, and some that it makes later."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def train_reward_model(job: RLJob, policy: Path, folder: Path, *, steps: int) -> float:
    """Train one from the weights of `policy`, the built-in `tiny`, and save it in `folder`: on right answers,
    edited ones, and what the policy itself responds. Returns the share of held-out prompts whose right
    response it scores above an edited one."""
    torch.manual_seed(job.spec.seed)
    logging.set_verbosity_error()  # it tells that the head is new
    logging.disable_progress_bar()
    draw, source = random.Random(job.spec.seed), held_out_prompts(job, policy)
    model = AutoModelForSequenceClassification.from_pretrained(
        policy, num_labels=1, pad_token_id=PAD_ID, dtype=torch.float32
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    most = job.spec.batch.max_response_length
    drawn = [source.draw("reward-model", step, PROMPTS_OF_A_STEP) for step in range(1, steps + 1)]
    own = _own_responses(job, policy, drawn)
    for step, prompts in enumerate(drawn):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / RISE_STEPS)
        right, edited = _right(prompts), _edited(prompts, draw, most)
        found = [*right, *edited, *own[step]]
        labels_B = torch.tensor(
            [float(ids == right[i % len(right)]) for i, ids in enumerate(found)]
        )
        optimizer.zero_grad()
        scores_B = _score(model, [*prompts] * 3, found)
        binary_cross_entropy_with_logits(scores_B, labels_B).backward()
        optimizer.step()
    with torch.no_grad():
        prompts = source.heldout()
        found = [*_right(prompts), *_edited(prompts, draw, most)]
        scores_B = _score(model.eval(), [*prompts] * 2, found)
    right_B, wrong_B = scores_B.chunk(2)
    model.save_pretrained(folder)
    save_byte_tokenizer(folder)
    return float((right_B > wrong_B).float().mean())


def wrong_response(answer: str, draw: random.Random) -> str:
    """The answer after one to three edits: letters that are swapped, replaced, left out, doubled."""
    letters = list(answer)
    edits = draw.randint(1, 3)
    while edits > 0 or "".join(letters) == answer:
        edits -= 1
        place = draw.randrange(len(letters))
        edit = draw.choice(("swap", "replace", "drop", "double"))
        if edit == "swap":
            other = draw.randrange(len(letters))
            letters[place], letters[other] = letters[other], letters[place]
        elif edit == "replace":
            letters[place] = draw.choice(LETTERS)
        elif edit == "double":
            letters.insert(place, letters[place])
        elif len(letters) > 1:
            del letters[place]
    return "".join(letters)


def _own_responses(
    job: RLJob, policy: Path, drawn: Sequence[Sequence[Prompt]]
) -> list[list[list[int]]]:
    """What the policy responds to each batch of prompts, batches in turn by one of the temperatures."""
    own: list[list[list[int]]] = [[] for _ in drawn]
    for number, temperature in enumerate(TEMPERATURES):
        batches = range(number, len(drawn), len(TEMPERATURES))
        found = iter(
            responses(
                job,
                policy,
                [prompt for batch in batches for prompt in drawn[batch]],
                noise=f"reward-model-{number}",
                temperature=temperature,
            )
        )
        for batch in batches:
            own[batch] = list(itertools.islice(found, len(drawn[batch])))
    return own


def _score(
    model: PreTrainedModel, prompts: Sequence[Prompt], found: Sequence[Sequence[int]]
) -> Tensor:
    """Scores [B] of a response to each prompt."""
    rows = [
        torch.tensor([*prompt.token_ids, *response])
        for prompt, response in zip(prompts, found, strict=True)
    ]
    ids_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD_ID)
    scores_B: Tensor = model(input_ids=ids_BT, attention_mask=(ids_BT != PAD_ID).long()).logits[
        :, 0
    ]
    return scores_B


def _right(prompts: Sequence[Prompt]) -> list[list[int]]:
    return [[*_bytes(prompt.answer), EOS_ID] for prompt in prompts]


def _edited(prompts: Sequence[Prompt], draw: random.Random, most: int) -> list[list[int]]:
    return [_ended(wrong_response(prompt.answer, draw), draw, most) for prompt in prompts]


def _ended(text: str, draw: random.Random, most: int) -> list[int]:
    """A wrong response with an end, or one of ten that goes on to the longest length without."""
    ids = _bytes(text)
    if draw.random() < 0.1:
        return [*ids, *_bytes("".join(draw.choices(LETTERS, k=most)))][:most]
    return [*ids, EOS_ID][:most]


def _bytes(text: str) -> list[int]:
    return ByteTokenizer().continuation(text)
