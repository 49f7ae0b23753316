"""Draws the pictures of the guides: one message each, from the committed results, the pages, the source, and the simulator.

::

    python -m benchmarks.guide_pictures     # writes docs/plots/guides/*.svg; needs no GPU
"""

import argparse
import contextlib
import io
import json
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from . import race_suite
from .row_picture import STYLE
from .tutorial_plots import ROOT, chosen

__all__ = ["FOLDER", "PICTURES", "main"]

FOLDER = ROOT / "docs" / "plots" / "guides"
RESULTS = ROOT / "benchmarks" / "results"
# Pixels.
WIDTH, MARGIN, LINE, BAR = 840, 10, 26, 18
COLOURS = """
.title { font-weight: bold; } .ours { fill: #2f81c7; } .other { fill: #b5bcc4; } .bad { fill: #d55e00; }
.box { fill: none; stroke: #57606a; } .dashed { stroke-dasharray: 4 3; stroke: #d55e00; } .middle { text-anchor: middle; }
line { stroke: #57606a; } line.wrong { stroke: #d55e00; stroke-width: 2; }
@media (prefers-color-scheme: dark) { .other { fill: #5a626b; } .box, line { stroke: #9da7b3; } }
"""


def simulator() -> str:
    """The planted faults of the Indigo suite that the simulator and the tools of compute-sanitizer find."""
    suite, (ours, theirs) = next(iter(race_suite.FILES.items()))
    mine, tools = (json.loads(path.read_text(encoding="utf-8")) for path in (ours, theirs))
    both = tuple(race_suite.TOOLS)
    columns = {"the simulator, on a CPU": mine["files"], "memcheck and racecheck, on a GPU": _tools(suite, tools, both)}
    columns |= {f"{tool} alone": _tools(suite, tools, (tool,)) for tool in both}
    faulty = [name for name in mine["files"] if suite.planted(name)]
    found = {
        title: sum(race_suite._state(rows.get(name), suite.INPUTS) == "found" for name in faulty)
        for title, rows in columns.items()
    }
    title = f"Planted races and accesses out of bounds that are found, of {len(faulty)} kernels"
    return _picture(
        title, _bars([(name, n, str(n), "other" if i else "ours") for i, (name, n) in enumerate(found.items())])
    )


def debugging() -> str:
    """The array and the threads of the message on the page, which a test compares with the simulator's."""
    page = (ROOT / "docs" / "debugging.md").read_text(encoding="utf-8")
    message = re.findall(r"<!-- message: begin -->\n(.*?)<!-- message: end -->", page, re.DOTALL)[0]
    element, size, thread = map(int, re.findall(r"element (\d+) of .*?\[(\d+)\].* thread \((\d+)", message)[0])
    first, left = element - 6, 190

    def lines() -> Iterator[str]:
        yield _text(MARGIN, 22, f"x, of {size} elements")
        yield _text(MARGIN, 102, "the thread that reads")
        for i in range(first, element + 1):
            x, outside = left + (i - first) * 92, i >= size
            yield f'<rect class="box{" dashed" if outside else ""}" x="{x}" y="6" width="80" height="26"/>'
            yield _text(x + 40, 23, f"x[{i}]", "middle")
        for i in range(max(first, 0), thread + 1):
            x = left + (i - first) * 92 + 40
            yield _text(x, 102, f"thread {i}", "middle")
            for to in (i, i + 1):
                wrong = ' class="wrong"' if to >= size else ""
                yield f'<line{wrong} x1="{x}" y1="88" x2="{x + (to - i) * 92}" y2="34"/>'
        yield _text(
            MARGIN, 128, f"The last thread reads x[{element}], which is memory of something else on a GPU.", "small"
        )

    return _picture("An access out of bounds is named with its element and its thread", (136, list(lines())))


def profiling() -> str:
    """The time of the host beside that of the GPU, for a GELU of a million and of 2^28 elements."""
    document = _read("nvidia-h200")
    (host,) = chosen(document["host"], op="gelu", variant="none", direction="forward", implementation="ours")
    rows = chosen(
        document["rows"], op="gelu", variant="none", direction="forward", implementation="ours", dtype="bfloat16"
    )
    bars = [("the host, for a call", host["microseconds"], "other")]
    for row in rows:
        (n,) = row["shape"]
        bars.append((f"the GPU, for 2^{n.bit_length() - 1} elements", row["microseconds"], "ours"))
    title = "GELU in bfloat16 on an H200, µs: a small call waits for the host, a large one for memory"
    return _picture(
        title, _bars([(name, math.log10(10 * t), f"{t:.1f}", kind) for name, t, kind in bars], "logarithmic scale")
    )


