"""The report of the operators on rows: a table, a figure, and the cases in which a peer is faster."""

from collections.abc import Callable, Sequence
from typing import Any

from .peers import LABELS
from .plots import COLOURS, kind, legend, of_many_rows, subplots

__all__ = ["figure", "losses", "lost", "operator_of", "scoreboard", "shown"]

Row = dict[str, Any]
DTYPE = "bfloat16"  # of rows and parameters in the table and the figure
DIRECTIONS = ("forward", "backward")
EACH = 2  # the table has each second length, and the figure all
# Two runs of one kernel differ by less.
LOSS = 0.02


def scoreboard(rows: Sequence[Row]) -> str:
    """The table, its legend, and the rows in which a peer is faster."""
    if not shown(rows):
        return "No row of bfloat16 has been measured."
    return "\n\n".join(
        [
            _FIGURE,
            _LEGEND,
            _table(rows),
            *losses(rows, lambda row: f"{operator_of(row)} {row['direction']}"),
        ]
    )


_FIGURE = "![Operators on rows: share of the copy bandwidth by row length](plots/rows.svg)"


_LEGEND = (
    "Share of the copy bandwidth in percent, forward / backward, for 2^28 elements in bfloat16; in brackets that of the fastest "
    "other implementation, which the figure names. The table has each second length, the figure all; torch.compile is measured at some of them."
)


def operator_of(row: Row) -> str:
    """The operator's name: the variant, where two operators share the label "op"."""
    return str(row["variant"] if row["variant"].startswith("add_") else row["op"])


def _dtype(row: Row) -> str:
    return str(row["dtype"].replace("+int64", ""))


def _length(row: Row) -> int:
    return int(row["shape"][-1])


def shown(rows: Sequence[Row]) -> list[Row]:
    """The rows of the table and of the figure: of one dtype, and of many rows."""
    mine = [row for row in rows if _dtype(row) == DTYPE]
    return of_many_rows(mine) if mine else []


def _best(rows: Sequence[Row]) -> Row | None:
    return min(rows, key=lambda row: row["microseconds"], default=None)


def _table(rows: Sequence[Row]) -> str:
    mine = shown(rows)
    operators = list(dict.fromkeys(map(operator_of, mine)))
    lines: list[list[str]] = [["row length", *(f"`{name}`" for name in operators)], ["---"] * (len(operators) + 1)]
    for n in sorted(set(map(_length, mine)))[::EACH]:
        there = [row for row in mine if _length(row) == n]
        cells = [_cell([row for row in there if operator_of(row) == name]) for name in operators]
        lines.append([str(n), *cells])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _cell(rows: Sequence[Row]) -> str:
    """Ours in both directions, bold where no peer is faster, and the fastest peers."""
    ours, peers = [], []
    for direction in DIRECTIONS:
        there = [row for row in rows if row["direction"] == direction]
        own = _best([row for row in there if row["implementation"] == "ours"])
        peer = _best([row for row in there if row["implementation"] != "ours"])
        share = "–" if own is None else f"{100 * own['share_of_copy']:.0f}"
        first = own is not None and (peer is None or own["microseconds"] <= peer["microseconds"])
        ours.append(f"**{share}**" if first else share)
        peers.append("–" if peer is None else f"{100 * peer['share_of_copy']:.0f}")
    return f"{' / '.join(ours)} ({' / '.join(peers)})" if rows else "–"


def lost(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """The rows of ours that take more than 2 % longer than the fastest peer, and that peer's; of many rows and of few."""
    found = []
    by_case: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        by_case.setdefault((*kind(row), tuple(row["shape"])), []).append(row)
    for case in by_case.values():
        own = _best([row for row in case if row["implementation"] == "ours"])
        peer = _best([row for row in case if row["implementation"] != "ours"])
        if own is not None and peer is not None and own["microseconds"] > (1 + LOSS) * peer["microseconds"]:
            found.append((own, peer))
    return found


def losses(rows: Sequence[Row], case: Callable[[Row], str], least: float = LOSS) -> list[str]:
    """How often a peer is faster, and a table of the cases and peers with the dtypes and shapes in which ours takes longer by
    more than ``least``, and the least and the largest ratio."""
    compared = {(*kind(row), *row["shape"]) for row in rows if row["implementation"] == "ours"}
    slower = lost(rows)
    count = f"In {len(slower)} of {len(compared)} measurements in all dtypes, a peer is faster by more than 2 percent"
    if not slower:
        return [count + "."]
    cases: dict[tuple[str, str], list[tuple[str, str, float]]] = {}
    for own, peer in slower:
        ratio = own["microseconds"] / peer["microseconds"]
        if ratio > 1 + least:
            found = _dtype(own), "×".join(map(str, own["shape"])), ratio
            cases.setdefault((case(own), LABELS[peer["implementation"]]), []).append(found)
    lines = ["| case | dtypes | faster | shapes | ours takes |", "| --- | --- | --- | --- | --- |"]
    for (name, peer_name), found_here in cases.items():
        dtypes = ", ".join(dict.fromkeys(dtype for dtype, _, _ in found_here))
        shapes = ", ".join(dict.fromkeys(shape for _, shape, _ in found_here))
        low, high = (f"{choose(ratio for *_, ratio in found_here):.2f}" for choose in (min, max))
        times = low if low == high else f"{low} to {high}"
        lines.append(f"| {name} | {dtypes} | {peer_name} | {shapes} | {times} × |")
    of_these = "" if least == LOSS else f" Cases of more than {100 * least:.0f} percent:"
    return [f"{count}.{of_these}", "\n".join(lines)]


def figure(rows: Sequence[Row]) -> Any:
    """Share of the copy bandwidth over the row length: a panel an operator and direction, a line an implementation."""
    mine = shown(rows)
    operators = list(dict.fromkeys(map(operator_of, mine)))
    panels = [(operator, direction) for direction in DIRECTIONS for operator in operators]
    names = [name for name in LABELS if any(row["implementation"] == name for row in mine)]
    made, grid = subplots(len(panels), len(operators), 2.5, 2.3, sharey=True)
    for axes, (operator, direction) in zip(grid, panels, strict=True):
        for name in names:
            line = sorted(
                (_length(row), 100 * row["share_of_copy"])
                for row in mine
                if (operator_of(row), row["direction"], row["implementation"]) == (operator, direction, name)
            )
            axes.plot(*zip(*line, strict=True) if line else ([], []), marker="o", markersize=2.5, linewidth=1.1,
                      color=COLOURS[name], label=LABELS[name], zorder=3 if name == "ours" else 2)  # fmt: skip
        if not axes.lines or not any(len(line.get_xdata()) for line in axes.lines):
            axes.set_axis_off()
            continue
        axes.axhline(100, color="black", linewidth=0.8, linestyle="--")
        axes.set_xscale("log", base=2)
        axes.set(title=f"{operator} {direction}", xlabel="row length", ylabel="% of copy", ylim=(0, None))
        axes.label_outer()
    legend(made, grid[0])
    return made
