"""The page on the papers has a row for every feature, and names files that are there."""

import itertools
import re

import pytest
from documented import ROOT, tokens_of

PAGE = ROOT / "docs" / "papers.md"
TABLE_2 = (
    "PPO", "GRPO", "PF-PPO", "DAPO", "DPO", "DP", "TP", "PP", "ZeRO", "All2All EP", "RingAttention",
    "Ulysses", "fused kernels", "stage fusion", "partial rollout", "load balance", "transfer dock",
    "allgather–swap", "dense models", "MoE models",
)  # fmt: skip
PLACES = {"module": "runtime/rljob_runtime", "test": "tests", "benchmark": "benchmarks"}


def cells():
    """(column's head, text, pieces of code) of every cell of the page's tables."""
    heads, column = [], 0
    tokens = tokens_of(PAGE)
    for before, cell in itertools.pairwise(tokens):
        if before.type == "tr_open":
            column = 0
        if before.type == "thead_open":
            heads = []
        if before.type == "th_open":
            heads.append(cell.content)
        if before.type == "td_open":
            codes = [child.content for child in cell.children if child.type == "code_inline"]
            yield heads[column], cell.content, codes
            column += 1


CELLS = list(cells())


@pytest.mark.parametrize("head", PLACES)
def test_every_file_is_there(head):
    of_column = [code for name, _, codes in CELLS if name == head for code in codes]
    names = [name for name in of_column if name.endswith(".py")]

    assert len(names) > 15
    places = [ROOT / PLACES[head], ROOT]
    assert [name for name in names if not any((place / name).is_file() for place in places)] == []


def test_every_feature_of_table_2_has_a_row():
    features = [text for name, text, _ in CELLS if name == "feature"]

    found = {f for f in TABLE_2 for text in features if re.match(rf"{re.escape(f)}\b", text)}
    assert set(TABLE_2) - found == set()
