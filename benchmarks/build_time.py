"""Build times: from source text to the first result, with an empty cache and with a full one, each in a fresh process.

``python -m benchmarks.build_time ours`` is such a process: it imports, wakes the GPU, and only then starts the clock.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cupyops.torch.bench.timing import spread

from .measure import Findings
from .peers import BuildFailed, Unavailable
from .results_file import ROOT

__all__ = ["measure_build"]

SECTION = "build"
REPEATS = 5
STEADY_CALLS = 5
CHILD_TIMEOUT_SECONDS = 300

# Where each keeps what it has built. Inductor puts Triton's folder into its own.
CACHE_VARIABLE = {"ours": "CUPYOPS_CACHE_DIR", "triton": "TRITON_CACHE_DIR", "compile": "TORCHINDUCTOR_CACHE_DIR"}

EXTENSION_WHAT = "all operators, forward and backward, four dtypes"


def measure_build(names: Sequence[str], *, repeats: int = REPEATS, echo: Callable[[str], object] = print) -> Findings:
    """Seconds to build, by implementation, kernel and state of the cache.

    Ours is built `repeats` times; the peers, which take seconds to minutes, once.
    """
    findings = Findings()
    for name in names:
        try:
            if name == "extension":
                _measure_extension(findings)
            elif name in CACHE_VARIABLE:
                _measure_cached(findings, name, repeats if name == "ours" else 1)
        except Unavailable as reason:
            findings.skip(SECTION, name, str(reason), failed=isinstance(reason, BuildFailed))
    for row in findings.rows:
        echo(f"build, {row['implementation']}, {row['what']}, {row['cache']}: {row['seconds']:.4g} s")
    return findings


def _measure_cached(findings: Findings, name: str, repeats: int) -> None:
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="cupyops-build-", ignore_cleanup_errors=True) as folder:
            for cache in ("cold", "warm"):
                for what, value in _child(name, {CACHE_VARIABLE[name]: folder}):
                    seconds.setdefault((what, cache), []).append(value)
    for (what, cache), values in seconds.items():
        findings.rows.append(_row(name, what, cache, values))


def _measure_extension(findings: Findings) -> None:
    from .peers.extension import built

    extension = built()
    findings.rows.append(_row("extension", EXTENSION_WHAT, "cold", [extension.seconds]))
    warm = _child("extension", {}, str(extension.folder))
    findings.rows += [_row("extension", what, "warm", [value]) for what, value in warm]


def _row(name: str, what: str, cache: str, values: Sequence[float]) -> dict[str, Any]:
    s = spread(values)
    return {
        "implementation": name,
        "what": what,
        "cache": cache,
        "seconds": round(s.median, 5),
        "p10": round(s.p10, 5),
        "p90": round(s.p90, 5),
        "samples": s.samples,
    }


def _child(name: str, variables: dict[str, str], *arguments: str) -> list[tuple[str, float]]:
    """Returns the measurements of a new process: pairs of a name and its seconds.

    Raises:
        Unavailable: the process found a tool missing.
        BuildFailed: it failed otherwise.
    """
    command = [sys.executable, "-m", "benchmarks.build_time", name, *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=CHILD_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise BuildFailed(f"the process that builds it took more than {CHILD_TIMEOUT_SECONDS} s") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        raise BuildFailed(f"the process that builds it ended with {done.returncode}: {last}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if isinstance(answer, str):
        raise Unavailable(answer)
    return [(what, float(seconds)) for what, seconds in answer]


# The fresh process


def _first_call(call: Callable[[], Any]) -> float:
    """Seconds of the first call until its result is there, less those of a later one."""
    import torch

    def once() -> float:
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    first = once()
    return first - statistics.median(once() for _ in range(STEADY_CALLS))


def _build_in_this_process(name: str, arguments: Sequence[str]) -> list[tuple[str, float]]:
    import torch
    import torch.nn.functional as F

    wide = torch.randn(2**20, device="cuda")
    narrow = wide.to(torch.bfloat16)
    # The allocator's first blocks, and the context, are there before the clock starts.
    spare = [torch.empty_like(x) for x in (wide, narrow)]
    del spare
    torch.cuda.synchronize()
    if name == "ours":
        import autograd_bridge
        from cupyops.compile import toolchain

        toolchain.cupy()
        return [
            # The first of a process also loads the NVRTC library, where the cache asks for its version.
            ("add2 float32, first of the process", _first_call(lambda: autograd_bridge.add2(wide, wide))),
            ("gelu bfloat16, second of the process", _first_call(lambda: autograd_bridge.gelu(narrow))),
        ]
    if name == "triton":
        from .peers import triton_kernels

        kernels, adds = triton_kernels("gelu"), triton_kernels("add2")
        return [
            ("add2 float32, first of the process", _first_call(lambda: adds.add2(wide, wide))),
            ("gelu bfloat16, second of the process", _first_call(lambda: kernels.forward(False, narrow))),
        ]
    if name == "compile":
        from .peers import compiled

        add, gelu = compiled(lambda a, b: a + b), compiled(lambda x: F.gelu(x))
        return [
            ("add2 float32, first of the process", _first_call(lambda: add(wide, wide))),
            ("gelu bfloat16, second of the process", _first_call(lambda: gelu(narrow))),
        ]
    from .peers.extension import load

    return [(EXTENSION_WHAT, load(Path(arguments[0]))[1])]


if __name__ == "__main__":
    try:
        answer: Any = _build_in_this_process(sys.argv[1], sys.argv[2:])
    except Unavailable as reason:
        answer = str(reason)
    print(json.dumps(answer))
