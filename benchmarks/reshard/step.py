"""What resharding is of a training step, in whole runs through the command line. Called by `__main__`."""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.support.figures import Figures
from benchmarks.support.models import SIZES, make_model
from benchmarks.support.runs import history_of
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.reshard_figures import standstill_share
from rljob_runtime.task.tokenizer import save_byte_tokenizer

MIB = 2**20
WARM_UP_STEPS = 1
REWARD = '''
def reward(prompt, response, answer):
    """Of as many values as groups need to differ."""
    return float(sum(map(ord, response)) % 3)
'''


def job_of(model: Path, strategy: str, steps: int) -> dict[str, Any]:
    """Two devices that train one model, and generate with one each."""
    return {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "reshard"},
        "spec": {
            "steps": steps,
            "seed": 1,
            "model": {"path": str(model)},
            "data": {"jsonl": {"path": "prompts.jsonl"}},
            "rewards": [{"name": "any", "type": "python", "python": {"path": "any.py"}}],
            "batch": {
                "globalBatchSize": 8,
                "samplesPerPrompt": 8,
                "maxPromptLength": 16,
                "maxResponseLength": 48,
            },
            "update": {"parallelism": {"tensor": 2}},
            "resharding": {"strategy": strategy},
            "accelerator": {"type": "emulated", "devicesPerNode": 2},
        },
    }


def measure_step(size: str, figures: Figures, *, steps: int) -> None:
    """Of a run of so many steps; models of `size` are random."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = make_model(folder / "model", SIZES[size])
        save_byte_tokenizer(model)
        prompts = [json.dumps({"prompt": f"count to {n}=", "answer": ""}) for n in range(64)]
        (folder / "prompts.jsonl").write_text("\n".join(prompts))
        (folder / "any.py").write_text(REWARD)
        history = history_of(job_of(model, "allgather-swap", steps), folder, "allgather-swap")
    add_step(f"run of {size}", history, figures)


def add_step(name: str, history: RunHistory, figures: Figures) -> None:
    """Medians over the steps of a run: seconds of a reshard, its share of a step, what is hidden of the way
    back; and the run's peak beside its bound, with what stays."""
    steps = sorted(history.steps)[WARM_UP_STEPS:]
    told = [history.reshards[step] for step in steps]
    taken = [history.steps[step].seconds for step in steps]
    synced = [history.phase_seconds(step)["sync"] for step in steps]
    shares = [standstill_share(one, history.seconds(one.step)) or 0.0 for one in told]
    checked = [part / whole for part, whole in zip(synced, taken, strict=True)]
    fullest = max(told, key=lambda reshard: reshard.peak_bytes)
    median = statistics.median
    figures.add(f"{name}: reshard", 1000 * median(one.seconds for one in told), "ms")
    figures.add(f"{name}: of a training step", 100 * median(shares), "%")
    figures.add(f"{name}: of a step, with all checks", 100 * median(checked), "%")
    hidden = median(one.overlap or 0.0 for one in told)
    figures.add(f"{name}: way back, hidden", 100 * hidden, "%")
    bound = fullest.bound_bytes / MIB
    figures.add(f"{name}: peak of a device", fullest.peak_bytes / MIB, "MiB", bound)
    kept = max(one.kept_bytes or 0 for one in told)
    figures.add(f"{name}: redundant bytes", kept, "bytes", 0)
