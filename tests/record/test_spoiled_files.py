"""Whatever a file holds that rljob reads, it is read or an error of rljob's names it: no traceback, no hang.

Files as rljob or its user writes them are spoiled: bytes flip, ends are cut off, values become others.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference_models import config_of, make_reference
from run_events import make_events
from safetensors.torch import save
from vision_models import VISION_FAMILIES, make_vision_reference
from whole_runs import SMALL_JOB

from rljob_api.model.architecture import find_shape
from rljob_api.spec.infrastructure import RemoteStorage
from rljob_api.spec.lora import Lora
from rljob_api.spec.problems import InvalidJob
from rljob_api.spec.workload import Data, Model
from rljob_runtime.cli.cluster.fetch import ORIGIN, check_folder
from rljob_runtime.cli.doctor.run_folder import examine_run
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.errors import RljobError
from rljob_runtime.models.adapter_files import ADAPTER_FILE, read_adapter, save_adapter
from rljob_runtime.models.config import UnsupportedArchitecture, read_config
from rljob_runtime.models.export import find_best
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.rope import axes_of_pairs, inverse_frequencies
from rljob_runtime.models.tensor_files import INDEX_FILE, WEIGHTS_FILE, TensorFiles
from rljob_runtime.record.best import BEST_FILE, Best
from rljob_runtime.record.checkpoint import STATE_FILE, CheckpointStore, RunState, read_state
from rljob_runtime.record.checksums import SUMS_FILE, check_files
from rljob_runtime.record.driver_file import DRIVER_NAME, killed_driver_pid
from rljob_runtime.record.kept_logprobs import LogprobCache, row_key
from rljob_runtime.record.remote import MARKER, open_remote
from rljob_runtime.report.analysis.analysis_text import analysis_json
from rljob_runtime.report.analysis.run import analyze_run
from rljob_runtime.report.display.document import document
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.run_diff import ComparedRun, diff_json, diff_runs
from rljob_runtime.run.hangs.request import ask_run
from rljob_runtime.task.data.data_problems import data_problems
from rljob_runtime.task.data.entries import to_json
from rljob_runtime.task.data.source import read_questions
from rljob_runtime.task.tokenizer import MARKER as TOKENIZER
from rljob_runtime.task.tokenizer import load_tokenizer, save_byte_tokenizer

BOUNDED = settings(
    deadline=timedelta(seconds=5), suppress_health_check=[HealthCheck.too_slow], max_examples=60
)
DEEP = 5000
BEFORE = Path(__file__).parent / "events" / "events_of_before.jsonl"
TIMES = ("time", "start", "end")
ODD = [
    "null", "true", "0", "-1", "1.5", "1e400", "-1e300", "NaN", "-Infinity", "9" * 400, "9" * 5000,
    "4611686018427387904", '""', '"x"', '"\\ud800"', '"\\u0000"', '"../../etc/passwd"', '"/dev/zero"',
    '"' + "a" * 300 + '"', "[]", "{}", "[[1]]", '{"\\udc00":1}', '["x"]', "[1,2]", "[NaN]",
    "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "[" * 190 + "]" * 190,
]  # fmt: skip
"""In place of a value of JSON."""
HOLE = "the value that goes"


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values below, its own first."""
    keys: Any = value if isinstance(value, dict) else ()
    keys = range(len(value)) if isinstance(value, list) else keys
    return [path, *(place for key in keys for place in places(value[key], (*path, key)))]


@dataclass(frozen=True, slots=True)
class Spoil:
    """Spoils a file at a place: its bytes, or a value of its JSON, of one of its lines or of its header."""

    way: str
    place: int
    line: int
    bit: int
    odd: str

    def __call__(self, content: bytes) -> bytes:
        at = self.place % len(content)
        match self.way:
            case "flip":
                return content[:at] + bytes([content[at] ^ 1 << self.bit]) + content[at + 1 :]
            case "cut":
                return content[:at]
            case "put":
                return content[:at] + self.odd.encode() + content[at:]
        if content[8:9] == b"{":  # safetensors: the header's length, the header, values
            size = int.from_bytes(content[:8], "little")
            header = self._with_odd(content[8 : 8 + size])
            return len(header).to_bytes(8, "little") + header + content[8 + size :]
        lines = [content] if content[:2] in (b"{\n", b"[\n") else content.splitlines()
        number = self.line % len(lines)
        try:
            lines[number] = self._with_odd(lines[number])
        except ValueError:  # no JSON at all
            return content[:at] + self.odd.encode() + content[at + len(self.odd) :]
        return b"\n".join(lines)

    def _with_odd(self, text: bytes) -> bytes:
        """JSON in which one value, or that of a new key, is an odd one."""
        holder = [json.loads(text)]
        found = places(holder[0])
        *path, last = (0, *found[self.place % len(found)])
        inner: Any = holder
        for step in path:
            inner = inner[step]
        if self.way == "key" and isinstance(inner[last], dict):
            inner, last = inner[last], "x"
        inner[last] = HOLE
        return json.dumps(holder[0]).replace(f'"{HOLE}"', self.odd, 1).encode()


