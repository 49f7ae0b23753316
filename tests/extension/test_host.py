"""The host half in Python: expressions, statements, launches; and what has no translation."""

from pathlib import Path

import pytest

from cupyops import from_extension
from cupyops.extension.expressions import NotTranslated, expression
from cupyops.extension.host import host_functions, whole
from cupyops.extension.reading import pieces_of

EXPRESSIONS = {
    "torch::cat({old_h, input}, 1)": "torch.cat([old_h, input], 1)",
    "(n + threads - 1) / threads": "(n + threads - 1) // threads",
    "1.0f * n / 2": "1.0 * n / 2",
    "scale / 2": "scale / 2",
    "x.packed_accessor32<scalar_t, 3, torch::RestrictPtrTraits>()": "x",
    "x.contiguous().data_ptr<at::Half>()": "x.contiguous()",
    "at::empty(x.sizes(), x.options())": "torch.empty(x.shape, dtype=x.dtype, device=x.device)",
    "at::zeros({n, 3}, x.options().dtype(at::kLong))": "torch.zeros([n, 3], dtype=torch.int64, device=x.device)",
    "a > 0 ? b : c == 1 ? d : e": "b if a > 0 else d if c == 1 else e",
    "(int)std::ceil((float)n / 256)": "int(math.ceil(float(n) / 256))",
    "static_cast<int64_t>(x.size(0)) * -1": "int(x.size(0)) * -1",
    "std::min<int64_t>((n + 255L) / 256, 4096)": "min((n + 255) // 256, 4096)",
    "!x.defined() && y->size(0) == 3u": "not x is not None and y.size(0) == 3",
    "x.slice(1, 0, n).t()": "x[:, 0:n].t()",
    "x.slice(0, k)": "x[k:]",
    "x.slice(-1, k)": "x[..., k:]",
    "std::get<1>(f(x))": "f(x)[1]",
    "(float*)x.data_ptr<float>()": "x",
    "reinterpret_cast<const at::Half*>(x.data_ptr<at::Half>())": "x",
    "std.size(0)": "std.size(0)",
    "x.scalar_type() == at::ScalarType::Float": None,
    "f(&x)": None,
    "*p": None,
    "x.index({torch::indexing::Slice()})": None,
    "torch::TensorOptions().dtype(torch::kFloat)": None,
    "new float[3]": None,
    "lambda.size(0)": "lambda_.size(0)",
    "torch::Tensor()": "None",
    "x ? : y": None,
    "f(x": None,
    "std::sort(a, b)": None,
}


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression_has_its_python_or_none(text: str) -> None:
    wanted = EXPRESSIONS[text]
    if wanted is None:
        with pytest.raises(NotTranslated):
            expression(text, {"scale"})
    else:
        assert expression(text, {"scale"}) == wanted


@pytest.mark.parametrize(
    ("text", "value"),
    [("2 * N + 1", 65), ("(N + 31) // 32", 1), ("1 << 4", 16), ("-N % 7", 3), ("N // 0", None), ("f(3)", None)]
    + [("unknown", None), ("LOOP", None), ("1.5", None), ("", None), ("True", None), ("x[0]", None)],
)
def test_sizes_of_known_numbers(text: str, value: int | None) -> None:
    assert whole(text, {"N": "32", "LOOP": "LOOP + 1"}) == value


HOST = """
__global__ void k(const float* x, float* y, int n, int m) { y[0] = n; }
__global__ void s(float* y) { extern __shared__ float part[]; y[0] = part[0]; }
template <typename T, bool FLAG, int N> __global__ void t(T* y) { y[0] = FLAG + N; }
%s
"""


def python(body: str, head: str = "void f(at::Tensor x, at::Tensor y, int n, float r)") -> list[str]:
    text = HOST % f"{head} {{ {body} }}"
    (function,) = host_functions(text, pieces_of(text))
    return [line for line in function.lines if not line.startswith("<launch")]


