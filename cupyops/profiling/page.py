"""Writes reports as one HTML file: no script, no font and no picture comes from elsewhere."""

import math
from collections.abc import Sequence
from html import escape

from cupyops.simulator.counts import Line

from .launch_report import HEADINGS, KernelReport, amount, cells, facts

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --soft: #5c6670; --line: #dde2e7; --card: #f6f8fa;
  --good: #1a7f37; --warn: #fff1c2; --bad: #ffd9d4; --mark: #0b62c4; --bar: #9cc4f2; }
@media (prefers-color-scheme: dark) { :root { --back: #12161b; --text: #dfe5ec; --soft: #93a0ad; --line: #2c343d;
  --card: #1a2027; --good: #57c777; --warn: #4a3d0d; --bad: #5a221c; --mark: #6db3ff; --bar: #27578c; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 78rem; padding: 1.5rem; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.25rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; } a { color: var(--mark); text-decoration: none; }
.soft, figcaption { color: var(--soft); } figure { margin: 0; } figcaption { font-size: .85rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: .75rem; margin: 1rem 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem; }
.card b { display: block; font-size: .75rem; color: var(--soft); }
ol { padding-left: 1.4rem; } li { margin: .35rem 0; } .place { font-family: ui-monospace, monospace; font-size: .85em; }
table { border-collapse: collapse; font-size: .85rem; } th { text-align: right; color: var(--soft); font-weight: 600; }
th, td { padding: .1rem .6rem; } .plain th { text-align: left; border-bottom: 1px solid var(--line); }
.source { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; }
.source table { width: 100%; } .source td { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.source thead th { position: sticky; top: 0; background: var(--card); border-bottom: 1px solid var(--line); }
.source td.code, .source th.code { text-align: left; width: 100%; }
td.code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre !important; }
td.number { color: var(--soft); user-select: none; } td.warn { background: var(--warn); } td.bad { background: var(--bad); }
tr:target td.code { outline: 2px solid var(--mark); } tr.quiet td { color: var(--soft); }
summary { cursor: pointer; padding: .3rem 0; } .two { display: flex; flex-wrap: wrap; gap: 2rem; align-items: flex-start; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--text); font: 12px system-ui, sans-serif; }
svg .soft { fill: var(--soft); } svg .roof { stroke: var(--text); fill: none; stroke-width: 2; }
svg .grid { stroke: var(--line); } svg .point { fill: var(--mark); } svg .moved { fill: none; stroke: var(--mark); stroke-width: 2; }
svg .bar { fill: var(--bar); }
"""
_LEGEND = (
    "runs: executions of the line by a warp. lanes: active lanes of an execution, of 32. load, store: sectors of 32 bytes "
    "in a request to global memory. shared: bank conflicts of a request to shared memory. atomic: lanes of an atomic "
    "operation at one address. A colour marks what costs more than it needs to."
)


def page(kernels: Sequence[KernelReport]) -> str:
    """Returns the HTML text of the reports of one or more launches."""
    names = ", ".join(dict.fromkeys(k.name.partition("<")[0] for k in kernels))
    sections = "".join(_section(kernel, n) for n, kernel in enumerate(kernels))
    links = "".join(
        f'<li><a href="#k{n}">{escape(k.name)}</a> <span class="soft">grid {k.grid}</span></li>'
        for n, k in enumerate(kernels)
    )
    index = f"<ol>{links}</ol>" if len(kernels) > 1 else ""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(names)}: cupyops.explain</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(names)}</h1>\n"
        f'<p class="soft">Counted in a simulation, without a GPU. Peaks and limits of {escape(kernels[0].gpu.name)}.</p>\n'
        f"{index}{sections}</body>\n</html>\n"
    )


def _section(kernel: KernelReport, n: int) -> str:
    cards = "".join(
        f'<div class="card"><b>{escape(name)}</b>{escape(value)}</div>' for name, value in facts(kernel, False)
    )
    advice = "".join(f"<li>{_link(n, a.line)}{escape(a.words)}</li>" for a in kernel.advice)
    change = f"<ol>{advice}</ol>" if advice else "<p>Nothing to change was found in these counts.</p>"
    return (
        f'<section id="k{n}"><h2>{escape(kernel.name)}</h2>\n<div class="cards">{cards}</div>\n'
        f"<h3>What to change, the most valuable first</h3>{change}\n"
        f'<h3>Source</h3><p class="soft">{_LEGEND}</p>{_sources(kernel, n)}\n'
        f'<div class="two"><div><h3>Arrays</h3>{_arrays(kernel)}</div>'
        f"<figure><h3>Lower bounds of the time</h3>{_bars(kernel)}</figure></div>\n"
        f"<figure><h3>Roofline</h3>{_roofline(kernel)}</figure></section>\n"
    )


def _anchor(n: int, file: str, line: int) -> str:
    return f"k{n}-{escape(file, quote=True)}-{line}"


def _link(n: int, place: str) -> str:
    file, _, line = place.rpartition(":")
    return f'<a class="place" href="#{_anchor(n, file, int(line))}">{escape(place)}</a> ' if file else ""


def _arrays(kernel: KernelReport) -> str:
    rows = "".join(
        f"<tr><td>{escape(a.name)}</td><td>{escape(str(a.info))}</td><td>{amount(a.loaded_bytes)}</td>"
        f"<td>{amount(a.loaded)}</td><td>{amount(a.stored_bytes)}</td><td>{amount(a.stored)}</td></tr>"
        for a in kernel.arrays
    )
    heads = ("array", "", "loads: needed", "moved", "stores: needed", "moved")
    return f'<table class="plain"><tr>{"".join(f"<th>{h}</th>" for h in heads)}</tr>{rows}</table>'


def _bars(kernel: KernelReport) -> str:
    most = max(b.microseconds for b in kernel.bounds) or 1
    parts = []
    for i, b in enumerate(kernel.bounds):
        y = 44 * i
        parts.append(
            f'<text x="0" y="{y + 14}">{escape(b.name)}: {b.microseconds:.3g} µs</text>'
            f'<rect class="bar" x="0" y="{y + 20}" width="{max(360 * b.microseconds / most, 1):.0f}" height="12" rx="3"/>'
        )
    return f'<svg width="380" height="{44 * len(kernel.bounds)}" role="img" aria-label="lower bounds">{"".join(parts)}</svg>'


def _roofline(kernel: KernelReport) -> str:
    """Draws operations per second over operations per byte, with the peaks of the GPU and this kernel."""
    gpu, flops = kernel.gpu, kernel.flops
    width, height, left, bottom = 620, 280, 60, 40
    low, high = -4, 10  # binary logarithms of the operations per byte
    top = math.log10(gpu.flops) + 0.3
    least = math.log10(gpu.bandwidth * 1e9 * 2.0**low)
    if flops:
        found = [flops / n for n in (kernel.needed_bytes, kernel.moved_bytes) if n]
        low = min(low, *(math.floor(math.log2(f)) for f in found))
        high = max(high, *(math.ceil(math.log2(f)) for f in found))
        least = math.log10(gpu.bandwidth * 1e9 * 2.0**low)

    def x(intensity: float) -> float:
        return left + (math.log2(intensity) - low) / (high - low) * (width - left - 24)

    def y(rate: float) -> float:
        return (top - math.log10(rate)) / (top - least) * (height - bottom)

    def roof(intensity: float) -> float:
        return min(gpu.flops, intensity * gpu.bandwidth * 1e9)

    ridge = gpu.flops / (gpu.bandwidth * 1e9)
    corners = " ".join(f"{x(i):.1f},{y(roof(i)):.1f}" for i in (2.0**low, ridge, 2.0**high))
    parts = []
    for power in range(low, high + 1, 2):
        at = x(2.0**power)
        label = f"{2**power}" if power >= 0 else f"1/{2**-power}"
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="0" x2="{at:.1f}" y2="{height - bottom}"/>')
        parts.append(f'<text class="soft" x="{at:.1f}" y="{height - bottom + 16}" text-anchor="middle">{label}</text>')
    for power in range(math.ceil(least), math.floor(top) + 1):
        at, (unit, scale) = y(10.0**power), ("T", 12) if power >= 12 else ("G", 9)
        parts.append(f'<line class="grid" x1="{left}" y1="{at:.1f}" x2="{width - 24}" y2="{at:.1f}"/>')
        parts.append(
            f'<text class="soft" x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{10 ** (power - scale)} {unit}</text>'
        )
    parts.append(f'<polyline class="roof" points="{corners}"/>')
    parts.append(f'<text x="{x(ridge):.1f}" y="{y(gpu.flops) - 6:.1f}">{gpu.flops / 1e12:.1f} Tflop/s (float32)</text>')
    parts.append(
        f'<text x="{x(ridge / 16) - 8:.1f}" y="{y(roof(ridge / 16)):.1f}" text-anchor="end">{gpu.bandwidth} GB/s</text>'
        f'<text class="soft" x="{width / 2}" y="{height - 6}" text-anchor="middle">operations for each byte</text>'
    )
    words = "The kernel has no floating-point operations, so it has no place on the roofline."
    if flops:
        for nbytes, name, kind in ((kernel.moved_bytes, "moved", "moved"), (kernel.needed_bytes, "needed", "point")):
            if nbytes:
                i = flops / nbytes
                parts.append(
                    f'<circle class="{kind}" cx="{x(i):.1f}" cy="{y(roof(i)):.1f}" r="6"><title>{name}</title></circle>'
                )
        words = (
            f"Filled: {flops / max(kernel.needed_bytes, 1):.3g} operations for each byte needed. Ring: "
            f"{flops / max(kernel.moved_bytes, 1):.3g} for each byte moved, if no cache serves a request."
        )
    picture = f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-label="roofline">'
    return f"{picture}{''.join(parts)}</svg><figcaption>{escape(words)}</figcaption>"


def _sources(kernel: KernelReport, n: int) -> str:
    found = []
    counted = {(line.file, line.number): line for line in kernel.lines}
    files = [name for name in kernel.sources if any(line.file == name for line in kernel.lines)]
    for name in sorted(files, key=lambda f: f.endswith(".cuh")):
        body = "".join(
            _row(n, name, number, text, counted.get((name, number)))
            for number, text in enumerate(kernel.sources[name].split("\n"), 1)
        )
        heads = "".join(f"<th>{h}</th>" for h in HEADINGS[:-1]) + f'<th class="code">{HEADINGS[-1]}</th>'
        opened = "" if name.endswith(".cuh") else " open"
        found.append(
            f'<details{opened}><summary>{escape(name)}</summary><div class="source"><table><thead><tr>{heads}</tr></thead>'
            f"<tbody>{body}</tbody></table></div></details>"
        )
    return "".join(found)


def _row(n: int, file: str, number: int, text: str, line: Line | None) -> str:
    code = f'<td class="code">{escape(text)}</td>'
    start = f'<tr id="{_anchor(n, file, number)}"'
    if line is None:
        return f'{start} class="quiet"><td class="number">{number}</td>{"<td></td>" * (len(HEADINGS) - 2)}{code}</tr>'
    kinds = _marks(line)
    middle = "".join(f"<td{k}>{c}</td>" for c, k in zip(cells(line), kinds, strict=True))
    return f'{start}><td class="number">{number}</td>{middle}{code}</tr>'


def _marks(line: Line) -> Sequence[str]:
    """Returns the class attribute of each cell: what costs more than it needs to is marked."""
    load, store = line.of("global", "load"), line.of("global", "store")
    shared = line.of("shared", "load", "store")
    atomic = line.of("global", "atomic") + line.of("shared", "atomic") + line.of("remote", "atomic")

    def mark(value: float, warn: float, bad: float) -> str:
        return ' class="bad"' if value >= bad else ' class="warn"' if value >= warn else ""

    return (
        "",
        mark(32 - line.active if line.executions else 0, 4, 16),
        mark(load.sectors / load.ideal if load.ideal else 0, 1.1, 2),
        mark(store.sectors / store.ideal if store.ideal else 0, 1.1, 2),
        mark(shared.conflicts_per_request, 0.5, 4),
        mark(atomic.collisions / atomic.requests if atomic.requests else 0, 1.1, 8),
    )
