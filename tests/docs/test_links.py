"""Every link of the documentation leads somewhere, on a Git host and on the site."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from documented import PAGES, ROOT, anchors_of, code_of, links_of, name_of

FOLDERS = (
    "benchmarks",
    "crds",
    "e2e",
    "examples",
    "helm",
    "images",
    "operator",
    "runtime",
    "scripts",
    "tests",
)
SOURCES = [
    f"/{file.relative_to(ROOT).as_posix()}"
    for folder in FOLDERS
    for pattern in ("*.py", "*.sh")
    for file in (ROOT / folder).rglob(pattern)
]


def fault(page: Path, link: str) -> str | None:
    """What is wrong with a link; None where nothing is."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None if parts.scheme == "https" and "." in parts.netloc else "is no https address"
    target = (page.parent / parts.path).resolve() if parts.path else page
    if not target.is_relative_to(ROOT):
        return "leaves the repository"
    if not target.is_file():
        return "leads to a folder; name a file of it" if target.is_dir() else "leads to no file"
    if parts.fragment and parts.fragment not in anchors_of(target):
        return f"names no heading of {name_of(target)}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    faults = {link: fault(page, link) for link in links_of(page)}

    assert {link: why for link, why in faults.items() if why} == {}


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("nothing.md", "leads to no file"),
        ("images", "leads to a folder; name a file of it"),
        ("install.md#nowhere", "names no heading of docs/install.md"),
        ("../../elsewhere.md", "leaves the repository"),
        ("http://example.com", "is no https address"),
    ],
)
def test_a_wrong_link_is_found(link: str, why: str) -> None:
    assert fault(ROOT / "docs" / "dock.md", link) == why


def test_headings_have_the_anchors_of_a_git_host() -> None:
    anchors = anchors_of(ROOT / "docs" / "spec.md")

    assert {"specalgorithm-grpoparams", "specdatareasoninggym", "specrewards"} <= anchors


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_path_that_a_page_names_is_there(page: Path) -> None:
    path = re.compile(rf"(?:{'|'.join(FOLDERS)})(?:/[\w.-]+)+/?")

    named = {code for code in code_of(page) if path.fullmatch(code)}

    assert [code for code in sorted(named) if not (ROOT / code).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_source_file_that_a_page_names_is_there(page: Path) -> None:
    named = {code for code in code_of(page) if re.fullmatch(r"[\w/.-]+\.(?:py|sh)", code)}

    assert [
        code for code in sorted(named) if not any(f.endswith(f"/{code}") for f in SOURCES)
    ] == []


def test_the_page_on_architecture_names_every_folder_of_the_runtime() -> None:
    runtime = ROOT / "runtime" / "rljob_runtime"
    named = set(code_of(ROOT / "docs" / "architecture.md"))

    folders = {file.parent.relative_to(runtime).parts[0] for file in runtime.glob("*/__init__.py")}
    assert len(folders) > 15
    assert [folder for folder in sorted(folders) if f"{folder}/" not in named] == []


def test_the_readme_lists_every_page_of_docs() -> None:
    listed = {(ROOT / link.partition("#")[0]).resolve() for link in links_of(ROOT / "README.md")}

    assert [name_of(page) for page in (ROOT / "docs").glob("*.md") if page not in listed] == []
