"""NVRTC: the target for each GPU, when a text is compiled again, and messages for authors."""

import re
from pathlib import Path
from typing import Any, NoReturn

import pytest

from cupyops import CompileError, Kernel, Threads
from cupyops.compile import compiler
from cupyops.compile.cache import Binary
from cupyops.compile.compiler import OPTIONS, binary_for, compile_text, target_for, warnings_in
from cupyops.compile.source import assemble

AXPY = """\
// y += a * x
extern "C" __global__ void axpy(
    const scalar_t* x,  // (n)
    scalar_t* y,        // (n)
    acc_t a, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = acc_t(y[i]) + a * acc_t(x[i]);
}
"""

SPILLING = """\
extern "C" __global__ void small(float* x) { int unused; x[0] = 1; /* no warning: here */ }
extern "C" __global__ void large(float* x, int n) {
    float v[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) v[i] = x[i * n];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; ++i) x[i] = v[63 - i] * v[(i * 7) % 64];
}
"""


def refused(text: str, **options: Any) -> str:
    """The message of a kernel whose text does not compile."""
    pytest.importorskip("cupy")
    kernel = Kernel(text, "axpy", Threads("n"), dtypes=("float16", "float64"), constants={"WIDTH": 4}, **options)
    types = {"scalar_t": "float16"}
    with pytest.raises(CompileError) as caught:
        compile_text(kernel.final_text(types), kernel.describe(types), "sm_90", (*OPTIONS, *kernel.options))
    return str(caught.value)


# Messages


def test_an_error_shows_kernel_dtype_target_options_and_source() -> None:
    message = refused(AXPY.replace("y[i] = ", "y[i] = nonsense + "), options=("-lineinfo",))
    head, *rest = message.split("\n")
    assert head.startswith("axpy<float16, WIDTH=4> does not compile for sm_90 (NVRTC ")
    assert all(option in head for option in (*OPTIONS, "-lineinfo"))
    assert rest[0] == 'axpy.cu:7: error: identifier "nonsense" is undefined'
    assert rest[1] == "      if (i < n) y[i] = nonsense + acc_t(y[i]) + a * acc_t(x[i]);"
    assert rest[2].strip() == "^"


def test_several_errors_are_shown_each_with_its_line() -> None:
    message = refused(AXPY.replace("if (i < n)", "if (j < m)") + "__device__ int last = nothing;\n", filename="mine.cu")
    for identifier, line in (("j", 7), ("m", 7), ("nothing", 9)):
        assert f'mine.cu:{line}: error: identifier "{identifier}" is undefined' in message
    assert re.search(r"\n  __device__ int last = nothing;\n +\^", message)


def test_an_error_without_a_place_shows_what_the_compiler_said() -> None:
    assert "unrecognized option --nonsense" in refused(AXPY, options=("--nonsense",))


def test_no_message_holds_the_end_of_a_c_string() -> None:
    pytest.importorskip("cupy")
    assert "\0" not in refused(AXPY.replace(";", "")) + refused(AXPY, options=("--nonsense",))
    assert "\0" not in compile_text(SPILLING, "k", "sm_80", OPTIONS).log


# Targets


class Nvrtc:
    def __init__(self, *architectures: int) -> None:
        self.architectures = architectures

    def getSupportedArchs(self) -> list[int]:  # noqa: N802
        return list(self.architectures)


@pytest.mark.parametrize(
    ("capability", "target"),
    [
        (75, "sm_75"),
        (90, "sm_90"),
        (120, "sm_120"),
        (121, "compute_120"),
        (130, "compute_120"),
        (88, "compute_80"),
        (103, "compute_90"),
    ],
)
def test_target(monkeypatch: pytest.MonkeyPatch, capability: int, target: str) -> None:
    """PTX for what is newer than NVRTC, which its driver compiles."""
    monkeypatch.setattr(compiler, "nvrtc", lambda: Nvrtc(75, 80, 90, 120))
    assert target_for(capability) == target


