"""Compares the counts of cupyops.explain with those of Nsight Compute on a GPU, kernel by kernel.

``python tests/gpu/explained.py count counts.json`` counts in the simulator, on any machine with a C++ compiler.
``python tests/gpu/explained.py compare counts.json`` profiles the same calls with ``ncu`` on this machine's GPU and
prints the counters that differ. The exit status is 1 if less than 20 kernels have the GPU's sectors a request and bank
conflicts. ``--save PATH`` writes both numbers of every counter; ``explained.json`` beside this file is such a record.
``launch CASE ...`` is what ``ncu`` profiles.

The counters of an access through a cache depend on no cache: requests, sectors, wavefronts and bank conflicts are
counted before the look-up.
"""

import argparse
import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import autograd_bridge as ab
import cupyops
from cupyops import Kernel, Rows, Threads
from cupyops.simulator import Simulator
from examples.own_ops.cross_entropy import cross_entropy
from examples.own_ops.dropout import dropout
from examples.own_ops.rms_norm import rms_norm
from examples.own_ops.rotary import rotary
from examples.own_ops.softmax import softmax
from examples.own_ops.swiglu import swiglu
from tests.simulator import test_explain_counts as patterns

LEAST = 17  # kernels
H200 = 132  # multiprocessors; the bodies choose kernels and grids by this number

