"""Write docs/benchmarks.md, its pictures, docs/quickstart.md and docs/combinations.md from the files in
`benchmarks/measured/`, and the paper's models in docs/resharding.md from their plans.

`--check` compares instead. Nothing on those pages is typed by hand but the words around the tables.
"""

import json
import sys
from typing import Any

from benchmarks import ROOT
from benchmarks.dock.cluster_docs import cluster_parts, linearity_picture
from benchmarks.dock.limits import limits_parts
from benchmarks.engines.precision_docs import precision_parts, precision_picture
from benchmarks.learning.algorithms_docs import learning_parts, learning_picture, pretrained_parts
from benchmarks.learning.engines import engines_parts
from benchmarks.learning.failed_scores import failed_scores_parts
from benchmarks.learning.preferences_docs import preferences_parts, preferences_picture
from benchmarks.learning.shapes import shapes_parts
from benchmarks.learning.staleness_docs import staleness_parts, staleness_picture
from benchmarks.learning.turns_docs import turns_parts, turns_picture
from benchmarks.recovery.docs import recovery_picture
from benchmarks.reshard.docs import peaks_picture, reshard_parts
from benchmarks.reshard.paper import with_table
from benchmarks.run.ablation_docs import ablation_parts, ablation_picture
from benchmarks.run.combinations_docs import combinations_page
from benchmarks.run.flow_docs import busy_parts
from benchmarks.support.tables import side_by_side