def test_a_gpu_that_is_too_old_is_told_what_still_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "nvrtc", lambda: Nvrtc(75, 80, 90, 120))
    monkeypatch.setattr(compiler, "nvrtc_version", lambda: (13, 0))
    with pytest.raises(
        CompileError,
        match=r"NVRTC 13.0 compiles for sm_75 and newer, and this GPU is sm_70\. .*pip install 'cupy-cuda12x>=14' ",
    ):
        target_for(70)


def test_real_nvrtc_knows_the_gpus_of_today() -> None:
    pytest.importorskip("cupy")
    assert [target_for(c) for c in (80, 90)] == ["sm_80", "sm_90"]
    assert re.fullmatch(r"compute_\d+", target_for(9999))


# What comes back


def test_an_architecture_among_the_options_stands_for_the_target() -> None:
    """Some texts need instructions of one generation: sm_90 has no setmaxnreg, and sm_90a has it."""
    text = """extern "C" __global__ void __launch_bounds__(128, 1) k() {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); }"""
    with pytest.raises(CompileError):
        compile_text(text, "k", "sm_90", OPTIONS)
    assert set(compile_text(text, "k", "sm_90", (*OPTIONS, "-arch=sm_90a")).resources) == {"k"}


@pytest.mark.parametrize(("target", "begins"), [("sm_80", b"\x7fELF"), ("compute_80", b"//")])
def test_binary_or_ptx(target: str, begins: bytes) -> None:
    pytest.importorskip("cupy")
    binary = compile_text(assemble(AXPY, "axpy.cu", {"scalar_t": "float32"}, {}), "axpy", target, OPTIONS)
    assert binary.code.startswith(begins)
    assert b"axpy" in binary.code
    assert binary.seconds > 0
    assert binary.path is None
    assert set(binary.resources) == ({"axpy"} if target == "sm_80" else set())


def test_registers_and_spills_of_each_kernel() -> None:
    pytest.importorskip("cupy")
    resources = compile_text(SPILLING, "k", "sm_80", (*OPTIONS, "--maxrregcount=24")).resources
    assert set(resources) == {"small", "large"}
    assert resources["large"][0] == 24
    assert resources["large"][1] > 0
    assert 0 < resources["small"][0] < 24
    assert resources["small"][1] == 0


WISHES = """
#ifndef FEWER_BLOCKS
#define FEWER_BLOCKS 0
#endif
static_assert(FEWER_BLOCKS < WISHED, "a block is resident");
extern "C" __global__ void __launch_bounds__(1024, WISHED - FEWER_BLOCKS) sums(const float* x, float* y, int n) {
    float held[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; ++i) held[i] = x[i * n + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < KEPT; ++i) y[i * n + threadIdx.x] = held[i] * held[KEPT - 1 - i] + held[i];
}
"""


@pytest.mark.parametrize(("wished", "kept", "spilled"), [(2, 8, False), (2, 18, False), (2, 90, True)])
def test_a_text_has_as_many_blocks_as_the_compiler_finds_registers_for(wished: int, kept: int, spilled: bool) -> None:
    pytest.importorskip("cupy")
    options = (*OPTIONS, f"-DWISHED={wished}", f"-DKEPT={kept}")
    bound = WISHES.replace("FEWER_BLOCKS", "FEWER")  # without the macro
    of_wish = compile_text(bound, "sums", "sm_90", options).resources["sums"]
    assert (of_wish[1] > 0) == (kept > 8)
    registers, spills = compile_text(WISHES, "sums", "sm_90", options).resources["sums"]
    assert (registers > 32, spills > 0) == (kept > 8, spilled)


@pytest.mark.parametrize(
    "code", ["x[0] = tex1Dfetch<float>(cudaTextureObject_t(n), 3)", "cudaError_t e = cudaSuccess; x[0] = e"]
)
def test_a_text_may_use_declarations_that_most_texts_are_compiled_without(code: str) -> None:
    pytest.importorskip("cupy")
    assert compile_text(f'extern "C" __global__ void k(float* x, int n) {{ {code}; }}', "k", "sm_90", OPTIONS).code


