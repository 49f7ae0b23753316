"""CUDA's libraries in the simulator: the texts of library/ compile, and give NumPy's values in the simulator and on a
GPU.

A text has several constructs, so that one compilation tests them all. The same texts are compiled by NVRTC for sm_80 and
sm_90: nothing may run in the simulator that does not compile there.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cupyops
import cupyops.simulator.build as build
from cupyops import Kernel, Rows, Threads
from cupyops.compile import toolchain
from cupyops.compile.compiler import binary_for
from cupyops.compile.standard import as_library
from cupyops.errors import CompileError, MissingDependencyError
from cupyops.simulator import flags, host
from cupyops.simulator.translate import translate
from tests.conftest import CUDA
from tests.simulator.library.cases import CASES, Case

FOLDER = Path(__file__).parent / "library"
LANES = [pytest.param("cpu", marks=pytest.mark.simulator), CUDA]


@functools.cache
def text_of(name: str) -> str:
    return (FOLDER / f"{name}.cu").read_text()


def kernel(case: Case, **constants: int) -> Kernel:
    return Kernel(
        text_of(case.text),
        case.kernel,
        Rows("M", block=case.block) if case.rows else cupyops.Threads("N", block=case.block),
        dtypes=("int32",),
        constants={**case.constants, **constants},
        cooperative=case.cooperative,
    )


def run(case: Case, where: str, arrays: Mapping[str, Any], **constants: int) -> dict[str, np.ndarray]:
    if where == "cuda":
        import torch

        found = {name: torch.from_numpy(a.copy()).cuda() for name, a in arrays.items()}
        kernel(case, **constants)(*found.values(), case.count)
        return {name: a.cpu().numpy() for name, a in found.items()}
    found = {name: a.copy() for name, a in arrays.items()}
    with cupyops.simulate(sanitize=True):
        kernel(case, **constants)(*found.values(), case.count)
    return found


@pytest.mark.sample(3)
@pytest.mark.parametrize("where", LANES)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.kernel)
def test_a_construct_has_another_value_than_numpy_says(case: Case, where: str) -> None:
    if where == "cuda":
        import torch

        if torch.cuda.get_device_capability() < case.since:
            pytest.skip(f"{case.kernel} needs sm_{case.since[0]}{case.since[1]}")
    arrays = case.arrays()
    found = run(case, where, arrays)
    for name, wanted in case.expected(arrays).items():
        tolerance = case.tolerance.get(name, 0.0)
        for slot, value in wanted:
            np.testing.assert_allclose(
                found[name][slot], value, rtol=tolerance, atol=tolerance, err_msg=f"{name}{slot}"
            )


# All for sm_90, since a text for sm_80 has the same includes; the instructions for sm_80, too.
COMPILED = [(t, "sm_90") for t in sorted({c.text for c in CASES})]
COMPILED += [(t, "sm_80") for t in ("halves", "intrinsics", "ptx", "special", "tensor_cores")]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("text", "architecture"), COMPILED)
def test_a_text_runs_in_the_simulator_and_does_not_compile(text: str, architecture: str) -> None:
    if not toolchain.has_nvrtc():
        pytest.skip("NVRTC is not installed")
    case = next(c for c in CASES if c.text == text)
    try:
        assert binary_for(kernel(case).final_text({}), text, architecture).code
    except MissingDependencyError as lacking:
        pytest.skip(str(lacking))


def test_a_text_without_these_headers_includes_them() -> None:
    text = 'extern "C" __global__ void k(float* y, long long n) { y[0] = __popc(7); }'
    includes = re.findall("#include <(.+?)>", translate(f'#line 1 "k.cu"\n{text}', ["k"], "k"))
    assert includes == ["attributes.h", "without_attributes.h"]
    with_simd = translate('#line 1 "k.cu"\n' + text.replace("__popc(7)", "__vadd4(1, 2)"), ["k"], "k")
    assert with_simd.startswith("#include <simd.h>\n#line 1")


@pytest.mark.simulator
def test_a_header_of_cuda_13_finds_its_names_and_a_text_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CUDA 13's header of 8-bit floats has macros around deprecated types, and its own names of four doubles."""
    header = "__NV_SILENCE_DEPRECATION_BEGIN\ninline double of_13(double4_16a a, double4_32a b) { return a.x + b.w; }\n"
    (tmp_path / "cuda_fp8.h").write_text(f"#pragma once\n{header}__NV_SILENCE_DEPRECATION_END\n")
    for name in host.cuda_include().iterdir():
        if name.name != "cuda_fp8.h":
            (tmp_path / name.name).symlink_to(name)
    monkeypatch.setattr(host, "cuda_include", lambda: tmp_path)
    text = "#include <cuda_fp8.h>\n__global__ void k(double* y) { BODY y[0] = of_13({1, 2, 3, 4}, {5, 6, 7, 8}); }"
    y = np.zeros(1)
    with cupyops.simulate():
        older = "#ifndef CUPYOPS_SIMULATOR\nstruct Four { double x, y, z, w; };\n__device__ double of_13(Four a, Four b);\n#endif\n"
        Kernel(older + text.replace("BODY", ""), "k", Threads())[1](y)
        assert y[0] == 9
        with pytest.raises(CompileError, match="double4_32a"):
            Kernel(text.replace("BODY", "double4_32a a;"), "k", Threads())[1](y)


@pytest.mark.simulator
def test_to_skip_numbers_of_xorwow_leads_elsewhere_than_to_draw_them() -> None:
    text = """#include <curand_kernel.h>
    __global__ void k(unsigned* y) {
        curandState drawn, skipped, begun;
        curand_init(5, 0, 0, &drawn), curand_init(5, 0, 0, &skipped), curand_init(5, 0, 7, &begun);
        for (int i = 0; i < 7; ++i) curand(&drawn);
        skipahead(7, &skipped);
        y[0] = curand(&drawn), y[1] = curand(&skipped), y[2] = curand(&begun);
    }"""
    y = np.zeros(3, np.uint32)
    with cupyops.simulate():
        Kernel(text, "k", Threads())[1](y)
    assert y.tolist() == [y[0]] * 3


@pytest.mark.simulator
def test_four_numbers_of_philox_begin_behind_those_that_are_drawn() -> None:
    text = """#include <curand_kernel.h>
    __global__ void k(uint4* y) {
        curandStatePhilox4_32_10_t of_four, of_one;
        curand_init(5, 0, 0, &of_four), curand_init(5, 0, 0, &of_one);
        curand(&of_four), curand(&of_one);
        y[0] = curand4(&of_four);
        y[1].x = curand(&of_one), y[1].y = curand(&of_one), y[1].z = curand(&of_one), y[1].w = curand(&of_one);
    }"""
    y = np.zeros((2, 4), np.uint32)
    with cupyops.simulate():
        Kernel(text, "k", Threads())[1](y)
    assert y[0].tolist() == y[1].tolist()


def test_the_standard_librarys_noinline_compiles_beside_cudas(tmp_path: Path) -> None:
    """GCC's shared pointers have this attribute. GCC 13 includes them in headers that texts may include."""
    (tmp_path / "pointers.h").write_text("__attribute__((__noinline__)) inline int two() { return 2; }\n")
    lines = ['#include "device.h"', *as_library(['"pointers.h"']), "__device__ __noinline__ int one() { return 1; }\n"]
    (tmp_path / "text.cpp").write_text("\n".join(lines), encoding="utf-8")
    paths = [f"-I{build.HERE / folder}" for folder in ("cuda", "runtime", "include")]
    build.run(host.compiler(), [*flags.COMMON, *paths, "-c", "text.cpp", "-o", "text.o"], tmp_path)