MEASURED = ROOT / "benchmarks" / "measured"
SUBJECTS = {
    "rollout": "Generation: tokens a second of responses, beside Hugging Face `generate` and vLLM",
    "rollout_135M": "Generation: the same with the shape of SmolLM2-135M",
    "engine": "Training: seconds of a step in one process, beside transformers with torch's AdamW",
    "megatron": "The engine `megatron`: seconds of a step, beside the engine `torch` and transformers",
    "end_to_end": "Training: whole GRPO steps, beside TRL's GRPOTrainer",
    "flow": "Flow: seconds of a step where stages overlap, beside one after the other",
    "second_copies": "Recovery: seconds of a step with second copies, beside the same without",
    "partial_rollout": "Partial rollout: seconds of a step with a long tail of lengths",
    "analyze": "Advice: seconds of a step of slow jobs, changed as `rljob analyze` advises",
    "dock": "Transfer dock: samples through it, beside TransferQueue and Ray",
    "dock_paths": "Transfer dock: rows through the warehouse's memory, beside the same rows over TCP",
    "batches": "Transfer dock: a step's rows made tensors as they lie, beside the same through lists",
}
LIMITED = {
    "vision": "Training on pictures: whole GRPO steps, beside TRL's GRPOTrainer",
    "scaling": "Training: one rank and two, and what of a step is waiting",
    "search": "Layouts: the order that is predicted, and the order that is measured",
    "planned_memory": "The engine `megatron`: the most that a rank holds, planned and measured",
    "planned_time": "The engine `megatron`: seconds of a step, predicted and measured",
    "reshard": "Resharding: speed, what hides behind what, and memory",
    "reshard_separated": "Resharding: slices to separated devices, beside whole tensors",
    "performance": "The paper's runs: what they should take by arithmetic, and what is reported",
    "dock_cluster": "Transfer dock: several machines",
    "dock_metadata": "Transfer dock: what its metadata costs",
    "dock_share": "Transfer dock: its share of a step",
    "dock_churn": "Transfer dock: thousands of steps, and deaths",
    "dock_large": "Transfer dock: batches of 100 MB",
    "soak": "Soak: what hours of training keep, and what deaths leave",
    "recovery": "Recovery: what a death costs a run that goes on, and two hundred of them in one run",
    "restricted": "Rewards: what it costs to score in a process without rights",
    "long_log": "Long runs: what it takes to look at 100,000 steps",
    "controller": "The operator: a thousand RLJobs on a real API server",
    "upgrade": "The operator: `helm upgrade` while fifty RLJobs run",
    "clients": "The operator's client: what each of them costs beside kopf",
    "kuberay": "The operator beside the real KubeRay: 200 RLJobs on simulated nodes",
}
TABLES = {
    "dock_limits": ("Transfer dock: where its limits are at the paper's sizes", limits_parts),
    "precision": (
        "Lower precision: what it saves, and what it costs",
        precision_parts,
    ),
    "engines": (
        "The engine `megatron`: what whole runs learn, beside the engine `torch`",
        engines_parts,
    ),
    "shapes": ("Pictures: what a model learns to see, and without seeing", shapes_parts),
    "failed_scores": (
        "Failed scores: what a run learns where a tenth of them fail",
        failed_scores_parts,
    ),
    "learning": ("Algorithms: what they learn from as many tokens", learning_parts),
    "pretrained": ("Algorithms: what a pretrained model learns", pretrained_parts),
    "ablation": (
        "The paper's ablation: one job with both techniques, and without either",
        ablation_parts,
    ),
    "staleness": ("Staleness: what it costs, with correction and without", staleness_parts),
    "turns": ("Turns: what is learned with a tool, and in a game", turns_parts),
    "preferences": (
        "Preferences and other models: DPO, a reward model, a teacher",
        preferences_parts,
    ),
}
PICTURES = {
    "dock_cluster": ("dock-linearity.svg", linearity_picture),
    "reshard": ("reshard-peaks.svg", peaks_picture),
    "recovery": ("recovery.svg", recovery_picture),
    "learning": ("learning.svg", learning_picture),
    "pretrained": ("pretrained.svg", learning_picture),
    "ablation": ("ablation.svg", ablation_picture),
    "staleness": ("staleness.svg", staleness_picture),
    "turns": ("turns.svg", turns_picture),
    "precision": ("precision.svg", precision_picture),
    "preferences": ("preferences.svg", preferences_picture),
}
NOTES = MEASURED / "notes.json"
COMMANDS = {
    "rollout": "engines.rollout",
    "rollout_135M": "engines.rollout --sizes 135M",
    "engine": "engines.update",
    "megatron": "engines.megatron",
    "end_to_end": "run.end_to_end",
    "vision": "run.vision",
    "flow": "run.flow",
    "second_copies": "engines.second_copies",
    "partial_rollout": "run.partial_rollout",
    "analyze": "run.analyze",
    "dock": "dock.samples --repetitions 3",
    "dock_paths": "dock.paths",
    "batches": "dock.batches",
    "scaling": "engines.scaling",
    "search": "plan.search",
    "planned_memory": "plan.engines --only memory",
    "planned_time": "plan.engines --only time",
    "reshard": "reshard",
    "reshard_separated": "reshard.separated",
    "performance": "plan.performance",
    "dock_cluster": "dock.cluster",
    "dock_metadata": "dock.metadata",
    "dock_share": "run.dock_share",
    "dock_churn": "dock.churn",
    "dock_large": "dock.large --batches 3000",
    "dock_limits": "dock.limits",
    "soak": "run.soak",
    "recovery": "recovery",
    "long_log": "run.long_log",
    "controller": "operator.controller",
    "upgrade": "operator.upgrade",
    "clients": "operator.clients",
    "kuberay": "operator.kuberay",
    "precision": "engines.precision",
    "engines": "learning.engines",
    "shapes": "learning.shapes",
    "failed_scores": "learning.failed_scores",
    "restricted": "run.restricted",
    "learning": "learning.algorithms",
    "pretrained": "learning.pretrained",
    "ablation": "run.ablation",
    "staleness": "learning.staleness",
    "turns": "learning.turns --seeds 0 1 2",
    "preferences": "learning.preferences",
}
"""Behind `python -m benchmarks.`"""