def test_warnings_are_told_from_everything_else_in_a_log() -> None:
    pytest.importorskip("cupy")
    log = compile_text(SPILLING, "k", "sm_80", (*OPTIONS, "--maxrregcount=24")).log
    unused, spilled = warnings_in(log)
    assert 'variable "unused" was declared but never referenced' in unused
    assert "Registers are spilled to local memory in function 'large'" in spilled
    assert warnings_in(compile_text(AXPY, "axpy", "sm_80", (*OPTIONS, "-Dscalar_t=float", "-Dacc_t=float")).log) == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_subnormals_are_not_flushed_to_zero(dtype: str) -> None:
    pytest.importorskip("cupy")
    text = assemble(AXPY.replace("a * acc_t(x[i])", "acc_t(x[i])"), "axpy.cu", {"scalar_t": dtype}, {})
    adds = re.findall(
        r"^\s*(add\.\S*f32)", compile_text(text, "axpy", "compute_80", OPTIONS).code.decode(), re.MULTILINE
    )
    assert adds
    assert not [a for a in adds if "ftz" in a]
    flushing = compile_text(text, "axpy", "compute_80", (*OPTIONS, "-ftz=true")).code.decode()
    assert "add.ftz.f32" in flushing  # so the search above would have found one


# Keys: everything that changes the binary, and nothing else