def shipping() -> str:
    """The time until the first result of a process."""
    names = {
        "ours": "cupyops",
        "triton": "Triton",
        "compile": "torch.compile",
        "extension": "a C++ extension, all operators",
    }
    found = [row for row in _read("nvidia-h200")["build"] if "second" not in row["what"]]
    bars = []
    for name, label in names.items():
        for cache in ("warm", "cold"):
            (row,) = chosen(found, implementation=name, cache=cache)
            seconds = row["seconds"]
            kind = "ours" if name == "ours" else "other"
            words = f"{label}, {'compiled before' if cache == 'warm' else 'nothing compiled'}"
            bars.append((words, math.log10(1000 * seconds), f"{seconds:.3g} s", kind))
    return _picture(
        "What the first call of a process waits for its kernel",
        _bars(bars, "logarithmic scale; a bundle is compiled before, and needs no NVRTC"),
    )


def scale() -> str:
    """The speed of training steps on two GPUs beside PyTorch's."""
    ways = {"ddp": "DDP", "fsdp": "FSDP2", "tp": "tensor parallel"}
    rows, bars = _read("scale-nvidia-h200")["rows"], []
    for model in dict.fromkeys(row["model"] for row in rows):
        for mode in ("eager", "compiled"):
            for way, label in ways.items():
                mine = chosen(rows, model=model, mode=mode, way=way)
                speed = {row["variant"]: row["per_second"] for row in mine}
                ratio = speed["cupyops"] / speed["torch"]
                bars.append(
                    (f"{model}, {label}, {mode}", ratio, f"{ratio:.2f} ×", "ours" if ratio > 1.005 else "other")
                )
    return _picture("Training steps on two H200s: speed beside that of PyTorch's modules", _bars(bars))