def benchmarks() -> str:
    """The page of side-by-side figures."""
    parts = [
        "# Benchmarks",
        "Every table is one run of one command, ours and the peer taking turns on the same work; "
        "figures are medians with their least and greatest value. Ratios are what is claimed, "
        "absolute figures only describe the machine. This page is written by "
        "`benchmarks/write_docs.py` from `benchmarks/measured/`.",
    ]
    notes = _notes()
    for subject, title in (SUBJECTS | LIMITED).items():
        file = MEASURED / f"{subject}.json"
        if file.exists():
            document = json.loads(file.read_text())
            table = _limits(document) if subject in LIMITED else side_by_side(document)
            parts += [f"## {title}", f"`python -m benchmarks.{COMMANDS[subject]}`", table]
            if subject == "flow":
                parts += busy_parts(document)
            if subject == "dock_cluster":
                parts += cluster_parts(document)
            if subject == "reshard":
                parts += reshard_parts(document)
            parts += notes.get(subject, [])
            parts.append(_machine(document["machine"]))
    for subject, (title, tables) in TABLES.items():
        file = MEASURED / f"{subject}.json"
        if file.exists():
            document = json.loads(file.read_text())
            parts += [
                f"## {title}",
                f"`python -m benchmarks.{COMMANDS[subject]}`",
                *tables(document),
            ]
            parts += [*notes.get(subject, []), _machine(document["machine"])]
    return "\n\n".join(parts) + "\n"


def _notes() -> dict[str, list[str]]:
    """Paragraphs below the tables, by subject."""
    found: dict[str, list[str]] = json.loads(NOTES.read_text()) if NOTES.exists() else {}
    return found


def _measured(subject: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((MEASURED / f"{subject}.json").read_text())
    return document


def quickstart() -> str:
    """The page of the quickstart's seeds."""
    document = _measured("quickstart")
    rows = [
        "| seed | before | after | gain | minutes, all | minutes, training | response tokens/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in document["seeds"]:
        gain = row["after"] - row["before"]
        rows.append(
            f"| {row['seed']} | {row['before']:.1%} | {row['after']:.1%} ± {1.96 * row['stderr']:.1%} "
            f"| {100 * gain:+.1f} points | {row['seconds'] / 60:.1f} "
            f"| {row['training_seconds'] / 60:.1f} | {row['response_tokens_per_second']:,.0f} |"
        )
    prompts = document["seeds"][0]["prompts"]
    return (
        "\n\n".join(
            [
                "# The quickstart, measured",
                "`examples/quickstart.yaml`: the `tiny` model, warmed up until about half of its samples "
                "are right, learns to spell words backward with GRPO. Accuracy is that of one sample at "
                f"temperature 1 for each of {prompts} held-out words, which neither the warm-up nor the "
                "training sees. Every seed that was run is here: "
                "`python -m benchmarks.run.quickstart --seeds "
                f"{' '.join(str(row['seed']) for row in document['seeds'])}`.",
                "\n".join(rows),
                *_notes().get("quickstart", []),
                _machine(document["machine"]),
            ]
        )
        + "\n"
    )


def _limits(document: dict[str, Any]) -> str:
    rows = ["| | measured | wanted |", "|---|---|---|"]
    for found in document["figures"]:
        value, limit, least = found["value"], found["limit"], found.get("least")
        wanted = "" if limit is None else f"≤ {limit:g}{'' if value <= limit else ' (missed)'}"
        if least is not None:
            wanted = f"≥ {least:g}{'' if value >= least else ' (missed)'}"
        rows.append(f"| {found['name']} | {value:,.4g} {found['unit']} | {wanted} |")
    return "\n".join(rows)


def _machine(machine: dict[str, Any]) -> str:
    return "Machine: " + ", ".join(f"{name} {value}" for name, value in machine.items()) + "."


def main() -> None:
    """Write all of them, or exit with 1 if one is not up to date."""
    resharding = ROOT / "docs" / "resharding.md"
    pages = {
        resharding: with_table(resharding.read_text()),
        ROOT / "docs" / "benchmarks.md": benchmarks(),
        ROOT / "docs" / "quickstart.md": quickstart(),
        ROOT / "docs" / "combinations.md": combinations_page(_measured("combinations")),
    }
    for subject, (name, draw) in PICTURES.items():
        file = MEASURED / f"{subject}.json"
        if file.exists():
            pages[ROOT / "docs" / "images" / name] = draw(json.loads(file.read_text()))
    for file, text in pages.items():
        if "--check" not in sys.argv:
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            sys.exit(f"{file} is not up to date: python -m benchmarks.write_docs")


if __name__ == "__main__":
    main()
