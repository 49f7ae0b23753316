"""Every shipped kernel on small and odd sizes, for compute-sanitizer to watch: ``compute-sanitizer --tool memcheck
python tests/gpu/sanitize.py``.

It works on CuPy arrays, so that the sanitizer need not follow PyTorch. ``--plant race|bounds|uninitialised`` runs a
faulty kernel instead, which shows that a clean report means something.
"""

import argparse
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import cupy

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import cupyops
from cupyops.arrays import LIBRARIES
from cupyops.launch import driver
from cupyops.launch.tensor_map import tensor_map
from cupyops.ops.layer_norm.body import tangent
from cupyops.ops.linear import config as linear_config
from cupyops.ops.linear.fused_gelu import FORWARD
from cupyops.ops.linear.sm90 import sm90_kernel
from cupyops.programs.expressions import parse
from cupyops.programs.row_config import config_of, kernel_of, work_of
from cupyops.programs.row_source import text_of
from cupyops.programs.rows import RowProgram

PLANTED = """
extern "C" __global__ void bounds(float* y,  // (n)
                                  long long n) { y[n + threadIdx.x] = 1; }
extern "C" __global__ void race(float* y,  // (n)
                                long long n) {
    __shared__ float s[256];
    s[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = s[255 - threadIdx.x];
}
extern "C" __global__ void uninitialised(float* y,  // (n)
                                         long long n) { y[threadIdx.x] = y[threadIdx.x] + 1; }
"""


def plant(fault: str) -> None:
    """Runs the kernel with this fault."""
    kernel = cupyops.Kernel(PLANTED, fault, cupyops.Threads("n"), dtypes=("float32",))
    kernel(cupy.empty(256, dtype="float32"), 256)
    cupy.cuda.runtime.deviceSynchronize()


def run() -> int:
    """Runs every kernel; returns how many calls that were."""
    calls = 0
    for dtype in ("float16", "float32", "float64"):
        for n in (1, 7, 1023, 4096, 10_001):
            x = cupy.linspace(-8, 8, n + 1).astype(dtype)
            for view in (x[:n], x[1:]):  # aligned and not
                for form in ("none", "tanh"):
                    cupyops.gelu_backward(cupyops.gelu(view, form), view, form)
                    calls += 2
    for first, second in itertools.product(("float16", "float32", "int8", "int64"), repeat=2):
        a, b = (cupy.arange(33 * 40).reshape(33, 40) % 100).astype(first), cupy.ones((33, 40), dtype=second)
        for p, q in (
            (a, b),
            (a.T, b.T),
            (a, b[0]),
            (a, b[:, :1]),
            (a[:, 1:], b[:, 1:]),
            (a[:, ::2], b[:, 1::2]),
            (a[0], b[0, :1]),
        ):
            cupyops.add2(p, q, alpha=2)
            calls += 1
    for dtype in ("float16", "float32", "float64"):
        # Short and odd rows, clusters of blocks, persistent blocks, and rows read twice.
        for m, n in ((5, 7), (70, 96), (9, 1000), (3, 1023), (5, 5121), (40, 16_384), (40, 65_536), (2, 140_001)):
            if dtype == "float64" and n > 10_000:
                continue
            x, weight = cupy.linspace(-8, 8, m * n).astype(dtype).reshape(m, n), cupy.ones(n, dtype=dtype)
            y, mean, rstd = cupyops.layer_norm(x, n, weight, weight, return_stats=True)
            stats = cupy.stack((mean, rstd))
            cupyops.layer_norm_backward(y, x, stats, n, weight)
            cupyops.layer_norm_backward(y, x, stats, n, weight, wants=(False, True, True))
            cupyops.add_layer_norm(x, y, n, weight)
            tangent(y, x, stats.reshape(2, m, 1), weight, weight, None, (n,), 1e-5)
            calls += 5
    for dtype in ("float16", "float32", "float64"):
        # Clusters, groups, odd lengths; the products are the library's, and not asked for.
        for m, n in ((5, 7), (70, 96), (300, 1023), (2000, 64), (33, 2048), (20_000, 24)):
            grad = cupy.linspace(-8, 8, m * n).astype(dtype).reshape(m, n)
            cupyops.linear_backward(grad)
            for form in ("none", "tanh"):
                cupyops.linear_gelu_backward(grad, grad, approximate=form)
                kernel, sizes = FORWARD[form].launch(dtype, m, n)
                kernel(grad[0].copy(), grad.copy(), cupy.empty_like(grad), m, n, *sizes)
            calls += 5
        for few in (1, 3):
            few_rows, many = cupy.ones((few, 2048), dtype=dtype), cupy.ones((1024, 2048), dtype=dtype)
            if dtype != "float64":
                odd_few, odd = few_rows[:, :7].copy(), many[:5, :7].copy()
                for x, weight in ((few_rows, many), (many, few_rows), (odd_few, odd)):
                    cupyops.linear(x, weight, weight[:, 0])
                    cupyops.linear_gelu(x, weight, weight[:, 0])
                    calls += 2
    calls += programs() + recurrent() + tensor_cores()
    cupy.cuda.runtime.deviceSynchronize()
    return calls


