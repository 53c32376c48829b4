"""Which pinned facts of Ascend's projects another release changes: `ascend_facts.py PROJECT [FOLDER]`.

Facts are in tests/fixtures/ascend, a file a release, each with file and line of the project's source; tests
hold this project to them. FOLDER has the other release's source; default: where its package is installed.
Ends with 1 where a fact changed or is gone, after saying which file of ours builds on it. With
`--pin RELEASE` it writes the facts as they are there. Nothing is downloaded.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

PINNED = Path(__file__).parents[1] / "tests" / "fixtures" / "ascend"
HEAD = "# What this project builds on, and where the release's source says it; see scripts/ascend_facts.py."


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One of a release. finds: an expression whose groups are the value. ours: what builds on it. commit: of
    the source, where it was read in a repository."""

    name: str
    says: str
    file: str
    line: int
    finds: str
    value: str
    ours: str
    commit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A project's facts in one release. package: Python's, or empty."""

    project: str
    release: str
    package: str
    facts: tuple[Fact, ...]

    def value(self, name: str) -> str:
        """Of a fact. Raises KeyError where the release has none of that name."""
        return {fact.name: fact.value for fact in self.facts}[name]


def pinned(project: str = "") -> list[Release]:
    """All releases of a project, or of all of them, in the files' order."""
    found = (read_release(path) for path in sorted(PINNED.glob("*.toml")))
    return [release for release in found if release.project == (project or release.project)]


def read_release(path: Path) -> Release:
    """A file of facts."""
    told = tomllib.loads(path.read_text())
    facts = tuple(Fact(name=name, **fact) for name, fact in told.pop("facts").items())
    return Release(**told, facts=facts)


def find(fact: Fact, root: Path) -> Fact | None:
    """The fact as the source under root has it: in its file, else in the first other one that has it."""
    own = root / fact.file
    others = (path for path in sorted(root.rglob(f"*{own.suffix}")) if path != own)
    for path in (own, *others):
        text = path.read_text(errors="replace") if path.is_file() else ""
        if found := re.search(fact.finds, text):
            line = text.count("\n", 0, found.start(1) if found.groups() else found.start()) + 1
            file, value = path.relative_to(root).as_posix(), " ".join(found.groups())
            return replace(fact, file=file, line=line, value=value)
    return None


def compare(release: Release, root: Path) -> Iterator[tuple[str, bool]]:
    """A line a fact, and whether it holds."""
    for fact in release.facts:
        found, place = find(fact, root), f"{fact.file}:{fact.line}"
        if found is None:
            yield f"gone     {fact.name}: {fact.says} ({place}); read again {fact.ours}", False
        elif found.value != fact.value:
            now = f"{found.value!r} at {found.file}:{found.line}"
            was = f"{fact.value!r} at {place}"
            yield (
                f"changed  {fact.name}: {fact.says}: {was}, now {now}; read again {fact.ours}",
                False,
            )
        else:
            yield f"holds    {fact.name}: {found.file}:{found.line}", True


def pin(release: Release, name: str, root: Path) -> str:
    """The text of a file of facts for the release `name`. Those that are gone are left out."""
    shown = {"project": release.project, "release": name, "package": release.package}
    lines = [HEAD, *(f'{key} = "{value}"' for key, value in shown.items())]
    for found in filter(None, (find(fact, root) for fact in release.facts)):
        lines += ["", f"[facts.{found.name}]", f'says = "{found.says}"', f'file = "{found.file}"']
        lines += [f"line = {found.line}", f"finds = '{found.finds}'", f'value = "{found.value}"']
        lines.append(f'ours = "{found.ours}"')
        lines += [f'commit = "{found.commit}"'] if found.commit else []
    return "\n".join(lines) + "\n"


def installed(package: str) -> Path:
    """The folder that a package lies in. Raises SystemExit where it is not installed."""
    found = find_spec(package) if package else None
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{package or 'a package'} is not installed here; give a folder")
    return Path(found.submodule_search_locations[0]).parent


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Which pinned facts another release changes.")
    parser.add_argument("project", choices=sorted({one.project for one in pinned()}))
    parser.add_argument("folder", type=Path, nargs="?", help="the other release's source")
    parser.add_argument("--pin", metavar="RELEASE", help="write the facts as that release has them")
    given = parser.parse_args()
    release = pinned(given.project)[-1]
    root = given.folder or installed(release.package)
    told = list(compare(release, root))
    sys.stdout.write("".join(f"{line}\n" for line, _ in told))
    if given.pin:
        path = PINNED / f"{release.project}-{given.pin}.toml"
        path.write_text(pin(release, given.pin, root))
    return 0 if all(holds for _, holds in told) else 1


if __name__ == "__main__":
    sys.exit(main())
