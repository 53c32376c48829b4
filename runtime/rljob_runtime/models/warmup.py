"""The supervised warm-up of the built-in model `tiny`. Imports torch; called by `tiny`."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from rljob_api.rljob import RLJob
from rljob_api.tools import RESULT
from rljob_api.workload import Warmup
from rljob_runtime.data.source import Prompt, PromptSource, suites_of
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.tiny import CONFIG, Recipe, num_held_out
from rljob_runtime.models.tokenizer import EOS_ID, ByteTokenizer
from rljob_runtime.sample import SampleBatch
from rljob_runtime.seeds import derive_seed

LEAST_ACCURACY = 0.02
PUT = re.compile(rf"(<{RESULT}>.*?</{RESULT}>)", re.DOTALL)


def warm_up(
    job: RLJob, *, base_dir: Path, progress: Callable[[str], None], recipe: Recipe
) -> Decoder:
    """Supervised training until sampled accuracy reaches the target or the steps run out."""
    settings = job.spec.model.warmup or Warmup()
    source = PromptSource(
        job.spec.data,
        batch=job.spec.batch,
        tokenizer=ByteTokenizer(),
        seed=job.spec.seed,
        base_dir=base_dir,
        held_out=num_held_out(job),
        suites=suites_of(job.spec.evaluation),
    )
    decoder = Decoder(read_architecture(CONFIG))
    decoder.initialize(derive_seed(job.spec.seed, "tiny"))
    optimizer = torch.optim.AdamW(
        decoder.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
    )
    tools = job.spec.rollout.has_tools
    examined = _examples(source.heldout(), tools=tools)
    accuracy = 0.0
    for step in range(1, settings.max_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, step / recipe.rise_steps)
        _train(
            decoder,
            optimizer,
            _examples(source.draw("warmup", step, recipe.batch_size), tools=tools),
        )
        if step % recipe.check_every == 0 or step == settings.max_steps:
            accuracy = _accuracy(decoder, examined)
            progress(f"warming up the tiny model: step {step}, sampled accuracy {accuracy:.2f}")
            if accuracy >= settings.target_accuracy:
                return decoder
    if accuracy < LEAST_ACCURACY:
        raise ConfigError(
            f"the tiny model has sampled accuracy {accuracy:.3f} after {settings.max_steps} steps of "
            "warm-up, too little for any reward to show (spec.model.warmup); raise maxSteps, or take "
            "an easier task with short prompts and answers"
        )
    progress(
        f"the warm-up ended at its last step with sampled accuracy {accuracy:.2f} "
        f"(target {settings.target_accuracy:.2f}, spec.model.warmup.targetAccuracy)"
    )
    return decoder


def _examples(prompts: Sequence[Prompt], *, tools: bool) -> SampleBatch:
    """Each prompt with its answer and the end token as the response. tools: answers show how to call them."""
    shown = [_demonstration(prompt.answer, tools=tools) for prompt in prompts]
    return SampleBatch(
        prompts=[torch.tensor(prompt.token_ids) for prompt in prompts],
        group_of_B=torch.arange(len(prompts)),
        responses=[ids[drawn] for ids, drawn in shown],
        whole=[ids for ids, _ in shown] if tools else [],
        drawn=[drawn for _, drawn in shown] if tools else [],
    )


def _demonstration(answer: str, *, tools: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of an answer with an end token, and which of them the policy learns: not those in the tags of
    results, which a tool puts there."""
    ids: list[int] = []
    drawn: list[bool] = []
    for number, part in enumerate(PUT.split(answer) if tools else [answer]):
        tokens = ByteTokenizer().continuation(part)
        ids += tokens
        drawn += [number % 2 == 0] * len(tokens)
    return torch.tensor([*ids, EOS_ID]), torch.tensor([*drawn, True])


def _train(decoder: Decoder, optimizer: torch.optim.Optimizer, examples: SampleBatch) -> None:
    loss = -decoder.logprobs(examples, temperature=1.0).logprobs_T.mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
    optimizer.step()


def _accuracy(decoder: Decoder, examples: SampleBatch) -> float:
    """Expected share of samples at temperature 1 that are the answer: the mean of its probability."""
    with torch.no_grad():
        logprobs_T = decoder.logprobs(examples, temperature=1.0).logprobs_T
    total_B = torch.zeros(examples.num_samples).index_add(0, examples.sample_of_T(), logprobs_T)
    return float(total_B.exp().mean())