# By name: the program, the arrays (M, N), the other inputs and the results.
PROGRAMS: dict[str, tuple[str, tuple[str, ...], dict[str, tuple[str, ...]], tuple[str, ...]]] = {
    "softmax": ("m = max(x); e = exp(x - m); r = 1 / sum(e); y = e * r", ("x",), {}, ("y",)),
    "picked": ("m = max(x); s = sum(exp(x - m)); y = log(s) + m - x[t]", ("x",), {"indices": ("t",)}, ("y",)),
    "norm_backward": (
        "r = rsqrt(sum(x * x) / N + eps); d = sum(g * w * x) / N * r * r; gx = r * (g * w - x * d); gw = column_sum(g * x * r)",
        ("g", "x"),
        {"columns": ("w",), "scalars": ("eps",)},
        ("gx", "gw"),
    ),
}


def programs() -> int:
    """Kernels of row programs: several rows in a block, tiles of rows of odd lengths, rows of blocks and clusters, persistent
    blocks that prefetch, and rows that stream."""
    calls = 0
    rows_and_lengths = ((5, 7), (70, 96), (9, 1000), (7, 4096), (40, 16_384), (20, 65_536), (5, 262_144))
    rows_and_lengths += ((70, 99), (300, 197), (33, 1025), (9, 6145), (3, 50_257))
    for (name, given), dtype in itertools.product(PROGRAMS.items(), ("float16", "float32")):
        text, elements, others, results = given
        fields = {"rows": (), "indices": (), "columns": (), "scalars": ()} | others
        statements = tuple(parse(text, name, fields["indices"]))
        program = RowProgram(name, statements, elements, results=results, **fields)
        source, kinds = text_of(program), program.kinds()
        sizes = {x: 8 if x in program.indices else cupy.dtype(dtype).itemsize for x in program.inputs}
        for m, n in rows_and_lengths:
            config = config_of(n, dtype, work_of(program, sizes), driver.capability(0))
            blocks = min(-(-m // config.groups), 3)  # some blocks have several rows
            shapes = {"element": (m, n), "row": (m,), "column": (blocks, n)}
            arrays: dict[str, Any] = dict.fromkeys(elements, cupy.linspace(-8, 8, m * n).astype(dtype).reshape(m, n))
            arrays |= dict.fromkeys(program.indices, cupy.arange(m) % n)
            arrays |= dict.fromkeys(program.columns, cupy.ones(n, dtype=dtype))
            outs = [cupy.zeros(shapes[kinds[y]], dtype="float32" if kinds[y] == "column" else dtype) for y in results]
            numbers = (m, n, blocks, blocks) if "column" in kinds.values() else (m, n, blocks)
            scalars = [1e-5] * len(program.scalars)
            kernel_of(program, source, config, dtype)(*(arrays[x] for x in program.inputs), *outs, *scalars, *numbers)
            calls += 1
    return calls


def tensor_cores() -> int:
    """The matrix kernel, on the one generation that has its instructions: tails along each dimension, both cuts and forms,
    more pairs of tiles than clusters."""
    calls = 0
    if driver.capability(0) != linear_config.SM90:
        return calls
    m, n, k, clusters = 600, 264, 200, 2
    x, weight = (cupy.sin(cupy.arange(r * k)).astype("float16").reshape(r, k) for r in (m, n))
    for config, form, bias in itertools.product(
        (linear_config.SHORT, linear_config.LONG), ("none", "tanh"), (None, weight[:, 0].copy())
    ):
        y, z = cupy.empty((m, n), "float16"), cupy.empty((m, n), "float16")
        boxes = ((x, linear_config.TILE_M), (weight, linear_config.TILE_N // 2), (z, 64), (y, 64))
        maps = [tensor_map(a.data.ptr, *a.shape, "float16", rows) for a, rows in boxes]
        sm90_kernel(config, form)(x, weight, bias, z, y, *maps, m, n, k, 0 if bias is None else n, clusters)
        calls += 1
    cupy.cuda.runtime.deviceSynchronize()
    return calls


def recurrent() -> int:
    """The LLTM's kernels: cells with and without a library's products, and sequences in a block, a cluster, blocks all over
    the GPU, and a launch a step."""
    library = LIBRARIES[cupy.ndarray]

    def product(a: Any, b: Any) -> Any:
        # The kernels are to be watched, not a library, and CuPy's may be missing.
        return (a[:, :, None].astype("float32") * b[None].astype("float32")).sum(1)

    def linear(x: Any, weight: Any, bias: Any) -> Any:
        found = product(x.reshape(-1, x.shape[-1]), weight.T) + bias
        return found.astype(x.dtype).reshape(*x.shape[:-1], weight.shape[0])

    def add_product(c: Any, a: Any, b: Any) -> None:
        c[...] = (c + product(a, b)).astype(c.dtype)

    def matmul_into(a: Any, b: Any, out: Any) -> None:
        out[...] = product(a, b).astype(out.dtype)

    def matmul(a: Any, b: Any) -> Any:
        return product(a, b).astype(a.dtype)

    library.linear, library.add_product = linear, add_product  # type: ignore[method-assign]
    library.matmul, library.matmul_into = matmul, matmul_into  # type: ignore[method-assign]
    calls = 0
    for dtype in ("float16", "float32", "float64"):

        def made(*shape: int, dtype: str = dtype) -> Any:
            return (cupy.sin(cupy.arange(math.prod(shape))) / 4).astype(dtype).reshape(shape)

        for batch, features, state in ((3, 5, 7), (16, 32, 128), (40, 100, 200)):
            x, weights, bias = made(batch, features), made(3 * state, state + features), made(3 * state)
            h = made(batch, state)
            new_h, new_cell, gates = cupyops.lltm_cell(x, weights, bias, h, h)
            cupyops.lltm_cell_backward(new_h, new_cell, x, weights, h, new_cell, gates)
            calls += 2
        for steps, batch, state in ((4, 5, 20), (4, 3, 128), (3, 9, 256), (3, 4, 512), (3, 3, 1024)):
            if dtype == "float64" and state > 128:
                continue
            x, weights, bias = made(steps, batch, 4), made(3 * state, state + 4), made(3 * state)
            h0 = made(batch, state)
            h, last, cells, gates = cupyops.lltm_sequence(x, weights, bias, h0, h0)
            cupyops.lltm_sequence_backward(h, last, x, weights, h0, h, cells, gates)
            calls += 2
    return calls


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plant", choices=("bounds", "race", "uninitialised"))
    arguments = parser.parse_args()
    if arguments.plant:
        plant(arguments.plant)
    else:
        print(f"{run()} calls")
