"""What the documentation says of a job or of a run's folder is run as it stands there."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from documented import PAGES, ROOT, SHELLS, Command, blocks_of, commands_of
from run_events import make_events
from typer.testing import CliRunner

from rljob_api.check.load import load_job
from rljob_api.topology.resolved import resolve
from rljob_runtime.cli.main import app

OF_JOBS = ("validate", "plan")
OF_FOLDERS = ("report", "diff", "analyze", "watch")
COMMANDS = [
    command
    for page in PAGES
    for block in blocks_of(page)
    if block.language in SHELLS
    for command in commands_of(block)
    if command.words[0] == "rljob"
]


def of_a_folder(command: Command) -> bool:
    """Whether it asks a run's folder, and ends by itself."""
    name, first, *rest = (*command.words[1:], "")
    return name in OF_FOLDERS and first.startswith("runs/") and "--web" not in rest


RUN = [c for c in COMMANDS if c.words[1] in OF_JOBS or of_a_folder(c)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, a job and seven runs that have ended."""
    root = tmp_path_factory.mktemp("checkout")
    (root / "examples").symlink_to(ROOT / "examples")
    shutil.copy(ROOT / "examples" / "quickstart.yaml", root / "job.yaml")
    resolved = resolve(load_job(root / "job.yaml"))
    job = resolved.model_dump(mode="json", by_alias=True, exclude_none=True)
    for seed, name in enumerate(("NAME", *"ABCDEF")):
        run = root / "runs" / name
        run.mkdir(parents=True)
        (run / "rljob.yaml").write_text(yaml.safe_dump(job))
        events = make_events(steps=20, seed=seed)
        (run / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    return root


@pytest.mark.parametrize("command", RUN, ids=str)
def test_a_command_ends_well(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)

    done = CliRunner().invoke(app, list(command.words[1:]))

    assert done.exit_code == 0, done.output
    assert done.output.strip()


def test_each_of_these_commands_is_shown_somewhere() -> None:
    assert {command.words[1] for command in RUN} == {*OF_JOBS, *OF_FOLDERS}
