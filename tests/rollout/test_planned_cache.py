"""The KV cache that an engine of a job holds is the one that `rljob plan` tells."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import on_ranks
from rollouts import make_groups, run, sampling
from rollouts_on_ranks import engine_on_rank, grid_of
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.model.architecture import read_shape
from rljob_api.topology.resolved import ResolvedSpec, resolve
from rljob_plan.memory import MemoryPlan, plan_memory
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.config import read_config
from rljob_runtime.rollout.rollout_table import make_rollout

SaveReference = Callable[..., tuple[Any, Path]]
LENGTHS = {"maxPromptLength": 40, "maxResponseLength": 24}


def make_spec(**sections: dict[str, Any]) -> ResolvedSpec:
    job = copy.deepcopy(SMALL_JOB)
    for name, members in {"batch": LENGTHS, **sections}.items():
        job["spec"][name] = {**job["spec"].get(name, {}), **members}
    return resolve(read_job(job)).spec


def planned(spec: ResolvedSpec, path: Path) -> MemoryPlan:
    shape = read_shape(read_config(path), name=str(path))
    assert shape is not None
    return plan_memory(spec, shape)


@pytest.mark.parametrize("family", ["qwen3", "deepseek-v3"])
@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"rollout": {"maxSequences": 3}},
        {"rollout": {"kvCacheMemory": "200k"}},
        {"rollout": {"kvCacheMemory": "1G", "dtype": "bfloat16"}},
        {"accelerator": {"memory": "1100k"}},
    ],
)
def test_an_engine_holds_the_cache_that_was_planned(
    family: str, sections: dict[str, Any], save_reference: SaveReference
) -> None:
    path, spec = save_reference(family)[1], make_spec(**sections)
    ledger = MemoryLedger(device="cpu:0")
    cache = planned(spec, path).kv_cache

    engine = make_rollout(spec, model=path, ledger=ledger)

    assert ledger.kind_bytes(MemoryKind.KV_CACHE) == cache.bytes > 0
    found = run(engine, make_groups([40, 3]), sampling())
    assert len(found) == 8
    assert ledger.report().kind_peak_bytes[MemoryKind.KV_CACHE] == cache.bytes


def test_memory_that_is_short_makes_a_cache_smaller(save_reference: SaveReference) -> None:
    path = save_reference("qwen3")[1]

    plenty, little = (
        planned(make_spec(**sections), path).kv_cache
        for sections in ({}, {"accelerator": {"memory": "1100k"}})
    )

    assert 0 < little.room < plenty.room == plenty.requested


@pytest.mark.parametrize("degrees", [{"tensor": 2}, {"pipeline": 2}])
def test_the_fullest_rank_of_a_model_holds_what_was_planned(
    degrees: dict[str, int], save_reference: SaveReference
) -> None:
    path = save_reference("qwen3")[1]
    spec = make_spec(
        accelerator={"devicesPerNode": 2},
        rollout={"parallelism": degrees, "kvCacheMemory": "100k"},
    )
    cache = planned(spec, path).kv_cache

    def held(rank: int) -> int:
        ledger = MemoryLedger(device=f"cpu:{rank}")
        engine_on_rank(path, grid_of(**degrees), ledger=ledger, cache_tokens=cache.tokens)
        return ledger.report().kind_peak_bytes[MemoryKind.KV_CACHE]

    assert max(on_ranks(2, held)) == cache.bytes


def test_a_model_of_unknown_shape_takes_no_stated_cache(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}'
    )
    spec = make_spec(rollout={"kvCacheMemory": "1G"})

    with pytest.raises(ConfigError, match="kvCacheMemory is for models whose shape is known"):
        make_rollout(spec, model=tmp_path, ledger=MemoryLedger(device="cpu:0"))