class Compiler:
    """Stands in for NVRTC: its output names its inputs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.compiled = 0
        self.version = (12, 9)
        monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(folder))
        monkeypatch.setattr(compiler, "compile_text", self.compile_text)
        monkeypatch.setattr(compiler, "nvrtc_version", lambda: self.version)
        monkeypatch.setattr(compiler, "_headers_identity", lambda _: ["/cuda/include", self.version])

    def compile_text(self, text: str, what: str, target: str, options: tuple[str, ...]) -> Binary:
        self.compiled += 1
        return Binary(f"{text}|{target}|{options}|{self.version}".encode(), "", {}, 1.0)

    def made(self, text: str, target: str = "sm_90", options: tuple[str, ...] = ()) -> bytes:
        return compiler.binary_for(text, "k<float32>", target, options).code


@pytest.fixture
def nvrtc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiler:
    return Compiler(monkeypatch, tmp_path)


def test_a_second_call_does_not_compile(nvrtc: Compiler) -> None:
    assert nvrtc.made("text") == nvrtc.made("text")
    assert nvrtc.compiled == 1


def test_everything_that_changes_the_binary_changes_the_key(nvrtc: Compiler) -> None:
    headers = ({"a.cuh": "int a;"}, {"a.cuh": "int b;"})
    types = ({"scalar_t": "float32"}, {"scalar_t": "float64"})
    texts = [
        "text",
        "text ",
        *(assemble('#include "a.cuh"', "k.cu", types[0], {}, h) for h in headers),
        *(assemble("body", "k.cu", t, {"N": n}) for t in types for n in (1, 2)),
        "#include <cuda_fp16.h>",
    ]
    calls = [
        (t, target, options)
        for t in texts
        for target in ("sm_90", "sm_90a", "sm_80", "compute_90")
        for options in ((), ("-lineinfo",))
    ]
    for version in ((12, 8), (12, 9)):
        nvrtc.version = version
        for _ in range(2):
            made = {nvrtc.made(*call) for call in calls}
            assert len(made) == len(calls)  # each call its own, also where it comes from the cache
    assert nvrtc.compiled == 2 * len(calls)


def test_the_place_and_version_of_system_headers_are_part_of_the_key(
    nvrtc: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("#include <cuda_fp16.h>", "  # include<cuda_fp16.h>"):
        nvrtc.made(text)
        nvrtc.made("int x; // includes <nothing>")
    monkeypatch.setattr(compiler, "_headers_identity", lambda _: ["/opt/cuda/include", (12, 6)])
    for text in ("#include <cuda_fp16.h>", "  # include<cuda_fp16.h>"):
        nvrtc.made(text)
        nvrtc.made("int x; // includes <nothing>")
    assert nvrtc.compiled == 2 * 2 + 1


def test_the_meaning_of_an_entry_is_part_of_the_key(nvrtc: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc.made("text")
    monkeypatch.setattr(compiler, "_CACHE_FORMAT", compiler._CACHE_FORMAT + 1)
    nvrtc.made("text")
    monkeypatch.setattr(compiler, "_nvrtc_build", lambda: "12.9.999")
    nvrtc.made("text")
    assert nvrtc.compiled == 3


def test_a_damaged_entry_is_compiled_again(nvrtc: Compiler, tmp_path: Path) -> None:
    right = nvrtc.made("text")
    for suffix in ("cubin", "json"):
        (path,) = tmp_path.glob(f"*.{suffix}")
        path.write_bytes(path.read_bytes()[:-3])
        assert nvrtc.made("text") == right
    assert nvrtc.compiled == 3
    assert nvrtc.made("text") == right
    assert nvrtc.compiled == 3


def test_a_kept_binary_is_used_without_nvrtc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path))
    text = assemble(AXPY, "axpy.cu", {"scalar_t": "float32"}, {})
    first = binary_for(text, "axpy", "sm_80")
    assert first.path is not None
    assert first.path.parent == tmp_path

    def compiled_again(*args: object) -> NoReturn:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "compile_text", compiled_again)
    assert binary_for(text, "axpy", "sm_80") == first
    with pytest.raises(AssertionError, match="compiled again"):
        binary_for(text, "axpy", "sm_90")


def test_a_folder_that_cannot_be_written_costs_only_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    text = assemble(AXPY, "axpy.cu", {"scalar_t": "float32"}, {})
    first, second = (binary_for(text, "axpy", "sm_80") for _ in range(2))
    assert first.path is None
    assert second.path is None
    assert first.code == second.code


@pytest.mark.parametrize(
    "declared", ['extern "C" __global__ void k(', "__global__ void k(", "namespace a { __global__ void k("]
)
def test_a_kernel_that_has_only_a_prototype_is_refused(declared: str) -> None:
    pytest.importorskip("cupy")
    text = f"{declared}float* y, int n);{'}' if '{' in declared else ''}\n__device__ int other() {{ return 1; }}\n"
    with pytest.raises(
        CompileError, match=r"k: no text defines `k`, which the text declares; give the text .* in link="
    ):
        compile_text(Kernel(text, "k", Threads("n")).final_text({}), "k", "sm_80", OPTIONS)
    compile_text("__device__ int other() { return 1; }\n", "a text without kernels", "sm_80", OPTIONS)


@pytest.mark.parametrize(
    ("constants", "value"),
    [
        ("const double a = 2.; static const double\n b = 1. / a,\n c = a + b;", "b + c"),
        ("namespace n { const double a = sqrt(2.), b = 2; const double\nc =\n a; }", "__LINE__"),
        (
            "struct A { static const float half = .5f; template <class T> struct B { static const T one = T(1); }; };",
            "A::B<float>::one",
        ),
    ],
)
def test_constants_that_nvcc_folds_are_folded(constants: str, value: str) -> None:
    text = f'{constants}\nextern "C" __global__ void k(double* y) {{ y[0] = {value}; }}'
    assert b".entry k" in compile_text(text, "k", "compute_80", ()).code


def test_a_constant_that_the_host_computes_is_named_where_a_kernel_reads_it() -> None:
    text = 'const double a = sqrt(2.);\nextern "C" __global__ void k(double* y) {\n    y[0] = a;\n}'
    with pytest.raises(CompileError, match=r'cupyops.cu:3: error: identifier "a" is undefined\n +y\[0\] = a;\n +\^'):
        compile_text(text, "k", "compute_80", ())
