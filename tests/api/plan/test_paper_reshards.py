"""The paper's models in docs/resharding.md are those that plans give."""

import pytest

from benchmarks import ROOT
from benchmarks.reshard import paper


@pytest.fixture(scope="module")
def rows():
    return {row["model"]: row for row in paper.paper_rows()}


def test_qwen_32b_releases_7_6_gib_on_each_of_16_devices(rows):
    row = rows["Qwen2.5-32B"]

    assert row["on_device"] == row["released"] == pytest.approx(32.763e9 * 2 / 8 / 2**30, rel=1e-3)
    assert row["kept"] == 16 * row["on_device"]
    assert row["after"] == 0
    assert row["host"] == 8 * row["released"]


def test_qwen_30b_keeps_59_7_gib_by_equation_3_for_figure_3(rows):
    row = rows["Qwen3-30B-A3B"]

    assert row["equation"] == pytest.approx(59.7, abs=0.1)
    assert row["equation"] * 2**30 / 1e9 == pytest.approx(64.1, abs=0.1)
    assert row["kept"] == 4 * row["on_device"]


def test_deepseek_moves_the_least_and_stays_below_its_bound(rows):
    row = rows["DeepSeek-R1-671B"]

    assert row["moved"] == row["lower_bound"] > 10_000
    assert row["on_device"] < row["peak"] <= row["bound"] < row["allgather_peak"]


def test_the_page_shows_these_rows():
    page = (ROOT / "docs" / "resharding.md").read_text()

    assert paper.with_table(page) == page, "python -m benchmarks.write_docs"
    assert page.count("DeepSeek-R1-671B | TP4 PP6 EP16 DP2") == 1
