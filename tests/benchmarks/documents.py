"""Results files as runs write them."""

import math
from collections.abc import Sequence
from typing import Any

from benchmarks import results_file
from benchmarks.measure import Findings
from cupyops.torch.bench.timing import gigabytes_per_second


def row(implementation: str, microseconds: float, **labels: Any) -> dict[str, Any]:
    shape = labels.pop("shape", [2**28])
    nbytes = 4 * math.prod(shape)
    times = {"microseconds": microseconds, "p10": microseconds, "p90": microseconds + 1, "samples": 15}
    rate = gigabytes_per_second(nbytes, microseconds)
    return {
        "op": "gelu",
        "variant": "none",
        "direction": "forward",
        "dtype": "bfloat16",
        "shape": shape,
        **labels,
        "implementation": implementation,
        **times,
        "timer": "graph",
        "sets": 2,
        "bytes": nbytes,
        "gb_per_s": rate,
        "share_of_copy": rate / 4280,
    }


def document(rows: Sequence[dict[str, Any]] = (), commit: str = "0123456789abcdef") -> dict[str, Any]:
    """A results file as a run writes it, with a few rows of everything."""
    environment = {"gpu": "NVIDIA H200", "torch": "2.11.0", "cupy": "14.2.0", "nvrtc": "13.0", "triton": "3.6.0"}
    copy = {"gb_per_s": 4280.0, "p10": 4270.0, "p90": 4290.0, "bytes": 2**33}
    made = results_file.new(environment, commit, False, copy)
    device = Findings(list(rows))
    if not rows:
        for n, ours, eager in ((2**20, 3.0, 2.5), (2**28, 259.0, 343.0)):
            device.rows += [row("ours", ours, shape=[n]), row("eager", eager, shape=[n])]
            device.rows += [row("ours", 2 * ours, shape=[n], dtype="float32", direction="backward")]
    device.skip("gelu.device", "extension", "nvcc is missing", failed=False)
    results_file.add(made, "gelu.device", "rows", device)
    host = [row(name, value, shape=[1024], dtype="float32") for name, value in (("ours", 6.5), ("dlpack", 30.0))]
    results_file.add(made, "gelu.host", "host", Findings(host))
    build = [
        {"implementation": name, "what": "gelu", "cache": cache, "seconds": seconds, "samples": 1}
        for name, cache, seconds in (("ours", "cold", 0.12), ("ours", "warm", -0.00001), ("extension", "cold", 31.0))
    ]
    results_file.add(made, "build", "build", Findings(build))
    runs = [
        {
            "backend": backend,
            "recipe": "fast",
            "seed": seed,
            "epochs": 2,
            "accuracy": 98.0 + seed,
            "accuracies": [97.0, 98.0 + seed],
            "seconds_per_epoch": seconds,
        }
        for backend, seed, seconds in (("kernels", 0, 1.5), ("kernels", 1, 1.7), ("torch", 0, None))
    ]
    results_file.add(made, "lenet5", "lenet5", Findings(runs))
    return made
