"""Lay the pages of the documentation, and files that they link to, into `.docs` for the site (mkdocs.yml).

They lie there as in the repository, so that a link means the same on a Git host and on the site.
Called by `make docs`.
"""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / ".docs"
STYLE = Path("docs/site.css")
LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")


def pages() -> list[Path]:
    """Every page, as a path from the repository's root."""
    found = [*ROOT.glob("*.md")]
    for folder in ("docs", "examples", "helm"):
        found += (ROOT / folder).rglob("*.md")
    return sorted(page.relative_to(ROOT) for page in found)


def linked_files(page: Path) -> set[Path]:
    """Files, beside pages, that a page links to or shows."""
    folder = (ROOT / page).parent
    targets = {(folder / link).resolve() for link in LINK.findall((ROOT / page).read_text())}
    return {file.relative_to(ROOT) for file in targets if file.is_file() and file.suffix != ".md"}


def lay_out(target: Path) -> None:
    """Write all of it anew."""
    shutil.rmtree(target, ignore_errors=True)
    of_pages = pages()
    linked = set().union(*map(linked_files, of_pages))
    for file in {STYLE, *of_pages, *linked}:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, target / file)


if __name__ == "__main__":
    lay_out(TARGET)