def onnx() -> str:
    """The nodes of one model, exported in both ways."""
    import onnx
    import torch

    from autograd_bridge import GELU, LayerNorm
    from cupyops.torch import export_onnx

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), GELU(), LayerNorm(16), torch.nn.Linear(16, 4)).eval()
    lines: list[str] = []
    standard: set[str] = set()
    top = 6
    for title, custom in (("export_onnx(model, ...)", False), ("custom_domain=True", True)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            export_onnx(model, torch.randn(1, 8), path, custom_domain=custom)
            file = onnx.load(path)
        if not custom:
            standard = {node.op_type for node in file.graph.node}
        bodies = {function.name: [node.op_type for node in function.node] for function in file.functions}
        lines.append(_text(MARGIN, top + 18, title))
        for i, node in enumerate(file.graph.node):
            x, body = 190 + i * 165, bodies.get(node.op_type)
            lines.append(f'<rect class="box" x="{x}" y="{top}" width="145" height="{46 if body else 28}"/>')
            name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            lines.append(_text(x + 72, top + 18, name, "middle"))
            if body:
                (same,) = standard.intersection(body)
                lines.append(_text(x + 72, top + 37, same if len(body) == 1 else f"{same}, ...", "small middle"))
            if i:
                lines.append(f'<line x1="{x - 20}" y1="{top + 14}" x2="{x}" y2="{top + 14}"/>')
        top += 50
    return _picture("One model in standard operators, or with a node for each operator of cupyops", (top + 16, lines))


def hopper() -> str:
    """What the two blocks of a cluster load for a slice."""
    text = (ROOT / "kernels_cu" / "linear_gelu_sm90.cu").read_text(encoding="utf-8")
    m, n, k = (int(re.findall(rf"\bTILE_{name} = (\d+)", text)[0]) for name in "MNK")
    loads = f"{m + n // 2} rows of {k} elements in place of {m + n}"

    def lines() -> Iterator[str]:
        for half, (who, kind) in enumerate((("block 0", "ours"), ("block 1", "bad"))):
            x = 250 + half * 280
            yield f'<rect class="{kind}" x="{x}" y="26" width="270" height="30"/>'
            yield _text(x + 135, 20, f"{n // 2} rows of W, which {who} loads for both", "middle")
            y = 68 + half * 50
            yield f'<rect class="{kind}" x="{MARGIN}" y="{y}" width="60" height="40"/>'
            yield _text(MARGIN + 70, y + 25, f"{m} rows of x, {who}")
            yield f'<rect class="box" x="250" y="{y}" width="550" height="40"/>'
            yield _text(525, y + 25, f"the tile of {who}: {m} x {n} elements of z", "middle")
        yield _text(MARGIN, 182, f"For a slice, each block loads {loads}.", "small")

    return _picture("Two blocks of a cluster share W", (192, list(lines())))


def live() -> str:
    """The results of a watched kernel, launched in the simulator after each of four edits of the text on the page."""
    page = (ROOT / "docs" / "live.md").read_text(encoding="utf-8")
    text = re.findall(r'TEXT = """(.*?)"""', page, re.DOTALL)[0]
    lines: list[str] = []
    for i, (edit, result, said) in enumerate(_edited(text, ("2 * x[i]", "3 * x[i]", "3 * x[j]", "4 * x[i]"))):
        y = 6 + i * 62
        (line,) = (line.strip() for line in text.replace("2 * x[i]", edit).splitlines() if edit in line)
        kind = "box dashed" if "does not compile" in said else "box"
        lines.append(f'<rect class="{kind}" x="{MARGIN}" y="{y}" width="300" height="28"/>')
        lines.append(_text(MARGIN + 10, y + 19, line))
        lines.append(
            _text(MARGIN + 10, y + 45, "saved while the program runs" if i else "the file of the declaration", "small")
        )
        lines.append(f'<line x1="{MARGIN + 300}" y1="{y + 14}" x2="400" y2="{y + 14}"/>')
        lines.append(_text(408, y + 19, f"the next launch writes {result}"))
        if said:
            lines.append(_text(408, y + 45, said, "small"))
    return _picture("A saved text runs at the next launch, in the same process", (6 + 4 * 62, lines))


def _edited(text: str, edits: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yields, for each edit of the first one in the text: the edit, the result of a launch, and the first sentence of its last message on stderr."""
    import numpy as np

    import cupyops

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, cupyops.simulate():
        os.chdir(folder)  # messages name the file as the kernel's declaration does
        try:
            path = Path("scale.cu")
            path.write_text(text, encoding="utf-8")
            kernel = cupyops.Kernel(path, "scale", cupyops.Threads("n"), dtypes=("float32",), watch=True)
            x, y = np.arange(4, dtype=np.float32), np.empty(4, np.float32)
            for edit in edits:
                time.sleep(0.01)  # a launch looks at the file at most every 5 ms
                path.write_text(text.replace(edits[0], edit), encoding="utf-8")
                with contextlib.redirect_stderr(io.StringIO()) as said:
                    kernel(x, y, 4)
                yield edit, str(y), said.getvalue().rpartition("cupyops: ")[2].partition(". ")[0].strip()
        finally:
            os.chdir(before)


PICTURES: dict[str, Callable[[], str]] = {
    made.__name__: made for made in (simulator, debugging, profiling, shipping, scale, onnx, hopper, live)
}


def _tools(suite: Any, results: dict[str, Any], tools: Sequence[str]) -> dict[str, Any]:
    return race_suite._of_tools(suite, results, tools)


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    words = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text{f""" class="{kind}" """.rstrip() if kind else ""} x="{x:g}" y="{y:g}">{words}</text>'


def _bars(rows: Iterable[tuple[str, float, str, str]], words: str = "") -> tuple[int, list[str]]:
    """Horizontal bars with the name, the length, the number in words and the class of each."""
    rows, left = list(rows), 270
    longest = max(length for _, length, _, _ in rows)
    lines = []
    for i, (name, length, number, kind) in enumerate(rows):
        y, width = i * LINE + 4, length / longest * (WIDTH - left - 90)
        lines.append(_text(MARGIN, y + 13, name))
        lines.append(f'<rect class="{kind}" x="{left}" y="{y}" width="{width:.1f}" height="{BAR}"/>')
        lines.append(_text(left + width + 6, y + 13, number))
    if words:
        lines.append(_text(left, len(rows) * LINE + 12, words, "small"))
    return len(rows) * LINE + (20 if words else 4), lines


def _picture(title: str, drawn: tuple[int, Sequence[str]]) -> str:
    """The SVG of a title above what is drawn, whose height comes first."""
    height, lines = drawn
    whole = height + 34
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{whole}" viewBox="0 0 {WIDTH} {whole}">'
    body = [
        f"<style>{STYLE}{COLOURS}</style>",
        _text(MARGIN, 18, title, "title"),
        '<g transform="translate(0 30)">',
        *lines,
    ]
    return "\n".join([head, *body, "</g>", "</svg>"]) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Write all pictures, and print their paths."""
    argparse.ArgumentParser(
        "python -m benchmarks.guide_pictures", description="Draw the pictures of the guides, and print their paths."
    ).parse_args(argv)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, made in PICTURES.items():
        path = FOLDER / f"{name}.svg"
        path.write_text(made(), encoding="utf-8")
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
