"""Every command of the documentation is one that its program takes: nothing else stands there.

A fenced command is read whole by its program (the command line's own parser, kubectl, Helm, a benchmark's
argparse). What is cheap is run in `test_commands_that_are_run.py` and, on a real API server, in
`tests/operator/on_the_server/test_documented_kubectl.py`; continuous integration runs `make run` and
`make test`.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from documented import (
    PAGES,
    ROOT,
    SHELLS,
    Block,
    Command,
    blocks_of,
    code_of,
    commands_in,
    commands_of,
    name_of,
)
from documented_programs import (
    CLIENTS,
    E2E_SCRIPT,
    MAKEFILE,
    READERS,
    Refused,
    read_by_a_client_without_a_cluster,
    read_mention,
)
from programs import require

OF_SCRIPTS = {
    "helm repo add kuberay https://ray-project.github.io/kuberay-helm/": "https://ray-project.github.io/kuberay-helm/",
    "helm install kuberay-operator kuberay/kuberay-operator --version 1.6.2 --namespace kuberay "
    "--create-namespace": "kuberay=1.6.2",
}
"""Commands that need another project's charts, and what scripts/e2e.sh, which installs them, says of each."""

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
COMMANDS = [c for block in BLOCKS if block.language in SHELLS for c in commands_of(block)]


def mentions() -> list[Command]:
    """Commands within sentences: a program and a word at least."""
    found = []
    for page in PAGES:
        for code in code_of(page):
            first, *rest = code.split(" ")
            if rest and first in (*READERS, *CLIENTS):
                found += commands_in(code, page=page)[:1]
    return list({command.words: command for command in found}.values())


MENTIONS = mentions()
BENCHES = re.findall(r"^\t\$\(PY\) -m (benchmarks\.(?!write_docs).*)$", MAKEFILE, re.MULTILINE)
INVOCATIONS = {
    *(tuple(line.split()) for line in BENCHES),
    *(
        c.words[2:]
        for c in (*COMMANDS, *MENTIONS)
        if " ".join(c.words).startswith("python -m benchmarks.")
    ),
}


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_fenced_command_is_read_by_its_program(command: Command, tmp_path: Path) -> None:
    program, text = command.words[0], " ".join(command.words)

    if text in OF_SCRIPTS:
        assert OF_SCRIPTS[text] in E2E_SCRIPT
    elif program in CLIENTS:
        read_by_a_client_without_a_cluster(command, tmp_path)
    else:
        assert program in READERS, f"{command}: nobody checks {program}; add it to READERS"
        READERS[program](command)


@pytest.mark.parametrize("command", MENTIONS, ids=str)
def test_a_command_within_a_sentence_exists(command: Command, tmp_path: Path) -> None:
    program, *words = command.words

    if program == "rljob":
        read_mention(command)
    elif program in CLIENTS and len(words) > 1:
        read_by_a_client_without_a_cluster(command, tmp_path)
    elif program in CLIENTS:
        require(program, shutil.which(program), f"there is no {program} on PATH")
        subprocess.run([program, *words, "--help"], check=True, capture_output=True)
    else:
        READERS[program](command)


READ_ALL = """
import argparse, json, runpy, sys

class Read(BaseException):
    pass

def read(parser, *arguments):
    parse(parser, *arguments)
    raise Read

parse, argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_args, read
for words in json.load(sys.stdin):
    sys.argv = words
    try:
        runpy.run_module(words[0], run_name="__main__")
    except Read:
        continue
    except SystemExit:
        pass
    print(*words)
"""


def refused(invocations: Sequence[Sequence[str]]) -> str:
    """Which of these each module's own parser does not take, with what it says."""
    paths = [str(ROOT), *map(str, (ROOT / "tests" / "support").iterdir())]
    program = f"import sys; sys.path[:0] = {paths!r}{READ_ALL}"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, input=json.dumps(invocations), capture_output=True,
        text=True, timeout=600,
    )  # fmt: skip
    return done.stdout + (done.stderr if done.returncode or done.stdout else "")


def test_every_benchmark_takes_the_arguments_that_are_shown() -> None:
    assert len(INVOCATIONS) > 20

    assert refused(sorted(INVOCATIONS)) == ""


def test_an_option_that_a_benchmark_has_not_is_found() -> None:
    assert "unrecognized arguments: --quickly" in refused([("benchmarks.run.flow", "--quickly")])


@pytest.mark.parametrize(
    "text",
    [
        "rljob plan", "rljob plan job.yaml --serach", "rljob export runs/NAME model --dtype float8",
        "make tests", "pip install '.[clusters]'", "pytest -m gpu tests/devices/kernels",
    ],
)  # fmt: skip
def test_a_wrong_command_is_found(text: str) -> None:
    (command,) = commands_in(text, page=ROOT / "README.md")

    with pytest.raises(Refused):
        READERS[command.words[0]](command)


@pytest.mark.parametrize("text", ["kubectl get rljobs --wach", "helm install rljob helm/rlob"])
def test_a_wrong_call_of_a_cluster_is_found(text: str, tmp_path: Path) -> None:
    (command,) = commands_in(text, page=ROOT / "README.md")

    with pytest.raises(AssertionError):
        read_by_a_client_without_a_cluster(command, tmp_path)


def test_no_command_hides_in_a_block_without_a_language() -> None:
    programs = {*READERS, *CLIENTS}

    def begins_with_a_program(block: Block) -> bool:
        return any(line.split(" ")[0] in programs for line in block.text.splitlines())

    hidden = [block for block in BLOCKS if not block.language and begins_with_a_program(block)]
    assert [f"{name_of(block.page)}:{block.line}" for block in hidden] == []


def test_the_values_that_the_page_on_installing_names_are_the_charts() -> None:
    schema = json.loads((ROOT / "helm" / "rljob" / "values.schema.json").read_text())
    text = (ROOT / "docs" / "install.md").read_text()
    rows = text[text.index("### Values that matter") : text.index("### What the operator may do")]
    keys = re.findall(r"`([\w.*]+)", "\n".join(re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE)))

    assert len(keys) > 8
    named = set(re.findall(r'"(\w+)":', json.dumps(schema)))
    assert [key for key in keys if not set(key.replace("*.", "").split(".")) <= named] == []
