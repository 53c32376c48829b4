"""The site holds every page, where the menu and the links look for it."""

import importlib.util
from pathlib import Path
from typing import Any

import yaml
from documented import PAGES, ROOT, links_of, name_of


def pages_in(menu: Any) -> list[str]:
    """Pages of a part of the menu."""
    if isinstance(menu, str):
        return [menu]
    parts = menu.values() if isinstance(menu, dict) else menu
    return [page for part in parts for page in pages_in(part)]


def test_the_menu_has_every_page_once() -> None:
    menu = pages_in(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])

    assert sorted(menu) == sorted(map(name_of, PAGES))


def test_pages_and_what_they_link_to_lie_as_in_the_repository(tmp_path: Path) -> None:
    file = ROOT / "scripts" / "docs_pages.py"
    spec = importlib.util.spec_from_file_location("docs_pages", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    module.lay_out(tmp_path)

    for page in PAGES:
        assert (tmp_path / name_of(page)).read_bytes() == page.read_bytes()
        paths = [link.partition("#")[0] for link in links_of(page) if "://" not in link]
        folder = (tmp_path / name_of(page)).parent
        assert [path for path in paths if path and not (folder / path).is_file()] == []