LAUNCH = "k<<<n, 32>>>(x.data_ptr<float>(), y.data_ptr<float>(), n, 3);"


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("const auto a = x.size(0), b = x.size(1);", ["a = x.size(0)", "b = x.size(1)"]),
        ("auto [a, b] = at::max(x, 1);", ["a, b = torch.max(x, 1)"]),
        ("x = x.contiguous(); x.mul_(2); n += 3;", ["x = x.contiguous()", "x.mul_(2)", "n += 3"]),
        ("int a; float q = r / 2; int h = n / 2;", ["q = r / 2", "h = n // 2"]),
        ("dim3 b(n, 4); int q = b.x * b.y;", ["b = (n, 4)", "q = b[0] * b[1]"]),
        ("if (n > 3 && r < 1) { n = 1; } else n = 2;", ["if n > 3 and r < 1:", "    n = 1", "else:", "    n = 2"]),
        ("if (n == 0) return;", ["if n == 0:", "    return"]),
        ("for (int i = 0; i < n; ++i) { x[i].zero_(); }", ["for i in range(0, n):", "    x[i].zero_()"]),
        ("while (n > 3) n = n / 2;", ["# C++: while (n > 3) n = n / 2;"]),
        ("for (auto& t : list) t.zero_();", ["# C++: for (auto& t : list) t.zero_();"]),
        ("cudaStream_t stream = at::cuda::getCurrentCUDAStream();", []),
        ("const at::cuda::OptionalCUDAGuard guard(at::device_of(x));", []),
        (
            'cudaError_t e = cudaGetLastError(); if (e != cudaSuccess) { printf("%s", cudaGetErrorString(e)); exit(1); }',
            [],
        ),
        (
            'TORCH_CHECK(x.dim() == 2, "a; b {");',
            ["if not (x.dim() == 2):", '    raise ValueError("f: x.dim() == 2 does not hold")'],
        ),
        ("TORCH_CHECK(x.is_cuda()); AT_ASSERTM(x.device().is_cuda(), 1);", []),
        (
            "CHECK_INPUT(x);",
            ["if not (x.is_contiguous()):", '    raise ValueError("f: x.is_contiguous() does not hold")'],
        ),
        ("CHECK_ODD(x);", ["# C++: CHECK_ODD(x);"]),
        ("std::vector<int> v; v.push_back(*p);", ["# C++: v.push_back(*p);"]),
        ('AT_DISPATCH_ALL_TYPES(x.scalar_type(), "f", [&] { n = 4; });', ["n = 4"]),
        ("/* a */ n = 1; // b", ["n = 1"]),
    ],
)
def test_a_statement_has_its_python_or_stays_as_a_comment(body: str, lines: list[str]) -> None:
    assert python(body + "\n" + LAUNCH) == lines


def starter(tmp_path: Path, body: str) -> str:
    (tmp_path / "f.cu").write_text(HOST % f"void f(at::Tensor x, at::Tensor y, int n) {{ {body} }}")
    return from_extension(tmp_path / "f.cu").starter


ARRAYS = "(x.data_ptr<float>(), y.data_ptr<float>(), n, 3)"


@pytest.mark.parametrize(
    ("launch", "call"),
    [
        (f"k<<<(n + 63) / 64, 64>>>{ARRAYS};", "    K(x, y, n, 3)\n"),
        (f"const int b = 64; k<<<(n + b - 1) / b, b>>>{ARRAYS};", "    K(x, y, n, 3)\n"),
        (f"k<<<at::ceil_div(n, 64), 64>>>{ARRAYS};", "    K(x, y, n, 3)\n"),
        (f"k<<<(n + 63) / 64, 32>>>{ARRAYS};", "    K[((n + 63) // 64) * 32](x, y, n, 3)\n"),
        (f"k<<<(n + 62) / 64, 64>>>{ARRAYS};", "    K[((n + 62) // 64) * 64](x, y, n, 3)\n"),
        (f"k<<<dim3(n, 2), dim3(8, 4)>>>{ARRAYS};", "    K[n * 8, 8](x, y, n, 3)\n"),
        (f"k<<<n, {{8, 4}}>>>{ARRAYS};", "    K[n * 8, 4](x, y, n, 3)\n"),
        (f"dim3 g(1, n), b(4, 2, 2); k<<<g, b>>>{ARRAYS};", "    K[4, n * 2, 2](x, y, n, 3)\n"),
        (f"k<<<7, 1>>>{ARRAYS};", "    K[7](x, y, n, 3)\n"),
        ("s<<<1, 32, 4 * 32>>>(y.data_ptr<float>());", "    S[32](y)\n"),
        ("t<float, true, 5><<<1, 1>>>(y.data_ptr<float>());", "    T[1](y)\n"),
    ],
)
def test_a_launch_has_the_threads_of_its_grid(tmp_path: Path, launch: str, call: str) -> None:
    text = starter(tmp_path, launch)
    assert call in text
    assert "NotImplementedError" not in text
    exec(compile(text, "f.py", "exec"), {})