SPOILS = st.builds(
    Spoil,
    st.sampled_from(["value", "value", "value", "key", "flip", "cut", "put"]),
    st.integers(0, 1 << 20),
    st.integers(0, 1 << 10),
    st.integers(0, 7),
    st.sampled_from(ODD),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of file. make: a good one in a folder; its place. read: the folder. told: by errors that do not
    name the file."""

    make: Callable[[Path], Path]
    read: Callable[[Path], object]
    told: str = ""


def written(folder: Path, name: str, *values: Any) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(value) + "\n" for value in values))
    return file


def whole_run() -> list[Any]:
    """A run's events of before, as those of four steps."""
    events = [json.loads(line) for line in BEFORE.read_text().splitlines()]
    last = events.pop(next(n for n, e in enumerate(events) if e["kind"] == "run_finished"))
    seconds = events[-1]["time"] - events[0]["time"]

    def at(step: int, event: dict[str, Any]) -> dict[str, Any]:
        moved = {key: event[key] + step * seconds for key in TIMES if key in event}
        return {**event, **moved, **({"step": step + 1} if "step" in event else {})}

    first, *others = events
    return [first, *(at(step, event) for step in range(4) for event in others), at(4, last)]


def events_of(events: list[Any], folder: Path) -> Path:
    file = written(folder, "events.jsonl", *events)
    (folder / "rljob.yaml").write_text(json.dumps(SMALL_JOB))
    return file


def show_events(folder: Path) -> None:
    history = RunHistory.read(folder / "events.jsonl")
    json.dumps(document(history, ""), allow_nan=False).encode()
    run = ComparedRun.of(folder)
    json.dumps(diff_json(diff_runs(run, run))).encode()
    examine_run(folder)
    json.dumps(analysis_json(analyze_run(folder))).encode()


def read_prompts(data: Data, folder: Path) -> None:
    problems = data_problems(data, base_dir=folder)
    if problems:
        raise InvalidJob(problems)
    for question in read_questions(data, folder):
        text = json.dumps([*question.fields.values(), question.answer, to_json(question.entry)])
        json.dumps(json.loads(text), ensure_ascii=False).encode()


PROMPTS = Data.model_validate({"jsonl": {"path": "data.jsonl"}})
PAIRS = Data.model_validate({"preferences": {"path": "pairs.jsonl"}})
COLUMNS = Data.model_validate({"preferences": {"path": "pairs.parquet"}})
TABLE = Data.model_validate({"parquet": {"path": "pairs.parquet", "answerField": "chosen"}})
PAIR = {"prompt": "p", "chosen": "a", "rejected": "b"}


def parquet_of(folder: Path) -> Path:
    import pyarrow
    import pyarrow.parquet as parquet

    table = pyarrow.Table.from_pylist([PAIR, {**PAIR, "chosen": "c"}])
    parquet.write_table(table, folder / "pairs.parquet")
    return folder / "pairs.parquet"


STATE = RunState(
    step=3, seed=1, weight_version=3, dock_rows=0, spec_digest="d", open_prompts=[4], difficulty=[[1, 2, 3]]
)  # fmt: skip


def checkpoint_of(folder: Path) -> Path:
    store = CheckpointStore(folder=folder / "checkpoints", keep=2)
    store.begin(STATE.step)
    return store.commit(STATE)


def best_of(folder: Path) -> Path:
    best = Best(metric="accuracy")
    best.take(0, 0.5)
    best.write(folder / "checkpoints")
    return folder / "checkpoints" / BEST_FILE


def read_best(folder: Path) -> None:
    Best.read(folder / "checkpoints", "accuracy").until(3)
    examine_run(folder)
    find_best(folder)


@cache
def config(family: str) -> dict[str, Any]:
    vision = family in VISION_FAMILIES
    return config_of(make_vision_reference(family) if vision else make_reference(family))


def model_of(family: str, folder: Path) -> Path:
    return written(folder, "config.json", config(family))


def read_model(folder: Path) -> None:
    find_shape(Model(path="."), base_dir=folder)
    try:
        architecture = read_architecture(read_config(folder))
    except UnsupportedArchitecture as refused:
        assert str(refused)
        return
    if architecture.rotated_dim < 1 << 20:
        inverse_frequencies(architecture.rotated_dim, architecture.rope)
        if architecture.rope.sections is not None:
            axes_of_pairs(architecture.rope)


def tensors_of(folder: Path) -> Path:
    model_of("llama", folder)
    tensors = {
        "a.weight": torch.ones(2, 3),
        "model.layers.0.b": torch.ones(2, dtype=torch.bfloat16),
    }
    (folder / WEIGHTS_FILE).write_bytes(save(tensors))
    return folder / WEIGHTS_FILE


def index_of(folder: Path) -> Path:
    tensors_of(folder)
    names = {"a.weight": WEIGHTS_FILE, "model.layers.0.b": WEIGHTS_FILE}
    return written(folder, INDEX_FILE, {"metadata": {"total_size": 28}, "weight_map": names})


def read_tensors(folder: Path) -> None:
    files = TensorFiles(folder).split_stacks()
    for name in files.tensors:
        files.read(name)


ADAPTERS = {f"layer.q.lora_{half}.weight": (2, 2) for half in "AB"}


def adapter_of(folder: Path) -> Path:
    tensors = [(name, torch.ones(*shape)) for name, shape in ADAPTERS.items()]
    (folder / "config.json").write_text("{}")
    save_adapter(tensors, Lora(rank=2), base=folder, folder=folder / "adapter")
    return folder / "adapter" / ADAPTER_FILE


def kept_of(folder: Path) -> Path:
    kept = LogprobCache(folder=folder / "rows")
    row = np.ones(3, dtype=np.float32)
    kept.add([row_key(np.arange(2), np.arange(3))], Ragged.from_rows([row]))
    kept.write_new_rows()
    return next((folder / "rows").iterdir())


def copied(folder: Path) -> Path:
    remote = open_remote(RemoteStorage(uri=f"file://{folder}/far"), "run")
    remote.put_checkpoint(STATE.step, checkpoint_of(folder))
    return folder / "far/run/checkpoints/step-000003" / MARKER


def tokenizer_of(folder: Path) -> Path:
    save_byte_tokenizer(folder)
    return folder / TOKENIZER


def driver_of(folder: Path) -> Path:
    return written(folder, DRIVER_NAME, {"pid": 4194999, "started": 1.5, "host": "somewhere"})


def read_driver(folder: Path) -> None:
    killed_driver_pid(folder, since=0.0)
    ask_run(folder, seconds=0.1)


JOB = {"metadata": {"uid": "1", "name": "words"}}


def fetched(folder: Path) -> Path:
    written(folder, "events.jsonl")
    return written(folder, ORIGIN, JOB)


KINDS = {
    **{
        name: Kind(make=partial(events_of, events), read=show_events, told="analysis needs")
        for name, events in {"made run": make_events(steps=4, every=2), "run": whole_run()}.items()
    },
    "prompts": Kind(
        make=lambda folder: written(folder, "data.jsonl", *[{"prompt": "p", "answer": 1}] * 3),
        read=lambda folder: read_prompts(PROMPTS, folder),
    ),
    "pairs": Kind(
        make=lambda folder: written(folder, "pairs.jsonl", PAIR, PAIR),
        read=lambda folder: read_prompts(PAIRS, folder),
    ),
    "parquet": Kind(make=parquet_of, read=lambda folder: read_prompts(COLUMNS, folder)),
    "table": Kind(make=parquet_of, read=lambda folder: read_prompts(TABLE, folder)),
    "state": Kind(
        make=lambda folder: checkpoint_of(folder) / STATE_FILE,
        read=lambda folder: read_state(folder / "checkpoints/step-000003"),
    ),
    "checksums": Kind(
        make=lambda folder: checkpoint_of(folder) / SUMS_FILE,
        read=lambda folder: check_files(folder / "checkpoints/step-000003"),
        told="step-000003",
    ),
    "best": Kind(make=best_of, read=read_best, told="best"),
    **{
        family: Kind(make=partial(model_of, family), read=read_model)
        for family in ("llama", "qwen3-moe", "deepseek-v3", "qwen2.5-vl", "qwen3-vl")
    },
    "tensors": Kind(make=tensors_of, read=read_tensors),
    "index": Kind(make=index_of, read=read_tensors),
    "adapter": Kind(make=adapter_of, read=lambda folder: read_adapter(folder / "adapter", ADAPTERS)),
    "kept log-probs": Kind(
        make=kept_of, read=lambda folder: LogprobCache(folder=folder / "rows").load_new_files()
    ),
    "copy": Kind(
        make=copied,
        read=lambda folder: open_remote(
            RemoteStorage(uri=f"file://{folder}/far"), "run"
        ).steps(),
    ),
    "tokenizer": Kind(make=tokenizer_of, read=load_tokenizer),
    "driver": Kind(make=driver_of, read=read_driver, told="run lives"),
    "job of a cluster": Kind(
        make=fetched, read=lambda folder: check_folder(JOB, folder), told="holds another run"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@BOUNDED
@given(spoil=SPOILS)
def test_a_spoiled_file_is_read_or_named(kind: str, spoil: Spoil) -> None:
    with tempfile.TemporaryDirectory() as name:
        chosen, folder = KINDS[kind], Path(name)
        file = chosen.make(folder)
        file.write_bytes(spoil(file.read_bytes()))

        try:
            chosen.read(folder)
        except (RljobError, InvalidJob) as error:
            said = str(error)
            assert said.encode()
            assert file.name in said or (chosen.told and chosen.told in said), said