# The counters of ncu, by what the simulator counts: (space, kinds, attribute of Requests).
METRICS = {
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld": ("global", ("load",), "requests"),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld": ("global", ("load",), "sectors"),
    "l1tex__t_requests_pipe_lsu_mem_global_op_st": ("global", ("store",), "requests"),
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st": ("global", ("store",), "sectors"),
    "smsp__sass_inst_executed_op_shared_ld": ("shared", ("load",), "requests"),
    "smsp__sass_inst_executed_op_shared_st": ("shared", ("store",), "requests"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld": ("shared", ("load",), "wavefronts"),
    "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st": ("shared", ("store",), "wavefronts"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld": ("shared", ("load",), "conflicts"),
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st": ("shared", ("store",), "conflicts"),
}
# Two counters that together are one of ours: a GPU's compiler makes a reduction of an atomic operation without a result.
ATOMICS = ("l1tex__t_requests_pipe_lsu_mem_global_op_atom", "l1tex__t_requests_pipe_lsu_mem_global_op_red")


def randoms(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Normally distributed tensors on the CPU that require gradients."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


Call = Callable[..., Any]
Inputs = Callable[[], list[torch.Tensor]]
CASES: dict[str, tuple[Call, Inputs]] = {}


def case(
    name: str, call: Call, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, also: Inputs = list
) -> None:
    """Adds a call of random tensors, and of further ones that have no gradient."""
    CASES[name] = call, lambda: [*(x.requires_grad_() for x in randoms(*shapes, dtype=dtype)), *also()]


def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return ab.layer_norm(x, x.shape[-1:], weight, bias)


def added(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
    return ab.add_layer_norm(x, residual, x.shape[-1:], weight, bias)


half, bfloat16 = torch.float16, torch.bfloat16
case("gelu", ab.gelu, (4096,))
case("gelu, float16", ab.gelu, (10_001,), dtype=half)
case("gelu, tanh", lambda x: ab.gelu(x, approximate="tanh"), (70_000,))
case("gelu, a view", lambda x: ab.gelu(x[1:]), (5000,))
case("add2", ab.add2, (64, 100), (64, 100))
case("add2, broadcast", ab.add2, (64, 96), (96,))
case("add2, transposed", lambda a, b: ab.add2(a.t(), b), (64, 96), (96, 64))
case("add2, bfloat16", ab.add2, (333, 7), (333, 7), dtype=bfloat16)
for rows, columns in ((8, 1024), (5, 1000), (3, 1023), (300, 256), (64, 6144)):
    case(f"layer_norm, {rows} x {columns}", norm, (rows, columns), (columns,), (columns,))
case("layer_norm, bfloat16", norm, (16, 2048), (2048,), (2048,), dtype=bfloat16)
case("add_layer_norm", added, (9, 768), (9, 768), (768,), (768,))
case("rms_norm", lambda x, w: ab.rms_norm(x, x.shape[-1:], w), (8, 1024), (1024,))
case("linear, two rows", torch.no_grad()(ab.linear), (2, 256), (128, 256), (128,))
case("linear_gelu, two rows", torch.no_grad()(ab.linear_gelu), (2, 256), (128, 256), (128,))
case("lltm_cell", ab.lltm_cell, (4, 32), (48, 48), (48,), (4, 16), (4, 16))
case("own rms_norm", lambda x, w: rms_norm(x, w, 1e-5), (64, 1024), (1024,))
case("own softmax", softmax, (64, 1000))
case("own cross_entropy", cross_entropy, (64, 1000), also=lambda: [torch.arange(64)])
case("own swiglu", swiglu, (64, 128), (64, 128))
case("own dropout", lambda x, key: dropout(x, key, 0.1), (37, 19), also=lambda: [torch.tensor([7])])
case("own rotary", rotary, (2, 16, 3, 64), also=lambda: randoms((16, 32), (16, 32)))
# Its launches part the cases in what ncu prints: the grid is the number of the case.
MARKER = "next_case"
MARK = Kernel(
    f'extern "C" __global__ void {MARKER}(float* out, long long n) {{ if (threadIdx.x == 0) out[blockIdx.x] = 0; }}',
    MARKER,
    Threads("n", block=1),
)
GLOBAL = Kernel(patterns.GLOBAL, "k", Threads("n", block=64), dtypes=("float32",))
SHARED = Kernel(patterns.SHARED, "k", Rows("n", block=64), dtypes=("float32",))
N = 32 * patterns.ALL


def patterns_of_global(x: torch.Tensor) -> None:
    GLOBAL(x.detach(), torch.empty_like(x), N, x.numel())


def patterns_of_shared(x: torch.Tensor) -> None:
    SHARED(x.detach(), torch.empty_like(x), torch.zeros(64, dtype=torch.int32, device=x.device), 64)


case("patterns of global memory", patterns_of_global, (32 * N,))
case("patterns of shared memory", patterns_of_shared, (64,))


def launch(name: str, device: str) -> None:
    """Makes a call, and its backward if the result has one."""
    call, inputs = CASES[name]
    tensors = [x.detach().to(device).requires_grad_(x.requires_grad) for x in inputs()]
    found = call(*tensors)
    results = [y for y in (found if isinstance(found, tuple) else (found,)) if y is not None and y.requires_grad]
    if results:
        wanted = [x for x in tensors if x.requires_grad]
        torch.autograd.grad(results, wanted, [torch.ones_like(y) for y in results], allow_unused=True)


def count(path: Path) -> int:
    """Counts every case in the simulator."""
    path.write_text(json.dumps(counted(CASES), indent=1) + "\n", encoding="utf-8")
    return 0


def counted(names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Returns, by case, the kernel, the grid and the counters of each launch in a simulated H200."""
    Simulator.multiprocessors = H200
    found = {}
    for name in names:
        report = cupyops.explain(launch, name, "cpu", gpu="H200")
        found[name] = [
            {
                "kernel": k.name,
                "grid": list(k.grid),
                "counters": {m: getattr(k.total(space, *kinds), a) for m, (space, kinds, a) in METRICS.items()}
                | {"atomics": k.total("global", "atomic").requests},
            }
            for k in report.kernels
        ]
        print(f"{name}: {', '.join(k.name for k in report.kernels)}", flush=True)
    return found


def profiled(names: list[str], kernels: set[str]) -> dict[str, list[tuple[str, list[int], Mapping[str, float]]]]:
    """Returns, by case, the kernel, the grid and the counters of each launch that one run of ``ncu`` profiles."""
    command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base"]
    command += ["--metrics", ",".join(f"{m}.sum" for m in known())]
    command += ["--kernel-name", f"regex:^({'|'.join(sorted(kernels | {MARKER}))})$"]
    done = subprocess.run(
        [*command, sys.executable, __file__, "launch", *names], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    found: dict[str, list[tuple[str, list[int], Mapping[str, float]]]] = {name: [] for name in names}
    at = ""
    for row in list(csv.DictReader(lines))[1:]:  # the first row has the units
        kernel, grid = row["Kernel Name"].partition("(")[0], [int(n) for n in re.findall(r"\d+", row["Grid Size"])]
        if kernel == MARKER:
            at = names[grid[0] - 1]
            continue
        counters = {
            k.removesuffix(".sum"): float(v.replace(",", "")) for k, v in row.items() if k.endswith(".sum") and v
        }
        found[at].append((kernel, grid, counters))
    return found


_known: list[str] = []


def known() -> list[str]:
    """Returns the counters that this ``ncu`` has for the GPU."""
    if not _known:
        listed = subprocess.run(["ncu", "--query-metrics"], capture_output=True, text=True, check=True).stdout
        _known.extend(m for m in (*METRICS, *ATOMICS) if re.search(rf"^{m}\b", listed, re.MULTILINE))
        for missing in {*METRICS, *ATOMICS} - set(_known):
            print(f"ncu has no {missing} for this GPU")
    return _known


def compare(path: Path, save: Path | None) -> int:
    """Compares the counts of a file with those of ``ncu``; returns the exit status."""
    kept: dict[str, dict[str, tuple[float, float]]] = {}
    cases = json.loads(path.read_text(encoding="utf-8"))
    kernels = {one["kernel"].partition("<")[0] for launches in cases.values() for one in launches}
    for name, of_gpu in profiled(list(cases), kernels).items():
        launches = cases[name]
        ours = [(one["kernel"].partition("<")[0], one["grid"]) for one in launches]
        if ours != [(kernel, grid) for kernel, grid, _ in of_gpu]:
            print(f"{name}: other launches: {ours} in the simulator, {[g[:2] for g in of_gpu]} on the GPU")
            continue
        for one, (_, _, counters) in zip(launches, of_gpu, strict=True):
            both = {m: (one["counters"][m], counters[m]) for m in METRICS if m in counters}
            both["atomics"] = one["counters"]["atomics"], sum(counters.get(m, 0) for m in ATOMICS)
            kept[f"{name}: {one['kernel']}"] = both
            wrong = {m: pair for m, pair in both.items() if pair[0] != pair[1]}
            print(f"{name}: {one['kernel']}: {'equal' if not wrong else ''}", flush=True)
            for metric, (mine, measured) in wrong.items():
                print(f"    {metric}: {mine} in the simulator, {measured:.0f} on the GPU")
    if save is not None:
        save.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    equal = equal_kernels(kept)
    print(
        f"{len(kept)} calls of kernels compared; {len(equal)} kernels have equal sectors a request and bank conflicts"
    )
    return int(len(equal) < LEAST)


def equal_kernels(found: Mapping[str, Mapping[str, Sequence[float]]]) -> set[str]:
    """Returns the kernels whose sectors a request, and whose bank conflicts, are those of the GPU in every call.

    Args:
        found: by call, for each counter the number of the simulator and that of the GPU.
    """
    other: set[str] = set()
    same: set[str] = set()
    for call, both in found.items():
        read = {m: both[m] for m in METRICS}
        figures: list[list[float]] = [[], []]
        for kind in ("ld", "st"):
            sectors = read[f"l1tex__t_sectors_pipe_lsu_mem_global_op_{kind}"]
            requests = read[f"l1tex__t_requests_pipe_lsu_mem_global_op_{kind}"]
            conflicts = read[f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{kind}"]
            for i in range(2):
                figures[i] += [sectors[i] / requests[i] if requests[i] else 0, conflicts[i]]
        (same if figures[0] == figures[1] else other).add(call.rpartition(": ")[2])
    return same - other


def main() -> int:
    """Runs one of the three subcommands."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("action", choices=("count", "compare", "launch"))
    parser.add_argument("what", nargs="+", help="the JSON file, or the cases")
    parser.add_argument("--save", type=Path, help="write both numbers of every counter to this JSON file")
    options = parser.parse_args()
    if options.action == "launch":
        for number, name in enumerate(options.what, 1):
            MARK(torch.empty(number, device="cuda"), number)
            launch(name, "cuda")
        torch.cuda.synchronize()
        return 0
    if len(options.what) != 1:
        parser.error(f"{options.action} takes one file")
    path = Path(options.what[0])
    return count(path) if options.action == "count" else compare(path, options.save)


if __name__ == "__main__":
    raise SystemExit(main())