def test_shared_memory_and_template_arguments_are_part_of_the_kernel(tmp_path: Path) -> None:
    assert 'Kernel(TEXT, "s", Threads(block=(32,)), filename="f.cu", shared=128)' in starter(
        tmp_path, "s<<<1, 32, 4 * 32>>>(y.data_ptr<float>());"
    )
    assert 'Kernel(TEXT, "t<T, true, 5>"' in starter(tmp_path, "t<float, true, 5><<<1, 1>>>(y.data_ptr<float>());")


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        (f"k<<<n, best(n)>>>{ARRAYS};", "K: its block is computed at run time in C++"),
        (f"k<<<*p, 32>>>{ARRAYS};", "K: its grid has no translation"),
        (
            "s<<<1, 32, n * sizeof(float)>>>(y.data_ptr<float>());",
            "its bytes of shared memory, Kernel(..., shared=...), are",
        ),
        (
            "t<float, true, N><<<1, 1>>>(y.data_ptr<float>());",
            "its template parameter N, in the name of the Kernel, is N in C++",
        ),
        ("s<<<1, 32>>>(&pointer);", "S: an argument has no translation"),
        ("elsewhere<<<1, 32>>>(y.data_ptr<float>());", "elsewhere: the file does not define this kernel"),
    ],
)
def test_what_has_to_be_chosen_is_said_and_never_guessed(tmp_path: Path, launch: str, words: str) -> None:
    text = starter(tmp_path, launch)
    scope: dict[str, object] = {"__name__": "f"}
    exec(compile(text, "f.py", "exec"), scope)
    with pytest.raises(NotImplementedError) as error:
        scope["f"](None, None, 3)  # type: ignore[operator]
    assert words in str(error.value)
    assert "# C++: " in text


def test_functions_that_are_no_operators_say_why(tmp_path: Path) -> None:
    path = tmp_path / "f.cu"
    for head, back, why in (
        ("at::Tensor f(at::Tensor x, at::Tensor y, int n)", "return y;", "it returns an argument"),
        ("int f(at::Tensor x, at::Tensor y, int n)", "return n;", "it returns int"),
        ("void f(Handle x, at::Tensor y, int n)", "", "no operator takes x"),
        (
            "at::Tensor f(at::Tensor x, at::Tensor y, int n)",
            "return x + 1;",
            "it returns tensors, and also writes to y",
        ),
    ):
        path.write_text(HOST % f"{head} {{ {LAUNCH} {back} }}")
        assert f"# f is a function and no operator: {why}." in from_extension(path).starter


def test_lists_of_numbers_are_arguments_of_an_operator(tmp_path: Path) -> None:
    path = tmp_path / "f.cu"
    path.write_text(
        HOST % f"void f(std::vector<float> s, at::Tensor x, at::IntArrayRef r, at::Tensor y, int n) {{ {LAUNCH} }}"
    )
    assert '"f::f(Tensor x, Tensor(a!) y, float[] s, int[] r, int n) -> ()"' in from_extension(path).starter


def test_a_kernel_without_a_launch_gets_an_operator_that_takes_the_threads(tmp_path: Path) -> None:
    path = tmp_path / "f.cu"
    path.write_text(HOST % "")
    text = from_extension(path).starter
    assert '"f::k(Tensor x, Tensor(a!) y, int n, int m, int threads) -> ()"' in text
    assert "lambda x, y, n, m, threads: K[threads](x, y, n, m)" in text
    assert (
        '# No function of the file launches t: give its template FLAG, N in the name, Kernel(TEXT, "t<...>").' in text
    )
