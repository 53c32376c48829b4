"""The supervised warm-up of the built-in models `tiny` and `tiny-vl`. It imports torch; `tiny` calls it."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from rljob_api.spec.rljob import RLJob
from rljob_api.spec.tools import RESULT
from rljob_api.spec.workload import Warmup
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.config import read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.tiny_recipe import VISION_STD, Recipe, num_held_out, shown_data
from rljob_runtime.models.tower import VisionTower
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.samples.seeds import derive_seed
from rljob_runtime.task.data.games import GameItems
from rljob_runtime.task.data.source import Prompt, PromptSource, suites_of
from rljob_runtime.task.pictures.processor import PictureProcessor, processor_of
from rljob_runtime.task.tokenizer import EOS_ID, ByteTokenizer, load_tokenizer

LEAST_ACCURACY = 0.02
PUT = re.compile(rf"(<{RESULT}>.*?</{RESULT}>)", re.DOTALL)


def warm_up(
    job: RLJob,
    model: Path,
    *,
    base_dir: Path,
    progress: Callable[[str], None],
    recipe: Recipe,
) -> Decoder:
    """Train until sampled accuracy reaches the target or the steps run out.

    model: directory of a model over bytes without its weights; a vision tower is trained with the decoder.
    """
    settings = job.spec.model.warmup or Warmup()
    tokenizer = load_tokenizer(model)
    processor = processor_of(job.spec, model, tokenizer)
    source = PromptSource(
        shown_data(job.spec.data),
        batch=job.spec.batch,
        tokenizer=tokenizer,
        seed=job.spec.seed,
        base_dir=base_dir,
        held_out=num_held_out(job),
        suites=suites_of(job.spec.evaluation),
        processor=processor,
    )
    decoder = Decoder(read_architecture(read_config(model)))
    seed = derive_seed(job.spec.seed, "tiny")
    if processor is None:
        decoder.initialize(seed)
    else:
        decoder.initialize(seed, std=VISION_STD)
        decoder.show(VisionTower.drawn(model, seed=seed, std=VISION_STD))
    optimizer = torch.optim.AdamW(
        decoder.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
    )
    demonstrations = _demonstrations(job)
    examined = _examples(source.heldout(), demonstrations, processor)
    accuracy, name = 0.0, job.spec.model.builtin or "tiny"
    for step in range(1, settings.max_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, step / recipe.rise_steps)
        _train(
            decoder,
            optimizer,
            _examples(source.draw("warmup", step, recipe.batch_size), demonstrations, processor),
        )
        if step % recipe.check_every == 0 or step == settings.max_steps:
            accuracy = _accuracy(decoder, examined, by_turn=job.spec.data.environment is not None)
            progress(f"warming up the {name} model: step {step}, sampled accuracy {accuracy:.2f}")
            if accuracy >= settings.target_accuracy:
                return decoder
    if accuracy < LEAST_ACCURACY:
        raise ConfigError(
            f"the {name} model has sampled accuracy {accuracy:.3f} after {settings.max_steps} steps of "
            "warm-up, too little for any reward to show (spec.model.warmup); raise maxSteps, or take "
            "an easier task with short prompts and answers"
        )
    progress(
        f"the warm-up ended at its last step with sampled accuracy {accuracy:.2f} "
        f"(target {settings.target_accuracy:.2f}, spec.model.warmup.targetAccuracy)"
    )
    return decoder


Demonstrations = Callable[[Sequence[Prompt]], list[list[list[int]]]]
"""Returns the responses of example prompts, each in sections: what the policy writes and what is inserted
after it, in turns."""


def _demonstrations(job: RLJob) -> Demonstrations:
    data, ids_of = job.spec.data, ByteTokenizer().continuation
    if data.environment is not None:
        games = GameItems(data.environment)
        end = ids_of(data.stop[0]) if data.stop else [EOS_ID]

        def played(prompts: Sequence[Prompt]) -> list[list[list[int]]]:
            shown = games.demonstrations([prompt.entry["seed"] for prompt in prompts])
            return [
                [
                    section
                    for text, observation in turns
                    for section in (ids_of(text) + end, ids_of(observation))
                ]
                for turns in shown
            ]

        return played
    turns = job.spec.has_turns

    def answered(prompt: Prompt) -> list[list[int]]:
        sections = PUT.split(prompt.answer) if turns else [prompt.answer]
        return [*map(ids_of, sections[:-1]), [*ids_of(sections[-1]), EOS_ID]]

    return lambda prompts: [answered(prompt) for prompt in prompts]


def _examples(
    prompts: Sequence[Prompt],
    demonstrations: Demonstrations,
    processor: PictureProcessor | None,
) -> SampleBatch:
    """Return each prompt with its demonstration as the response."""
    shown = [_demonstration(sections) for sections in demonstrations(prompts)]
    masked = any(not drawn.all() for _, drawn in shown)
    return SampleBatch(
        prompts=[torch.tensor(prompt.token_ids) for prompt in prompts],
        group_of_B=torch.arange(len(prompts)),
        responses=[ids[drawn] for ids, drawn in shown],
        full_responses=[ids for ids, _ in shown] if masked else [],
        drawn=[drawn for _, drawn in shown] if masked else [],
        pictures=[[*map(processor.picture, prompt.scaled)] for prompt in prompts]
        if processor is not None
        else [],
    )


def _demonstration(sections: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids of a response, and which of them the policy learns: those of every other section.

    The first section is learned.
    """
    drawn = [number % 2 == 0 for number, section in enumerate(sections) for _ in section]
    return torch.tensor([token for section in sections for token in section]), torch.tensor(drawn)


def _train(decoder: Decoder, optimizer: torch.optim.Optimizer, examples: SampleBatch) -> None:
    loss = -decoder.logprobs(examples, temperature=1.0).logprobs_T.mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
    optimizer.step()


def _accuracy(decoder: Decoder, examples: SampleBatch, *, by_turn: bool) -> float:
    """Return the expected share of samples at temperature 1 that are the answer: the mean of its probability.

    by_turn: of games, which can be played in many ways: use the geometric mean over the demonstrated moves.
    """
    with torch.no_grad():
        logprobs_T = decoder.logprobs(examples, temperature=1.0).logprobs_T
    total_B = torch.zeros(examples.num_samples).index_add(0, examples.sample_of_T(), logprobs_T)
    if by_turn and examples.drawn:
        total_B = total_B / torch.tensor([_turns(drawn) for drawn in examples.drawn])
    return float(total_B.exp().mean())


def _turns(drawn: torch.Tensor) -> int:
    return 1 + int((drawn[1:] & ~drawn[:-1]).sum())
