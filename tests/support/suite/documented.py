"""What the documentation says: pages, their headings and links, blocks of code, commands."""

import functools
import itertools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    page
    for place in (
        ROOT.glob("*.md"),
        *((ROOT / f).rglob("*.md") for f in ("docs", "examples", "helm")),
    )
    for page in place
)
SHELLS = ("bash", "console", "sh")
READER = MarkdownIt("commonmark").enable("table")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page. language: "" where none is named. line: of the page, from 1."""

    page: Path
    line: int
    language: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command as it is written. words: as a shell splits them, what is optional included."""

    page: Path
    line: int
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}: {' '.join(self.words)}"


def name_of(page: Path) -> str:
    """The page's path from the repository's root."""
    return page.relative_to(ROOT).as_posix()


@functools.cache
def tokens_of(page: Path) -> tuple[Token, ...]:
    """Blocks and what is within them, in the order of the page."""
    blocks = READER.parse(page.read_text())
    return tuple(token for block in blocks for token in (block, *(block.children or ())))


@functools.cache
def anchors_of(page: Path) -> frozenset[str]:
    """Anchors of the page's headings, as GitHub and GitLab make them."""
    found: dict[str, None] = {}
    tokens = tokens_of(page)
    for heading, text in itertools.pairwise(tokens):
        if heading.type == "heading_open":
            words = "".join(
                c.content for c in text.children or () if c.type in ("text", "code_inline")
            )
            slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            same = sum(
                re.fullmatch(rf"{re.escape(slug)}(-\d+)?", other) is not None for other in found
            )
            found[f"{slug}-{same}" if same else slug] = None
    return frozenset(found)


def links_of(page: Path) -> list[str]:
    """Where the page's links and pictures lead."""
    attributes = {"link_open": "href", "image": "src"}
    return [str(t.attrs[attributes[t.type]]) for t in tokens_of(page) if t.type in attributes]


def code_of(page: Path) -> list[str]:
    """Code within the page's sentences."""
    return [token.content for token in tokens_of(page) if token.type == "code_inline"]


def blocks_of(page: Path) -> list[Block]:
    """The page's fenced blocks."""
    return [
        Block(page=page, line=t.map[0] + 2, language=t.info.strip(), text=t.content)
        for t in tokens_of(page)
        if t.type == "fence" and t.map
    ]


def commands_of(block: Block) -> list[Command]:
    """The commands of a block for a shell, each in the line that it begins in; in `console`, those behind a
    prompt."""
    found = []
    lines = enumerate(block.text.splitlines(), block.line)
    for number, line in lines:
        while line.endswith("\\"):
            line = f"{line[:-1]} {next(lines)[1].strip()}"
        if block.language == "console" and not line.startswith("$ "):
            continue
        found += commands_in(line.removeprefix("$ "), page=block.page, line=number)
    return found


def commands_in(text: str, *, page: Path, line: int = 0) -> list[Command]:
    """The commands of a line: comments are left out, `[--option]` is taken, a pipe has one on each side."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|;&>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|;&"):
            found.append([])
        else:
            found[-1].append(word[1:-1] if re.fullmatch(r"\[-.*\]", word) else word)
    return [Command(page=page, line=line, words=tuple(words)) for words in found if words]
