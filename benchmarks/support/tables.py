"""Tables of docs/benchmarks.md from a benchmark's results."""

from collections.abc import Sequence
from typing import Any

from benchmarks.support.results import figure


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column has no head."""
    lines = [["", *heads], ["---"] * (len(heads) + 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def side_by_side(document: dict[str, Any]) -> str:
    """One row a figure and peer; with several peers, one row a figure and a column a peer."""
    results = document["results"]
    peers = list(dict.fromkeys(peer for result in results for peer in result["peers"]))
    return _wide(results, peers) if len(peers) > 1 else _narrow(results)


def _narrow(results: list[dict[str, Any]]) -> str:
    rows = ["| | rljob | peer | gain | target |", "|---|---|---|---|---|"]
    for result in results:
        for peer, value in result["peers"].items():
            ours, theirs = (
                figure(result["value"], result["spread"]["rljob"]),
                result["spread"][peer],
            )
            rows.append(
                f"| {result['name']}, {result['unit']} | {ours} | {peer}: {figure(value, theirs)} "
                f"| **{_gain(result, peer):.2f}×** | {result['target']}× |"
            )
    return "\n".join(rows)


def _wide(results: list[dict[str, Any]], peers: list[str]) -> str:
    rows = [
        f"| | rljob | {' | '.join(peers)} | gain (wanted) |",
        f"|---|---|{'---|' * (len(peers) + 1)}",
    ]
    for result in results:
        cells = [
            figure(value, result["spread"][peer])
            if (value := result["peers"].get(peer)) is not None
            else ""
            for peer in peers
        ]
        ours = f"**{figure(result['value'], result['spread']['rljob'])}**"
        name = f"{result['name']}, {result['unit']}"
        rows.append(f"| {' | '.join([name, ours, *cells, _verdicts(result)])} |")
    return "\n".join(rows)


def _verdicts(result: dict[str, Any]) -> str:
    """Gains that are wanted, or else that over the first peer; and the limit."""
    found = []
    for peer in result["targets"] or list(result["peers"])[:1]:
        gain, wanted = _gain(result, peer), result["targets"].get(peer)
        asked = "" if wanted is None else f" (≥ {wanted:g}{'' if gain >= wanted else ', missed'})"
        found.append(f"{peer}: **{gain:.2f}×**{asked}")
    if result["limit"] is not None:
        missed = "" if result["value"] <= result["limit"] else ", missed"
        found.append(f"at most {result['limit']:g}{missed}")
    return "<br>".join(found)


def _gain(result: dict[str, Any], peer: str) -> float:
    ratio = result["value"] / result["peers"][peer]
    return float(ratio if result["better"] == "higher" else 1 / ratio)
