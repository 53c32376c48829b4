"""A reward model that learns right from wrong responses to a job's prompts, by torch and transformers alone.

Called by `preferences.py`. What it saves is a sequence classifier with one label in Hugging Face's format,
as `rewards: [{type: model}]` takes it.
"""

# B responses, T tokens of prompt and response

import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import logging

from benchmarks.learning.win_rate import held_out_prompts, responses
from rljob_api.spec.rljob import RLJob
from rljob_runtime.task.data.source import Prompt
from rljob_runtime.task.tokenizer import EOS_ID, PAD_ID, ByteTokenizer, save_byte_tokenizer

PROMPTS_OF_A_STEP = 64
LEARNING_RATE, RISE_STEPS = 1.5e-3, 20
TEMPERATURES = (1.0, 1.5)
"""Of the policy's own responses: its mistakes, and some that it makes later."""
OWN_SHARE = 2 / 3
"""Of the steps have the policy's own responses beside edited ones; drawing them takes most of the time."""
LETTERS = "eeeeaaaarrriiiooottttnnnsssslllcudpmhgbfywkvxzjqABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""About as often as in words: what is rare in edits, a policy finds out."""


def train_reward_model(job: RLJob, policy: Path, start: Path, folder: Path, *, steps: int) -> float:
    """Train one from the weights of `start`, a built-in `tiny`, and save it in `folder`: on right answers,
    edited ones, and what the policy itself responds. Every token is told whether the response is right as
    far as there; a job uses the last token's score. Returns the share of held-out prompts whose right
    response it scores above an edited one."""
    torch.manual_seed(job.spec.seed)
    logging.set_verbosity_error()  # it tells that the head is new
    logging.disable_progress_bar()
    draw, source = random.Random(job.spec.seed), held_out_prompts(job, policy)
    model = AutoModelForSequenceClassification.from_pretrained(
        start, num_labels=1, pad_token_id=PAD_ID, dtype=torch.float32
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    most = job.spec.batch.max_response_length
    drawn = [source.draw("reward-model", step, PROMPTS_OF_A_STEP) for step in range(1, steps + 1)]
    own = _own_responses(job, policy, drawn[: round(steps * OWN_SHARE)])
    for step, prompts in enumerate(drawn):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / RISE_STEPS) * (1 - step / steps)
        right = _right(prompts)
        found = [*right, *_edited(prompts, draw, most), *(own[step] if step < len(own) else [])]
        rows = [*zip(prompts, right, strict=True)] * (len(found) // len(right))
        optimizer.zero_grad()
        logits_BT = _logits(model, [prompt for prompt, _ in rows], found)
        labels_BT = torch.full_like(logits_BT, torch.nan)
        for row_T, (prompt, answer), response in zip(labels_BT, rows, found, strict=True):
            first = len(prompt.token_ids)
            row_T[first : first + len(response)] = _right_so_far(response, answer)
        responded_BT = ~labels_BT.isnan()
        binary_cross_entropy_with_logits(
            logits_BT[responded_BT], labels_BT[responded_BT]
        ).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        prompts = source.heldout()
        found = [*_right(prompts), *_edited(prompts, draw, most)]
        logits_BT = _logits(model.eval(), [*prompts] * 2, found)
        lasts = [
            len(prompt.token_ids) + len(response) - 1
            for prompt, response in zip([*prompts] * 2, found, strict=True)
        ]
        scores_B = logits_BT[torch.arange(len(lasts)), lasts]
    right_B, wrong_B = scores_B.chunk(2)
    model.save_pretrained(folder)
    save_byte_tokenizer(folder)
    return float((right_B > wrong_B).float().mean())


def wrong_response(answer: str, draw: random.Random) -> str:
    """The answer after one edit, or after two or three: letters that are swapped, replaced by others of any
    word or of this one, left out, doubled, put behind."""
    letters = list(answer)
    edits = draw.choice((1, 1, 1, 2, 3))
    while edits > 0 or "".join(letters) == answer:
        edits -= 1
        place, other = draw.randrange(len(letters)), draw.randrange(len(letters))
        edit = draw.choice(("swap", "replace", "repeat", "drop", "double", "append"))
        if edit == "swap":
            letters[place], letters[other] = letters[other], letters[place]
        elif edit == "replace":
            letters[place] = draw.choice(LETTERS)
        elif edit == "repeat":
            letters[place] = letters[other]
        elif edit == "double":
            letters.insert(place, letters[place])
        elif edit == "append":
            letters.append(draw.choice(LETTERS))
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


def _logits(
    model: PreTrainedModel, prompts: Sequence[Prompt], found: Sequence[Sequence[int]]
) -> Tensor:
    """The head's logits [B, T] at all tokens of a prompt and a response to it."""
    rows = [
        torch.tensor([*prompt.token_ids, *response])
        for prompt, response in zip(prompts, found, strict=True)
    ]
    ids_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD_ID)
    hidden = model.model(input_ids=ids_BT, attention_mask=(ids_BT != PAD_ID).long())
    logits_BT: Tensor = model.score(hidden.last_hidden_state)[..., 0]
    return logits_BT


def _right_so_far(response: Sequence[int], answer: Sequence[int]) -> Tensor:
    """1 for each token up to the first that the answer has not, 0 from there [T]."""
    same_T = torch.zeros(len(response))
    for place, (ours, theirs) in enumerate(zip(response, answer, strict=False)):
        if ours != theirs:
            break
        same_T[place] = 1.0
    return same_T


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
