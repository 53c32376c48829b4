"""Put deliberate faults into a copy of this tree, one after the other, and see which tests notice.

    .venv/bin/python tests/faults/run_faults.py [NAME...] [--check] [--compare OLD.json]

Each is tried with the test files that import its module first, then with those of the folders that do,
then with everything that starts neither Ray nor vLLM; what survives that meets whole runs. A fault is
caught by the first test that fails; `first` in faults.yaml names a file that is tried before the others.
Results go to results.json and README.md beside this file.
"""

import argparse
import ast
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS, TABLE = HERE / "results.json", HERE / "README.md"
BEFORE = HERE / "before.json"
"""Results of the tree as it was when each run of its tests still started Ray, for the table."""
PACKAGES = ("crds", "operator", "runtime")
COPIED = (".ci", ".github", "benchmarks", "crds", "docs", "e2e", "examples", "helm", "images", "operator",
          "runtime", "scripts", "tests")  # fmt: skip
ROUNDS = ("files that import it", "their folders", "all but whole runs", "whole runs")
ROUND_SECONDS = (240, 420, 900, 1500)
NOBODY = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.com")
QUICK, WHOLE = "not ray and not vllm and not run", "run or ray"
FAILED = re.compile(
    r"^(?:\[gw\d+\] \[ *\d+%\] )?(?:FAILED|ERROR) (\S+(?:\[.*?\])?)"
    r"|^(\S+::\S+(?:\[.*?\])?) (?:FAILED|ERROR)",
    re.MULTILINE,
)
"""A test that failed, in the summary or as soon as it did, with workers and without."""

Fault = dict[str, str]


def faults() -> list[Fault]:
    """All of them."""
    return list(yaml.safe_load((HERE / "faults.yaml").read_text()))


def misfits() -> list[str]:
    """Faults whose text does not occur exactly once, each with what was found."""
    found = []
    for fault in faults():
        file = ROOT / fault["file"]
        times = file.read_text().count(fault["old"]) if file.exists() else 0
        if times != 1:
            found.append(f"fault {fault['name']}: its text occurs {times} times in {fault['file']}")
    return found


@cache
def imports(file: Path) -> frozenset[str]:
    """Modules that a file names in imports, and in `from` imports also what may be a module."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def importers(module: str) -> list[Path]:
    """Test files that import it, themselves or through a helper of tests/support or a conftest."""
    support = {f.stem: f for f in (ROOT / "tests/support").rglob("*.py")}

    def does(file: Path, seen: frozenset[Path] = frozenset()) -> bool:
        if module in imports(file):
            return True
        helpers = {support[name] for name in imports(file) & support.keys()} - seen
        return any(does(helper, seen | {file, *helpers}) for helper in helpers)

    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    return sorted(filter(does, tests), key=lambda file: (module not in imports(file), file))


def rounds_of(fault: Fault) -> list[tuple[list[str], str]]:
    """Of each round, what is run, and which markers."""
    path = Path(fault["file"])
    module = ".".join(path.with_suffix("").parts[1:])
    files = importers(module)
    if not files:  # by those who import what imports it
        package = module.rpartition(".")[0]
        files = importers(package) or [
            f for f in (ROOT / "tests").rglob("test_*.py") if any(
                name.startswith(f"{package}.") for name in imports(f))
        ]  # fmt: skip
    folders = sorted({f.parent for f in files})
    named = [*fault.get("first", "").split(), *(str(f.relative_to(ROOT)) for f in files)]
    return [
        (named, QUICK),
        ([str(f.relative_to(ROOT)) for f in folders], QUICK),
        (["tests"], QUICK),
        (["tests"], WHOLE),
    ]


def tried(fault: Fault, copy: Path, most_rounds: int) -> dict[str, Any]:
    """Which tests notice it, in which round."""
    file = copy / fault["file"]
    whole = file.read_text()
    assert whole.count(fault["old"]) == 1, f"{fault['name']}: another text"
    file.write_text(whole.replace(fault["old"], fault["new"]))
    began = time.monotonic()
    try:
        for number, (paths, markers) in enumerate(rounds_of(fault)[:most_rounds]):
            if paths and (found := failing(copy, paths, markers, number)):
                seconds = round(time.monotonic() - began)
                return {"round": ROUNDS[number], "tests": found, "seconds": seconds}
    finally:
        file.write_text(whole)
    return {"round": None, "tests": [], "seconds": round(time.monotonic() - began)}


def failing(copy: Path, paths: list[str], markers: str, number: int) -> list[str]:
    """The first tests that fail within the round's time."""
    seconds = ROUND_SECONDS[number]
    own = os.pathsep.join(str(copy / package) for package in PACKAGES)
    environment = {
        **os.environ,
        "PYTHONPATH": own,
        "OMP_NUM_THREADS": "1",
        "RLJOB_REQUIRE": "",
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "pytest", "-v", "--maxfail=1", "-m", markers]
    command += ["-o", "timeout=90"]  # a test that waits because of the fault has noticed it
    parallel = ["-n", "2", "--dist", "loadgroup"] if len(paths) > 4 or number else ["-n", "0"]
    with tempfile.TemporaryFile("w+") as said:
        pytest = subprocess.Popen(
            [*command, *parallel, *paths], cwd=copy, env=environment, stdout=said,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = pytest.wait(seconds)
        except subprocess.TimeoutExpired:  # the next round has more
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pytest.pid, signal.SIGKILL)
            pytest.wait()
        said.seek(0)
        found = [one or other for one, other in FAILED.findall(said.read())]
    if found or code in (None, 0, 5):
        return list(dict.fromkeys(found))
    return [f"(pytest ended with {code})"]


