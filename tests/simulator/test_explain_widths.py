"""The widths of the counted accesses are those of the instructions that NVRTC emits for the same lines."""

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import autograd_bridge as ab
from cupyops import Kernel
from cupyops.compile.compiler import OPTIONS, compile_text
from cupyops.simulator import counted, counts, host
from tests.conftest import NO_COMPILER

pytestmark = [
    pytest.mark.simulator,
    pytest.mark.skipif(not NO_COMPILER and host.compiler().family == "clang", reason="clang splits structures"),
]
Accesses = dict[str, set[tuple[str, str, int]]]  # (space, kind, bytes of a lane) by line

KINDS = {"ld": "load", "st": "store", "atom": "atomic", "red": "atomic"}


def of_the_gpu(kernel: Kernel, types: Any) -> Accesses:
    """The accesses in the PTX of a kernel, by line."""
    options = (*OPTIONS, "-lineinfo", *kernel.options)
    code = compile_text(kernel.final_text(types), kernel.name, "compute_90", options).code.decode()
    files = {number: path.rpartition("/")[2] for number, path in re.findall(r'\.file\s+(\d+) "([^"]+)"', code)}
    found: Accesses = defaultdict(set)
    place = ""
    for line in code.split("\n"):
        if at := re.match(r"\s*\.loc\s+(\d+) (\d+)", line):
            place = f"{files[at[1]]}:{at[2]}"
        elif access := re.search(r"\b(ld|st|atom|red)\.((?:\w+\.)*?)(?:v(\d)\.)?[bufs](\d+)\s", line):
            space = next((s for s in ("global", "shared") if s in access[2].split(".")), "")
            if space:
                found[place].add((space, KINDS[access[1]], int(access[3] or 1) * int(access[4]) // 8))
    return found


def of_the_simulator(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Accesses]]:
    """The launches of a call, each with the counted accesses by line."""
    launches: list[Accesses] = []

    def read(library: Any, path: Any, files: Any, locator: Any, memory: Any) -> Any:
        found: Accesses = defaultdict(set)
        result = counts.read_counts(library, path, files, locator, memory)
        for i in range(library.cupyops_count_sites()):
            site = library.cupyops_count_site(i).contents
            way = locator.way(site.frames[: site.frame_count])
            for space, r in zip(("global", "shared"), site.spaces, strict=False):
                if r.requests and way:
                    each = (site.bytes & 0x7FFFFFFF) * site.executions // r.requests  # an object may take several
                    found[way[0]].add((space, ("", "load", "store", "atomic")[site.kind], each))
        launches.append(found)
        return result

    from cupyops.simulator import simulated

    monkeypatch.setattr(simulated, "read_counts", read)
    with counted(132) as recorded:
        call()
    return list(zip(recorded, launches, strict=True))


def backward_of_layer_norm() -> None:
    x, w = torch.randn(64, 1024, requires_grad=True), torch.randn(1024, requires_grad=True)
    ab.layer_norm(x, (1024,), w, torch.randn(1024)).sum().backward()


CALLS = {
    "gelu": lambda: ab.gelu(torch.randn(4096).half()),
    "add2 of a view": lambda: ab.add2(torch.randn(64, 64), torch.randn(64)),
    "layer_norm": backward_of_layer_norm,
    "linear": lambda: ab.linear(torch.randn(2, 256), torch.randn(128, 256), torch.randn(128)),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CALLS)
def test_the_widths_are_those_of_the_gpus_compiler(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cupy")
    compared = 0
    for launch, accesses in of_the_simulator(CALLS[name], monkeypatch):
        emitted = of_the_gpu(launch.kernel, launch.types)
        for place in set(accesses) & set(emitted):
            assert accesses[place] <= emitted[place], place
            compared += 1
    assert compared >= 2
