"""Reading CUDA C++ without a compiler: conditions, one kernel out of many, and the time that it takes."""

import itertools
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from cupyops import CompileError, Kernel, Threads
from cupyops.compile.cuda_text import scan
from cupyops.compile.preprocess import preprocess
from cupyops.compile.source import assemble
from cupyops.launch.definitions import only, the_kernel
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

# Functions that make a text of a length: twice the number gives twice the length.
ADVERSARIAL: dict[str, Callable[[int], str]] = {
    "specifiers": lambda n: "static " * n,
    "templates": lambda n: "template <" * n,
    "concepts": lambda n: "template <class T> concept a " * n,
    "cases": lambda n: "case a " * n,
    "designators": lambda n: "{ .a " * n,
    "functions of auto": lambda n: "f(a, " * n,
    "statements in expressions": lambda n: "({ a; " * n,
    "bounds": lambda n: "__launch_bounds__(" * n,
    "bounds that are whole": lambda n: "__launch_bounds__(1) " * n,
    "kernels without an end": lambda n: "__global__ void a(" * n,
    "kernels without a name": lambda n: "__global__ " * n,
    "bodies without an end": lambda n: 'extern "C" __global__ void a() {' * n,
    "kernels": lambda n: "__global__ void a(int n) { if (n) { } }\n" * n,
    "prototypes of the kernel": lambda n: 'extern "C" __global__ void k(float*, int);\n' * n,
    "definitions of the kernel": lambda n: (
        'extern "C" __global__ void k(const float* x,  // (n)\n int n) {}\n' * (n // 8)
    ),
    "comments without an end": lambda n: "/* " * n,
    "comments in a directive": lambda n: "#define A " + "/* " * n,
    "comments": lambda n: "/* a */ // b\n" * n,
    "a long comment": lambda n: "/*" + "*" * 20 * n,
    "escapes in quotes without an end": lambda n: '"' + '\\"' * n,
    "quotes": lambda n: "\"'" * n,
    "quotes on lines": lambda n: "don't \"\n" * n,
    "blanks": lambda n: " " * 20 * n,
    "blanks on lines": lambda n: (" " * 200 + "\n") * (n // 10),
    "blanks behind words": lambda n: ("extern" + " " * 200) * (n // 10),
    "a long word": lambda n: "a" * 20 * n,
    "a long number": lambda n: "1'0" * 5 * n,
    "a long continued line": lambda n: "#define A \\\n" + "b \\\n" * n,
    "braces": lambda n: "{" * 10 * n,
    "closing braces": lambda n: "}" * 10 * n,
    "conditions": lambda n: "#if 1\n" * n,
    "dead conditions": lambda n: "#if 0\n#else\n#endif\n" * n,
    "macros": lambda n: "#define a float\n" * n,
    "typedefs": lambda n: "typedef " * n,
    "usings": lambda n: "using a = " * n,
    "namespaces": lambda n: "namespace ( " * n + "{",
    "includes": lambda n: '#include "a.cuh"\n' * n,
    "externs": lambda n: 'extern "C" ' * n,
}


def grows_with_its_length(run: Callable[[int], object], many: int) -> bool:
    """Returns whether eight times the length takes less than 24 times the time. A scanner that looks back at every
    position would take 64 times as long."""

    def time_of(n: int) -> float:
        start = time.process_time()
        run(n)
        return time.process_time() - start

    short, long = float("inf"), float("inf")
    for _ in range(4):  # a collection of garbage, or another process, may take longer than the text
        short = min(short, *(time_of(many) for _ in range(3)))  # a long time of the short text would hide a square
        long = min(long, time_of(8 * many))
        if long < 24 * short + 0.01:
            return True
    return False


@pytest.mark.sample(4)
@pytest.mark.parametrize("where", ["before", "behind"])
@pytest.mark.parametrize("kind", ADVERSARIAL)
def test_no_text_takes_longer_than_its_length_says(kind: str, where: str) -> None:
    numbers = itertools.count()

    def run(n: int) -> None:
        parts = [ADVERSARIAL[kind](n), LIVE][:: 1 if where == "before" else -1]
        text = "\n".join([f"int text{next(numbers)};", *parts])  # code that no cache knows
        for step in (
            lambda: Kernel(text, "k", Threads("n"), headers={"a.cuh": ""}).final_text({}),
            lambda: the_kernel(text),
            lambda: assemble(text, "k.cu", {}, {}, {"a.cuh": ""}),
        ):
            with suppress(ValueError, TypeError):  # some are not text that has the kernel
                step()

    assert grows_with_its_length(run, 625)


@pytest.mark.thorough
def test_many_parameters_take_no_longer_than_their_number_says() -> None:
    def run(n: int) -> None:
        listed = "".join(f"const t{i}* x{i} /* (n) */, " for i in range(n))
        found = Signature.parse(f'extern "C" __global__ void k({listed}int n) {{}}', "k").parameters
        assert {p.shape for p in found[:-1]} == {("n",)}

    assert grows_with_its_length(run, 1_000)


@pytest.mark.thorough
def test_the_measure_tells_time_that_grows_with_the_square() -> None:
    assert grows_with_its_length(lambda n: sum(range(1_000 * n)), 100)
    assert not grows_with_its_length(lambda n: sum(x for _ in range(n) for x in range(n)), 500)


def test_code_only_keeps_places() -> None:
    text = "a \"b{\" /* c\n} */ d\n#define E {\\\n }\n'{' 1'000 '}' // f\nextern \"C\""
    code = scan(text).bare
    assert len(code) == len(text)
    assert [i for i, c in enumerate(code) if c == "\n"] == [i for i, c in enumerate(text) if c == "\n"]
    assert code.split() == ["a", "d", "1'000", "extern", '"C"']


NESTED = {
    "conditions": ("#if 1\n", "#endif\n"),
    "undecided conditions": ("#ifdef A\n", "#endif\n"),
    "conditions with two branches": ("#ifdef A\nint a;\n#else\n", "#endif\n"),
    "conditions with two branches that no brace matches": ("#ifdef A\n{\n#else\n{{\n#endif\n", "}\n"),
    "namespaces": ("namespace a {\n", "}\n"),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", NESTED)
def test_the_time_grows_with_the_depth(kind: str) -> None:
    before, behind = NESTED[kind]
    numbers = itertools.count()

    def read(n: int) -> None:
        text = f"int text{next(numbers)};\n{before * n}{LIVE}{behind * n}"  # code that no cache knows
        with suppress(ValueError, CompileError):
            Kernel(text, "k", Threads("n")).final_text({})

    assert grows_with_its_length(read, 600)


def test_a_branch_whose_braces_have_no_match_gives_way_also_within_others() -> None:
    text = "#if A\n__global__ void k() { f(x) {\n#if B\n{ one two three\n#else\n{ four\n#endif\n}}\n#else\ng(y) { h {\n#endif\n}\n"
    code = scan(f"{text}__global__ void other() {{}}")
    assert [f.name for f in code.functions] == ["k", "other"]
    assert code.end_of_function(code.functions[0].parameters) == len(text) - 1


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        *(
            ("A == 2 && !B", True),
            ("A < 2 || B", False),
            ("(A + 1) * 2 == 6u", True),
            ("-A < 0", True),
            ("!A == 0", True),
        ),
        *(
            ("defined A && !defined(C)", True),
            ("A == B == 0", None),
            ("~A", None),
            ("True", False),
            ("A ? B : 1", None),
        ),
        *(
            ("A & 1", None),
            ("A / 2", None),
            ("not A", None),
            ("__CUDA_ARCH__ > 1 && B", False),
            ("__CUDA_ARCH__ || A", True),
        ),
        *(("CUDART_VERSION >= 11000", True), ("CUDART_VERSION < 11000", False), ("CUDART_VERSION >= 99000", None)),
    ],
)
def test_a_condition_is_true_false_or_undecided(condition: str, value: bool | None) -> None:
    text = f"#define A 2\n#define B 0\n#if {condition}\nint x;\n#endif\n"
    assert preprocess(text, {}, {}).live("", text.index("int x")) is value
