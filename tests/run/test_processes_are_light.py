"""What a run's processes import by themselves: a run starts a dozen, and would wait for each."""

import subprocess
import sys

import pytest

HEAVY = {
    "IPython", "accelerate", "datasets", "google.cloud", "jax", "kubernetes", "matplotlib", "moto", "pandas",
    "plotly", "pyarrow", "reasoning_gym", "scipy", "sklearn", "sympy", "tensordict", "tokenizers", "torch",
    "transformers", "triton", "vllm",
}  # fmt: skip
PROCESSES = {
    "the driver, and every Ray actor until it is made": ("rljob_runtime.run.launch", set()),
    "the dock's servers": ("rljob_runtime.processes.actors.dock_worker", {"pydantic", "rich"}),
    "the rewards' children": ("rljob_runtime.task.rewards.scorer_child", {"numpy", "ray", "rich"}),
    "the reaper": ("rljob_runtime.processes.reaper", {"numpy", "pydantic", "ray", "rich"}),
}


def modules_after(code: str) -> set[str]:
    code += "\nimport sys; print(*{n for name in sys.modules for n in (name, name.split('.')[0])})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("process", PROCESSES)
def test_nothing_heavy_is_imported_before_it_is_needed(process: str) -> None:
    module, own = PROCESSES[process]

    loaded = modules_after(f"import {module}")

    assert module in loaded
    assert loaded & (HEAVY | own) == set()


def test_data_sets_are_made_without_what_draws_pictures() -> None:
    code = "from rljob_runtime.task.data.gym import make_dataset\n"
    code += "assert make_dataset('game_of_life', {}, seed=1, size=1)[0]['question']"

    loaded = modules_after(code)

    assert {"reasoning_gym", "cellpylib"} <= loaded
    assert "matplotlib" not in loaded


def test_workers_of_one_machine_are_forked_from_what_has_imported_torch_and_its_engines() -> None:
    loaded = modules_after("import rljob_runtime.processes.preloaded")

    assert {"torch", "numpy", "reasoning_gym", "rljob_runtime.update.update_torch"} <= loaded
    assert {"rljob_runtime.rollout.rollout_torch", "rljob_runtime.worker.build"} <= loaded
