"""What the paper's runs should take, by arithmetic: calibrated on two of them, compared with a third.

Nothing is measured. `rljob_plan.performance` adds up a step from the job's plan, the rates of an Ascend 910C
and the stated shares of them in `rljob_plan.machines`. Two numbers are solved for, so that the first two
rows come out as reported: the time a decoding step spends on each layer beside reading memory, and a fixed
time of each step. The paper draws its throughput of Qwen2.5-7B and 32B (Fig. 7) without figures: these rows
are those that MindSpeed RL's documentation gives (docs/zh/algorithms/grpo.md; batches and layouts from its
configs/). Whether a row counts the longest lengths or mean ones it does not tell; here all samples are of
the longest. Memory is the plan's, which keeps optimizer and reference on the device; the 671B configuration
swaps the former.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.support.figures import Figures
from rljob_api.check.load import load_job
from rljob_api.model.architecture import Shape, find_shape
from rljob_api.model.volumes import GB, tokens_per_second
from rljob_api.topology.resolved import ResolvedSpec, resolve
from rljob_plan.machines import ASCEND_910C, ASCEND_SHARES, RateShares
from rljob_plan.memory import plan_memory
from rljob_plan.performance import step_parts

PAPER = ROOT / "examples" / "paper"
DIE_GB = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A reported run. batch: G, N, PL, SL. dies: that compute; devices: that it is reported by. reported:
    tokens a second and device, Eq. 5. sequences: that a rollout replica decodes at a time."""

    name: str
    model: str
    batch: tuple[int, int, int, int]
    update: dict[str, int]
    rollout: dict[str, int]
    dies: int
    devices: int
    sequences: int
    reported: float
    recompute: float = 0.0


QWEN_7B = Row(
    name="Qwen2.5-7B, 16 dies", model="qwen2.5-7b", batch=(32, 8, 2048, 2048), dies=16, devices=16,
    update={"tensor": 4}, rollout={"tensor": 4}, sequences=1024, reported=220,
)  # fmt: skip
QWEN_32B = Row(
    name="Qwen2.5-32B, 16 dies", model="qwen2.5-32b", batch=(64, 16, 1024, 2048), dies=16, devices=16,
    update={"tensor": 4, "pipeline": 4}, rollout={"tensor": 4}, sequences=64, reported=220,
)  # fmt: skip
DEEPSEEK = Row(
    name="DeepSeek-R1-671B, 384 dies", model="deepseek-r1-671b", batch=(384, 32, 1024, 2048),
    update={"tensor": 4, "pipeline": 6, "expert": 16}, rollout={"tensor": 2, "expert": 64},
    dies=384, devices=384, sequences=64, reported=225, recompute=54 / 61,
)  # fmt: skip
# The paper's 384 devices of 128 GB are 768 dies; the configuration that MindSpeed RL gives has 384 processes.
PAIRS = replace(DEEPSEEK, name="DeepSeek-R1-671B, 384 pairs of dies", dies=768)


def spec_of(row: Row) -> tuple[ResolvedSpec, Shape]:
    """The paper's job with the row's batch and layouts."""
    job = load_job(PAPER / f"{row.model}.yaml")
    spec = job.spec
    shape = find_shape(spec.model, base_dir=PAPER)
    assert shape is not None, f"{row.model} has a known shape"
    prompts, samples, longest_prompt, longest_response = row.batch

    def changed(section: Any, **values: Any) -> Any:
        return section.model_copy(update=values)

    update = type(spec.update.parallelism).model_validate({**row.update, "zero": 1})
    rollout = type(spec.rollout.parallelism).model_validate(row.rollout)
    params = changed(spec.algorithm.params, kl_coefficient=0.001)
    changes = {
        "batch": changed(
            spec.batch,
            global_batch_size=prompts,
            mini_batch_size=prompts,
            samples_per_prompt=samples,
            max_prompt_length=longest_prompt,
            max_response_length=longest_response,
            micro_batch_size=1,
        ),
        "algorithm": changed(spec.algorithm, params=params),
        "update": changed(spec.update, parallelism=update),
        "rollout": changed(spec.rollout, parallelism=rollout, max_sequences=row.sequences),
        "accelerator": changed(spec.accelerator, nodes=row.dies // 16, devices_per_node=16),
    }
    return resolve(changed(job, spec=changed(spec, **changes))).spec, shape


def parts_of(row: Row, shares: RateShares) -> dict[str, float]:
    """Seconds of each part of the run's steps."""
    spec, shape = spec_of(row)
    return step_parts(spec, shape, ASCEND_910C, shares, packed=False, recompute=row.recompute)


def throughput(row: Row, seconds: float) -> float:
    """Eq. 5."""
    prompts, samples, longest_prompt, longest_response = row.batch
    return tokens_per_second(
        global_batch_size=prompts,
        samples_per_prompt=samples,
        max_prompt_length=longest_prompt,
        max_response_length=longest_response,
        num_devices=row.devices,
        seconds=seconds,
    )


def calibrate(first: Row, second: Row, shares: RateShares) -> RateShares:
    """The two numbers with which both rows come out as reported; each is 0 rather than negative."""

    def seconds(row: Row, layer: float) -> float:
        return sum(parts_of(row, replace(shares, layer_seconds=layer)).values())

    missing, slope = [], []
    for row in (first, second):
        bare = seconds(row, 0.0)
        missing.append(throughput(row, 1.0) / row.reported - bare)
        slope.append(seconds(row, 1.0) - bare)
    layer = max(0.0, (missing[1] - missing[0]) / (slope[1] - slope[0]))
    return replace(
        shares, layer_seconds=layer, fixed_seconds=max(0.0, missing[0] - layer * slope[0])
    )


def main() -> None:
    """Print the parts of each run and how far off the model is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the same: nothing is measured")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    figures = Figures()
    shares = calibrate(QWEN_7B, QWEN_32B, ASCEND_SHARES)
    figures.add("solved: a layer of a decoding step", shares.layer_seconds * 1e3, "ms")
    figures.add("solved: fixed time of a step", shares.fixed_seconds, "s")
    for row in (QWEN_7B, QWEN_32B, DEEPSEEK, PAIRS):
        parts = parts_of(row, shares)
        found, bare = (
            throughput(row, sum(parts.values()) - less) for less in (0.0, shares.fixed_seconds)
        )
        figures.add(f"{row.name}: reported", row.reported, "tokens/s")
        figures.add(f"{row.name}: by arithmetic", found, "tokens/s")
        figures.add(f"{row.name}: off by", 100 * (found / row.reported - 1), "%")
        figures.add(f"{row.name}: without the fixed time", bare, "tokens/s")
        for part, seconds in parts.items():
            figures.add(f"{row.name}: {part}", seconds, "s")
        for phase in plan_memory(*spec_of(row)).phases:
            figures.add(f"{row.name}: memory, {phase.name}", phase.device / GB, "GB", DIE_GB)
    if arguments.json:
        figures.write(arguments.json, packages=["rljob"], facts={})


if __name__ == "__main__":
    main()