def copied(folder: Path) -> Path:
    """This tree's sources in a folder of their own."""
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.glob("*"):
        if file.is_file() and file.name != ".git":  # of a worktree
            shutil.copy2(file, folder)
    for words in (["init", "-q"], ["add", "-A"], [*NOBODY, "commit", "-qm", "a copy"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def write_table(results: dict[str, Any]) -> None:
    """The results as a page."""
    known = {fault["name"]: fault for fault in faults()}
    before = json.loads(BEFORE.read_text()) if BEFORE.exists() else {}
    caught, then = (
        sum(bool(found["round"]) for found in all_.values()) for all_ in (results, before)
    )
    lines = [
        "# Deliberate faults", "",
        f"{len(known)} mistakes that a developer could make (`faults.yaml`), and who notices each first:",
        f"{caught} of {len(results)} tried are caught; before the tests were made faster, {then} of",
        f"{len(before)} were. `run_faults.py` puts them, one after the other, into a copy of this tree, and",
        "writes this page; with `--compare before.json` it says what was noticed before and is not now.", "",
        "| fault | what is wrong | noticed by | in round | before, by |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, fault in known.items():
        if name in results:
            found = results[name]
            was = _first(before[name]) if name in before else ""
            lines.append(
                f"| {name} | {fault['why']} | {_first(found)} | {found['round'] or ''} | {was} |"
            )
    TABLE.write_text("\n".join(lines) + "\n")


def _first(found: dict[str, Any]) -> str:
    return f"`{found['tests'][0].removeprefix('tests/')}`" if found["tests"] else "nobody"


def say(*words: object) -> None:
    """To whoever waits."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main() -> int:
    """0 where every fault is in place and none that was noticed before escapes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*")
    options.add_argument("--check", action="store_true", help="only whether each is in place")
    options.add_argument("--compare", type=Path, metavar="OLD.json")
    options.add_argument("--rounds", type=int, default=4)
    options.add_argument("--results", type=Path, default=RESULTS)
    asked = options.parse_args()
    for wrong in misfits():
        say(wrong)
    if asked.check or misfits():
        return bool(misfits())
    results = json.loads(asked.results.read_text()) if asked.results.exists() else {}
    with tempfile.TemporaryDirectory(prefix="rljob-faults-") as folder:
        copy = copied(Path(folder))
        for fault in faults():
            if asked.names and fault["name"] not in asked.names:
                continue
            results[fault["name"]] = found = tried(fault, copy, asked.rounds)
            noticed = [found["round"] or "SURVIVES", *found["tests"][:1]]
            say(fault["name"], *noticed, f"{found['seconds']} s")
            asked.results.write_text(json.dumps(results, indent=1) + "\n")
            write_table(results)
    if asked.compare:
        before = json.loads(asked.compare.read_text())
        lost = [n for n, was in before.items() if was["round"] and not results.get(n, was)["round"]]
        say("noticed before, and not now:", ", ".join(lost) or "none")
        return bool(lost)
    return 0


if __name__ == "__main__":
    sys.exit(main())
