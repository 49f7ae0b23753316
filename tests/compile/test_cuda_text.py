"""Reading CUDA C++ without a compiler: conditions, one kernel out of many, and the time that it takes."""

import time
from contextlib import suppress

import pytest

from cupyops import Kernel, Threads
from cupyops.compile.source import assemble
from cupyops.launch.definitions import code_only, only, the_kernel
from cupyops.launch.signature import Signature

# Conditions

LIVE = 'extern "C" __global__ void k(const float* x,  // (n)\n int n) { if (n) {} }\n'
DEAD = 'extern "C" __global__ void k(const double* wrong, int n) { if (n) { }\n'


@pytest.mark.parametrize(
    "text",
    [
        f"#if 0\n{DEAD}#endif\n{LIVE}",
        f"{LIVE}#if 0\n{DEAD}#endif\n",
        f"#if 0\n{DEAD}#else\n{LIVE}#endif\n",
        f"#if 1\n{LIVE}#else\n{DEAD}#endif\n",
        f"#if 1 // so\n{LIVE}#elif OTHER\n{DEAD}#else\n{DEAD}#endif\n",
        f"#if (0)\n{DEAD}#elif 1\n{LIVE}#else\n{DEAD}#endif\n",
        f"#  if false\n#ifdef A\n{DEAD}#else\n{DEAD}#endif\n#if 1\n{DEAD}#endif\n#endif\n{LIVE}",
        f"#if !0x1u\n don't \n{DEAD}#endif\n{LIVE}",
        f"#ifdef A\n{LIVE}#endif\n",
        f"#ifdef A\n{LIVE}#else\n{LIVE.replace('if (n)', 'while (n)')}#endif\n",
        f'#if 0\nextern "C" __global__ void other(float* x) {{}}\n#endif\n{LIVE}',
    ],
)
def test_what_a_literal_condition_takes_away_is_not_read(text: str) -> None:
    found = Kernel(text, geometry=Threads("n"))
    assert (found.name, found.signature.names, found.signature.parameters[0].shape) == ("k", ("x", "n"), ("n",))
    assert LIVE.splitlines()[0] in found.final_text({})


@pytest.mark.parametrize(
    "condition", ["ifdef __CUDA_ARCH__", "if __CUDA_ARCH__", "if defined(__CUDA_ARCH__) && 1", "ifndef __CUDA_ARCH__"]
)
def test_two_definitions_that_differ_are_refused(condition: str) -> None:
    words = r"^k: the text has different definitions of it \(lines 2 and 5\), and only a compiler can decide which"
    with pytest.raises(ValueError, match=words):
        Kernel(f"#{condition}\n{LIVE}#else\n{DEAD} }}\n#endif\n", "k")


def test_a_definition_that_a_condition_removes_does_not_count() -> None:
    text = f"#ifdef A\n{DEAD} }}\n#else\n{LIVE}#endif\n"
    assert Signature.parse(text, "k").names == ("x", "n")
    assert Signature.parse(text, "k", defines={"A": "1"}).names != ("x", "n")


def test_a_template_may_have_the_name_of_a_kernel() -> None:
    template = "template <typename T, int N = (2 > 1)> __global__ void k(T* x, T* y) {}\n"
    for text in (template + LIVE, LIVE + template):
        assert Signature.parse(text, "k").names == ("x", "n")


def test_a_definition_has_the_linkage_of_its_prototype() -> None:
    text = 'extern "C" __global__ void k(const float*, int);\n__global__ void k(const float* x, // (n)\n int n) {}'
    assert Signature.parse(text, "k").parameters[0].shape == ("n",)


# One kernel out of many

MANY = """\
// helpers
#define OPEN {
template <typename T> __device__ T twice(T v) { return v + v; }
extern "C" __global__ void first(float* x) {
    const char* s = "}}";  // }
    char c = '{'; int n = 1'000; char d = '}';
}
__device__ int between;
template <typename T>
__global__ void second(T* x) { if (x) { x[0] = 1; } }
extern "C" __global__ void wanted(float* x, int n);
static __global__ __launch_bounds__(32) void third(int n) { /* } */ }
extern "C" __global__ void wanted(float* x, int n) { x[0] = n; }
extern "C" __global__ void last(float* x);
__device__ int end;
"""


def test_only_keeps_one_kernel_and_every_line_where_it_was() -> None:
    kept = only(MANY, "wanted")
    assert kept.count("\n") == MANY.count("\n")
    lines = kept.split("\n")
    for number, line in enumerate(MANY.split("\n")):
        if line.startswith(("//", "#", "__device__ ")) or "wanted" in line or "twice" in line:
            assert lines[number] == line
        else:
            assert lines[number] == "", line
    assert only(MANY, "first").count("__global__") == 1


