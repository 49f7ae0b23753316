"""Draws how the rows of a row program are distributed among threads, by the rule of the kernels.

::

    python -m benchmarks.row_picture     # writes docs/plots/row_cut.svg; needs no GPU
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from cupyops.programs.row_config import ProgramConfig, config_of, work_of
from cupyops.torch.ops.softmax import _softmax

__all__ = ["PATH", "draw", "main", "words"]

PATH = Path(__file__).resolve().parent.parent / "docs" / "plots" / "row_cut.svg"
# Rows of a few threads, of a warp, of a block, of a cluster, and rows that are read again in each pass.
LENGTHS = (96, 2048, 16384, 65536, 4_000_000)
DTYPE, ITEMSIZE, CAPABILITY = "bfloat16", 2, 90
# Pixels. A panel is a line of words above a strip, and the numbers of the blocks below.
WIDTH, MARGIN, PANEL, STRIP = 840, 10, 66, 18
STYLE = """
text { font: 12px sans-serif; fill: #24292f; }
.small { font-size: 10px; fill: #57606a; }
.even { fill: #a9cbe8; } .odd { fill: #d3e5f5; } .later { fill: #e4e4e4; } .first { fill: #d55e00; }
.block { fill: none; stroke: #24292f; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .small { fill: #9da7b3; }
  .even { fill: #2f6391; } .odd { fill: #1d4263; } .later { fill: #3a3f45; } .block { stroke: #e6edf3; }
}
"""


def draw() -> str:
    """Returns the picture, as SVG."""
    lines = [line for i, n in enumerate(LENGTHS) for line in _panel(n, MARGIN + i * PANEL)]
    height = MARGIN + len(LENGTHS) * PANEL + 22
    legend = f"orange: the accesses of the first thread; softmax of {DTYPE} on sm_{CAPABILITY}"
    lines.append(f'<text class="small" x="{MARGIN}" y="{height - MARGIN}">{legend}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *lines, "</svg>"]) + "\n"


def config(n: int) -> ProgramConfig:
    """The config of softmax for rows of n elements."""
    return config_of(n, DTYPE, work_of(_softmax.programs[0], {"x": ITEMSIZE}), CAPABILITY)


def words(n: int, found: ProgramConfig) -> str:
    """How a row of n elements is distributed, in words."""
    accesses = f"{found.vectors} access{'es' if found.vectors > 1 else ''} of {found.vector_width} elements"
    if found.cluster > 1:
        who = f"a cluster of {found.cluster} blocks of {found.row_threads} threads"
    elif found.groups > 1:
        who = f"{found.row_threads} threads; a block has {found.groups} rows"
    else:
        who = f"a block of {found.row_threads} threads"
    how = " at a time, in every pass" if found.stream else ", kept in registers"
    if found.row_shared:
        how = " at a time; every pass reads shared memory"
    return f"{n} elements: {who}; a thread has {accesses}{how}"


def _panel(n: int, top: int) -> Iterator[str]:
    found = config(n)
    scale = (WIDTH - 2 * MARGIN) / n
    strip = top + 20
    yield f'<text x="{MARGIN}" y="{top + 13}">{words(n, found)}</text>'
    for block in range(found.cluster):
        for v in range(found.vectors):
            start = block * found.slice + v * found.row_threads * found.vector_width
            end = min(n, start + found.row_threads * found.vector_width)
            if start >= n:
                continue
            yield _rect("odd" if v % 2 else "even", start * scale, (end - start) * scale, strip)
            if block == 0:
                yield _rect("first", start * scale, max(2.0, found.vector_width * scale), strip)
        start, end = block * found.slice, min(n, (block + 1) * found.slice)
        yield _rect("block", start * scale, (end - start) * scale, strip)
        if found.cluster > 1 and (end - start) * scale > 40:
            at = MARGIN + (start + end) / 2 * scale
            yield f'<text class="small" text-anchor="middle" x="{at:.1f}" y="{strip + STRIP + 12}">block {block}</text>'
    done = min(n, found.slice * found.cluster)
    if done < n:
        yield _rect("later", done * scale, (n - done) * scale, strip)


def _rect(kind: str, x: float, width: float, y: int) -> str:
    return f'<rect class="{kind}" x="{MARGIN + x:.1f}" y="{y}" width="{width:.1f}" height="{STRIP}"/>'


def main(argv: Sequence[str] | None = None) -> None:
    """Write the picture."""
    argparse.ArgumentParser("python -m benchmarks.row_picture", description="Write the picture.").parse_args(argv)
    PATH.write_text(draw(), encoding="utf-8")
    print(PATH)


if __name__ == "__main__":
    main()
