"""Put a step's prompts into the dock, so that no sample data passes through the driver."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import NewRow
from rljob_runtime.dock.stats import DockTraffic
from rljob_runtime.errors import ConfigError
from rljob_runtime.processes.actors.addresses import LiveAddress
from rljob_runtime.processes.hangs.reporter import start_reporter
from rljob_runtime.prompts.pool_rows import POOL_STATES, PoolSample, group_columns, pool_rows
from rljob_runtime.prompts.rounds import CandidateRound, Round
from rljob_runtime.record.folders import Folder
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import (
    evaluation_states,
    route_bytes,
    training_states,
    written_bytes,
)
from rljob_runtime.task.data.source import Prompt, PromptSource, suites_of
from rljob_runtime.task.data.training_prompts import TrainingPrompts
from rljob_runtime.task.pictures.picture_columns import picture_columns
from rljob_runtime.task.pictures.processor import processor_of
from rljob_runtime.task.tokenizer import load_tokenizer


class PromptFeeder:
    """Owns the prompt source of a run and puts its prompts into the dock."""

    def __init__(self, job_json: str, model: Folder, base_dir: Path, dock: LiveAddress) -> None:
        start_reporter("feeder", dock.first)
        self._spec = ResolvedJob.model_validate_json(job_json).spec
        evaluation, folder = self._spec.evaluation, model.local_path()
        tokenizer = load_tokenizer(folder)
        self._processor = processor_of(self._spec, folder, tokenizer)
        self._route_bytes = route_bytes(self._spec, folder)
        self._source = PromptSource(
            self._spec.data,
            batch=self._spec.batch,
            tokenizer=tokenizer,
            seed=self._spec.seed,
            base_dir=base_dir,
            held_out=evaluation.prompts if evaluation else 0,
            suites=suites_of(evaluation),
            processor=self._processor,
            agent=self._spec.rollout.agent is not None,
        )
        self._training = TrainingPrompts(
            self._source,
            ahead=self._processor is not None,
            end=self._spec.steps * self._spec.batch.global_batch_size,
            timeout_seconds=self._spec.flow.stage_timeout_seconds,
        )
        self._dock = DockClient(dock, state="feed", owner="feeder")
        self._check_held_out()

    def feed(self, batch: BatchName, version: int, positions: Sequence[int] = ()) -> int:
        """Put the batch's rows; a second call changes nothing. Returns the number of rows.

        positions: those of a training batch's prompts, where they are chosen; otherwise the step's own
        positions are used.
        """
        if batch.kind == "train":
            sizes, states = self._spec.batch, training_states(self._spec)
            size, samples = sizes.global_batch_size, sizes.samples_per_prompt
            if positions:
                prompts = self._training.at(positions, step=batch.draw)
                return self._put(batch, prompts, samples, version, states)
            first = (batch.draw - 1) * size
            prompts = self._training.at(range(first, first + size))
            rows = self._put(batch, prompts, samples, version, states)
            self._training.prepare(first + size, size)
            return rows
        evaluation = self._spec.evaluation
        assert evaluation is not None, "an evaluation batch without spec.evaluation"
        prompts = self._source.heldout(batch.suite)
        states = evaluation_states(self._spec)
        samples = evaluation.set_of(batch.suite).samples_per_prompt
        return self._put(batch, prompts, samples, version, states)

    def feed_pool(self, round_: Round, version: int) -> int:
        """Put a round's fresh groups after those that continue. Returns the number of rows, like
        `feed`."""
        sizes, rows = self._spec.batch, list[NewRow]()
        prompts = self._training.at(round_.fresh)
        first = round_.groups - len(round_.fresh)
        for index, (position, prompt) in enumerate(zip(round_.fresh, prompts, strict=True), first):
            columns = group_columns(prompt.token_ids, _task(prompt), position)
            columns |= self._picture_columns(prompt)
            samples = [PoolSample() for _ in range(sizes.samples_per_prompt)]
            rows += pool_rows(round_.pool, index, columns, samples, version=version)
        total = round_.groups * sizes.samples_per_prompt
        self._dock.put_rows(str(round_.pool), rows, total=total, states=POOL_STATES)
        self._prepare_behind(round_.fresh)
        return len(rows)

    def feed_candidates(self, round_: CandidateRound, version: int) -> int:
        """Put a round's prompts of dynamic sampling. Returns the number of rows, like `feed`."""
        sizes, rows = self._spec.batch, list[NewRow]()
        states = evaluation_states(self._spec)
        reserve = written_bytes(self._spec, states=states, route_bytes=self._route_bytes)
        prompts = self._training.at(round_.positions)
        groups = zip(round_.groups, round_.positions, prompts, strict=True)
        for index, position, prompt in groups:
            columns = group_columns(prompt.token_ids, _task(prompt), position)
            columns |= self._picture_columns(prompt)
            rows += [
                NewRow(
                    uid=round_.rows.row(index, sample),
                    group=round_.rows.group(index),
                    group_index=index,
                    version=version,
                    group_columns=columns,
                    reserve_bytes=reserve,
                )
                for sample in range(sizes.samples_per_prompt)
            ]
        self._dock.put_rows(str(round_.rows), rows, total=len(rows), states=states)
        self._prepare_behind(round_.positions)
        return len(rows)

    def drop(self, batch: BatchName) -> int:
        """Free the batch's rows and end the claims that wait for it. Returns the number of freed rows."""
        return self._dock.drop_batch(str(batch))

    def traffic(self) -> dict[str, DockTraffic]:
        """Return the traffic through the dock since the last call."""
        return {"feed": self._dock.take_traffic()}

    def facts(self) -> dict[str, int]:
        """Return counts of prompts: too long ones, and held-out ones that training uses."""
        return self._source.facts()

    def _check_held_out(self) -> None:
        """Check that there are as many held-out prompts as configured, since models that score them
        divide them by number."""
        spared, evaluation = len(self._source.heldout()), self._spec.evaluation
        scored = self._spec.has_pairs or self._spec.reward_model is not None
        if evaluation is not None and scored and spared < evaluation.prompts:
            raise ConfigError(
                f"spec.evaluation.prompts is {evaluation.prompts}, but the data can spare {spared} prompts "
                f"that differ from those of training; use {spared} or fewer, or add data"
            )

    def _put(
        self,
        batch: BatchName,
        prompts: Sequence[Prompt],
        samples: int,
        version: int,
        states: tuple[str, ...] | None,
    ) -> int:
        rows = []
        reserve = written_bytes(self._spec, states=states, route_bytes=self._route_bytes)
        for number, prompt in enumerate(prompts):
            columns: dict[str, NDArray[Any]] = {
                "prompt": np.asarray(prompt.token_ids, dtype=np.int32),
                "task": np.frombuffer(_task(prompt), dtype=np.uint8),
            }
            columns |= self._picture_columns(prompt)
            rows += [
                NewRow(
                    uid=batch.row(number, sample),
                    group=batch.group(number),
                    group_index=number,
                    version=version,
                    group_columns=columns,
                    columns=_response(prompt, sample),
                    reserve_bytes=reserve,
                )
                for sample in range(samples)
            ]
        self._dock.put_rows(str(batch), rows, total=len(rows), states=states)
        return len(rows)

    def _prepare_behind(self, positions: Sequence[int]) -> None:
        """Prepare the prompts after these positions. Rounds continue where the last one ended, usually
        with as many prompts."""
        if positions:
            self._training.prepare(max(positions) + 1, len(positions))

    def _picture_columns(self, prompt: Prompt) -> dict[str, NDArray[Any]]:
        """Return the columns of the prompt's pictures; none in jobs without pictures."""
        return {} if self._processor is None else picture_columns(prompt.scaled)


def _response(prompt: Prompt, sample: int) -> dict[str, NDArray[Any]]:
    """Return the columns of a response from the data, the preferred one first; none if it is to be
    generated."""
    if not prompt.responses:
        return {}
    reward = 1.0 if sample == 0 else 0.0
    return {
        "response": np.asarray(prompt.responses[sample], dtype=np.int32),
        "reward": np.asarray([reward], dtype=np.float32),
    }


def _task(prompt: Prompt) -> bytes:
    task = {"prompt": prompt.text, "answer": prompt.answer, "entry": prompt.entry}
    return json.dumps(task).encode()