def test_only_leaves_text_that_compiles() -> None:
    pytest.importorskip("cupy")
    from cupyops.compile.compiler import compile_text

    for kernel in ("first", "wanted"):
        binary = compile_text(only(MANY, kernel), kernel, "sm_80", ("--std=c++17", "-Xptxas=-v"))
        assert list(binary.resources) == [kernel]


def test_only_never_loses_the_wanted_kernel() -> None:
    """Braces that the preprocessor pairs look unbalanced here."""
    text = """
extern "C" __global__ void other(int n) {
#ifdef A
    if (n) {
#else
    while (n) {
#endif
    }
}
extern "C" __global__ void wanted(float* x) {}
"""
    assert 'extern "C" __global__ void wanted(float* x) {}' in only(text, "wanted")


def test_only_keeps_conditions_whole() -> None:
    other = "__global__ void other(int n) {\n#ifdef A\n if (n) {}\n#else\n#endif\n}\n"
    split = "#ifdef A\n__global__ void other(int n) {\n#else\n__global__ void other(long n) {\n#endif\n}\n"
    assert "other" not in only(other + LIVE, "k")
    kept = only(split + LIVE, "k")
    assert [line for line in kept.splitlines() if line.startswith("#")] == ["#ifdef A", "#else", "#endif"]


# Time

_MANY = 2_500
ADVERSARIAL = {
    "specifiers": "static " * _MANY,
    "templates": "template <" * _MANY,
    "bounds": "__launch_bounds__(" * _MANY,
    "bounds that are whole": "__launch_bounds__(1) " * _MANY,
    "kernels without an end": "__global__ void a(" * _MANY,
    "kernels without a name": "__global__ " * _MANY,
    "bodies without an end": 'extern "C" __global__ void a() {' * _MANY,
    "kernels": "__global__ void a(int n) { if (n) { } }\n" * _MANY,
    "prototypes of the kernel": 'extern "C" __global__ void k(float*, int);\n' * _MANY,
    "definitions of the kernel": 'extern "C" __global__ void k(const float* x,  // (n)\n int n) {}\n' * (_MANY // 8),
    "comments without an end": "/* " * _MANY,
    "comments in a directive": "#define A " + "/* " * _MANY,
    "comments": "/* a */ // b\n" * _MANY,
    "a long comment": "/*" + "*" * 20 * _MANY,
    "escapes in quotes without an end": '"' + '\\"' * _MANY,
    "quotes": "\"'" * _MANY,
    "quotes on lines": "don't \"\n" * _MANY,
    "blanks": " " * 20 * _MANY,
    "blanks on lines": (" " * 200 + "\n") * (_MANY // 10),
    "blanks behind words": ("extern" + " " * 200) * (_MANY // 10),
    "a long word": "a" * 20 * _MANY,
    "a long number": "1'0" * 5 * _MANY,
    "a long continued line": "#define A \\\n" + "b \\\n" * _MANY,
    "braces": "{" * 10 * _MANY,
    "closing braces": "}" * 10 * _MANY,
    "conditions": "#if 1\n" * _MANY,
    "dead conditions": "#if 0\n#else\n#endif\n" * _MANY,
    "macros": "#define a float\n" * _MANY,
    "typedefs": "typedef " * _MANY,
    "usings": "using a = " * _MANY,
    "namespaces": "namespace ( " * _MANY + "{",
    "includes": '#include "a.cuh"\n' * _MANY,
    "externs": 'extern "C" ' * _MANY,
}


@pytest.mark.parametrize("where", ["before", "behind"])
@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_no_text_takes_longer_than_its_length_says(kind: str, where: str) -> None:
    """A sixteenth of a second here; what looks back at every place takes seconds."""
    text = "\n".join([ADVERSARIAL[kind], LIVE][:: 1 if where == "before" else -1])
    start = time.process_time()
    for step in (
        lambda: Kernel(text, "k", Threads("n"), headers={"a.cuh": ""}).final_text({}),
        lambda: the_kernel(text),
        lambda: assemble(text, "k.cu", {}, {}, {"a.cuh": ""}),
    ):
        with suppress(ValueError, TypeError):  # some are no text that has the kernel
            step()
    assert time.process_time() - start < 0.5


def test_many_parameters_take_no_longer_than_their_number_says() -> None:
    start = time.process_time()
    listed = "".join(f"const t{i}* x{i} /* (n) */, " for i in range(10_000))
    found = Signature.parse(f'extern "C" __global__ void k({listed}int n) {{}}', "k").parameters
    assert {p.shape for p in found[:-1]} == {("n",)}
    assert time.process_time() - start < 5


def test_code_only_keeps_places() -> None:
    text = "a \"b{\" /* c\n} */ d\n#define E {\\\n }\n'{' 1'000 '}' // f\nextern \"C\""
    code = code_only(text)
    assert len(code) == len(text)
    assert [i for i, c in enumerate(code) if c == "\n"] == [i for i, c in enumerate(text) if c == "\n"]
    assert code.split() == ["a", "d", "1'000", "extern", '"C"']
