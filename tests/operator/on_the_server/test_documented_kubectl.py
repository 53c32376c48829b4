"""What the documentation tells kubectl about RLJobs, on a real API server."""

import subprocess
from collections.abc import Callable

import pytest
from documented import PAGES, Command, blocks_of, code_of, commands_in, commands_of

JOB = "separated"
FENCED = [command for page in PAGES for block in blocks_of(page) for command in commands_of(block)]
WITHIN = [
    command
    for page in PAGES
    for code in code_of(page)
    if code.startswith("kubectl ") and len(code.split()) > 2
    for command in commands_in(code, page=page)
]
SPOKEN_OF = ("rljob", "rljobs", "rljobs.rljob.io", "examples/quickstart.yaml")
COMMANDS = {
    command.words: command
    for command in (*FENCED, *WITHIN)
    if command.words[0] == "kubectl" and set(SPOKEN_OF) & set(command.words)
}
SUSPENDED = '{"spec": {"suspend": true}}'
BESIDE = {
    "delete": ["--dry-run=server"],  # the kind and other tests' jobs stay
    "scale": ["--dry-run=server"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=str)
def test_a_command_about_rljobs_is_answered(
    command: Command, kubectl: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    assert kubectl("apply", "-f", f"examples/{JOB}.yaml").returncode == 0
    if any('"suspend": false' in word for word in command.words):  # with another layout: only then
        assert kubectl("patch", "rljob", JOB, "--type", "merge", "-p", SUSPENDED).returncode == 0
    names = {"NAME": JOB, "N": "2"}
    words = [names.get(word, word) for word in command.words[1:] if word != "--watch"]

    done = kubectl(*words, *BESIDE.get(words[0], []))

    assert done.returncode == 0, done.stderr
    assert done.stdout or done.stderr
