"""Reading a kernel's parameters from its declaration."""

import re
import time
from contextlib import suppress

import pytest

from cupyops import Kernel, Threads
from cupyops.declaration import check_declaration
from cupyops.dtypes import DTYPES, FLOATS
from cupyops.signature import Parameter, Signature, code_only, only, the_kernel
from cupyops.source import assemble


def parameters(
    declaration: str, before: str = 'extern "C" __global__ void ', behind: str = ") {}"
) -> tuple[Parameter, ...]:
    return Signature.parse(f"{before}k({declaration}{behind}", "k").parameters


def parameter(declaration: str) -> Parameter:
    (found,) = parameters(declaration)
    return found


def checked(declaration: str, sizes: tuple[str, ...] = (), text: str = "", **constants: int) -> None:
    text += f'extern "C" __global__ void k({declaration}) {{}}'
    check_declaration(Signature.parse(text, "k"), text, sizes, FLOATS, constants)


# Finding the kernel


@pytest.mark.parametrize(
    "before",
    [
        'extern "C" __global__ void ',
        'extern "C" __global__ void __launch_bounds__(256) ',
        'extern "C" __global__ __launch_bounds__(BLOCK_THREADS, 2) void ',
        'extern "C" __launch_bounds__(256) __global__ void ',
        'extern "C" __global__ void __launch_bounds__(32 * (1 + WARPS), MAX(1, 2))\n',
        'extern "C" void __global__ ',
        'extern\n"C"\n__global__\nvoid\n',
        'extern "C" /* why */ __global__ void // so\n',
        'extern "C" { __global__ void other(int n) { if (n) {} }\n__global__ void ',
        'namespace a { extern "C" __global__ void ',
        'void f() {}\nextern "C" static __global__ void ',
    ],
)
def test_where_a_declaration_may_hide(before: str) -> None:
    assert [p.name for p in parameters("const float* x, long long n", before)] == ["x", "n"]


@pytest.mark.parametrize(
    "before",
    [
        "__global__ void ",
        'extern "C" void f();\n__global__ void ',
        'extern "C" { void f(); }\n__global__ void ',
        '// extern "C"\n__global__ void ',
    ],
)
def test_a_kernel_whose_name_is_mangled_is_refused(before: str) -> None:
    with pytest.raises(ValueError, match=r'k: declare it extern "C" __global__'):
        parameters("float* x", before)


def test_a_kernel_that_is_not_there_is_answered_with_the_nearest() -> None:
    text = 'extern "C" __global__ void gelu_forward(float* x) {} extern "C" __global__ void add(float* x) {}'
    with pytest.raises(ValueError, match=r"'gelu_foward'.*it has gelu_forward, add; did you mean 'gelu_forward'\?"):
        Signature.parse(text, "gelu_foward")
    with pytest.raises(ValueError, match="no __global__ function 'k' in the text; it has none"):
        Signature.parse("void k(float* x);", "k")


@pytest.mark.parametrize(
    "decoy",
    [
        '// extern "C" __global__ void k(int wrong)\n',
        '/* extern "C" __global__ void k(int wrong) {} */',
        'const char* s = "__global__ void k(int wrong)";',
        '#define K extern "C" __global__ void k(int wrong)\n',
        '#define K \\\n  extern "C" __global__ void k(int wrong) {\n',
        'extern "C" __global__ void k2(int wrong) {}',
    ],
)
def test_what_only_looks_like_the_declaration_is_passed_over(decoy: str) -> None:
    right = 'extern "C" __global__ void k(const float* x, long long n) {}'
    assert Signature.parse(decoy + right, "k").names == ("x", "n")


def test_a_definition_is_read_rather_than_its_prototypes() -> None:
    """A prototype leaves out the shapes, or even the names."""
    prototype = 'extern "C" __global__ void k(float*, long long);\n'
    right = 'extern "C" __global__ void k(const float* x,  // (n)\n long long n) {}\n'
    found = Signature.parse(prototype + right + prototype, "k")
    assert found.names == ("x", "n")
    assert found.parameters[0].shape == ("n",)


def test_a_prototype_alone_will_do() -> None:
    assert parameters("const float* x, int n", behind=");")[1] == Parameter("n", "int32")


def test_no_parameters() -> None:
    assert parameters("") == parameters(" /* none */ ") == ()


@pytest.mark.parametrize(
    ("before", "instead"),
    [
        ("template <typename T> __global__ void", "scalar_t for T, which the arrays of each call decide"),
        ('extern "C" template<int N, class Real> static __global__ void', "scalar_t for Real, which"),
        ("template <typename T>\n// of T\n__global__ void __launch_bounds__(256)", "scalar_t for T, which"),
        ("template <int N> __global__ void", "constants={...} for its numbers"),
    ],
)
def test_a_template_is_refused_with_what_stands_for_it(before: str, instead: str) -> None:
    words = (
        f'k: a kernel that is a template is not taken yet: declare it extern "C" __global__ void k(...), with {instead}'
    )
    with pytest.raises(ValueError, match=f"^{re.escape(words)}"):
        Signature.parse(f"{before} k(float* x) {{ }}", "k")


@pytest.mark.parametrize(
    ("before", "got"),
    [
        ('extern "C" __global__ int', "int"),
        ('extern "C" __global__ __launch_bounds__(256) unsigned int', "unsigned int"),
        ('extern "C" { __global__ float*', "float*"),
        ("__global__ int", "int"),
        ('extern "C" __global__', "no return type"),
    ],
)
def test_a_kernel_that_returns_something_is_refused(before: str, got: str) -> None:
    words = (
        f'k: a kernel must be void, got {got}: declare it extern "C" __global__ void k(...), and write what it makes into an '
        "array"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        Signature.parse(f"{before} k(float* x) {{ return 0; }}", "k")


@pytest.mark.parametrize("before", ['extern "C" void __global__', 'extern "C" __global__ __launch_bounds__(256) void'])
def test_void_may_stand_on_either_side(before: str) -> None:
    assert Signature.parse(f"{before} k(float* x) {{ }}", "k").names == ("x",)


def test_a_list_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="k: its list of parameters has no end"):
        parameters("const float* x, int n", behind=" {")


# One parameter


@pytest.mark.parametrize(
    ("spelled", "dtype"),
    [
        *((d.c_type, d.name) for d in DTYPES.values()),
        ("half", "float16"),
        ("unsigned", "uint32"),
        ("unsigned int", "uint32"),
        ("int unsigned", "uint32"),
        ("signed", "int32"),
        ("signed int", "int32"),
        ("short int", "int16"),
        ("unsigned short int", "uint16"),
        ("long long int", "int64"),
        ("signed long long", "int64"),
        ("long long unsigned int", "uint64"),
        ("unsigned  long\nlong", "uint64"),
        ("char", "int8"),
        ("size_t", "uint64"),
        *((f"{name}_t", name) for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")),
    ],
)
def test_spellings_of_types(spelled: str, dtype: str) -> None:
    assert parameter(f"{spelled} v") == Parameter("v", dtype)
    assert parameter(f"const {spelled} v") == parameter(f"{spelled} const v") == Parameter("v", dtype)
    assert parameter(f"{spelled}* v") == Parameter("v", dtype, pointer=True, const=False)


@pytest.mark.parametrize("name", ["constant", "restrict_", "v1", "_", "int_value"])
def test_names_are_taken_whole(name: str) -> None:
    assert parameter(f"int {name}").name == name
    assert parameter(f"const scalar_t* {name}").name == name
    assert parameter(f"const Int64s<3> {name}").name == name


@pytest.mark.parametrize(
    ("spelled", "const"),
    [
        ("const scalar_t* x", True),
        ("scalar_t const* x", True),
        ("scalar_t const *x", True),
        ("const scalar_t*x", True),
        ("const scalar_t * __restrict__ x", True),
        ("const scalar_t* __restrict x", True),
        ("const scalar_t *__restrict__ const x", True),
        ("scalar_t* x", False),
        ("scalar_t *__restrict__ x", False),
        ("scalar_t* const x", False),
        ("scalar_t*\n    x", False),
    ],
)
def test_const_is_what_is_pointed_to(spelled: str, const: bool) -> None:
    assert parameter(spelled) == Parameter("x", "scalar_t", pointer=True, const=const)


@pytest.mark.parametrize(
    "spelled", ["Int64s<NDIM> s", "const Int64s<NDIM> s", "Int64s < NDIM > const s", "Int64s<NDIM>s"]
)
def test_small_tuples(spelled: str) -> None:
    assert parameter(spelled) == Parameter("s", "int64", length="NDIM")


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        ("float** x", r"`float\*\* x`: pass arrays as T\*"),
        ("float *const *x", r"pass arrays as T\*"),
        ("const float& x", r"pass arrays as T\*"),
        ("float x[]", r"pass arrays as T\*"),
        ("Int64s<3>* s", "which no Python value stands for"),
        ("struct Point p", "`p` has type 'struct Point'"),
        ("std::size_t n", "`n` has type 'std::size_t'"),
        ("volatile float* x", "`x` has type 'volatile float'"),
        ("void* x", "`x` has type 'void'"),
        ("long double x", "`x` has type 'long double'"),
        ("long n", "`n` is a long, .* declare it long long or int"),
        ("unsigned long n", "`n` is a long"),
        ("const long int* n", "`n` is a long"),
        ("float (*f)(float)", "must have a type and a name|no Python value"),
        ("PARAMETERS", "`PARAMETERS` must have a type and a name, and no macros"),
        ("float* RESTRICT x", "and no macros"),
        ("float", "must have a type and a name"),
        ("unsigned int", "must have a type and a name"),
        ("const float*", "must have a type and a name"),
        ("int n = 5", "must have a type and a name"),
        ("float* x,\n#ifdef MORE\nint m,\n#endif\nint n", "`#ifdef MORE` stands among its parameters"),
    ],
)
def test_refused_parameters(declaration: str, words: str) -> None:
    with pytest.raises(TypeError, match=f"^k: .*{words}"):
        parameters(declaration)


# Shapes


@pytest.mark.parametrize(
    ("declaration", "shapes"),
    [
        ("float* x,  // (n)\n float* y  // (M, N)\n", [("n",), ("M", "N")]),
        ("float* x  // (n)\n , float* y  // (M, N)\n", [("n",), ("M", "N")]),
        ("float* x /* (n) */, float* y /* (M, N) */", [("n",), ("M", "N")]),
        ("float* x, // (n)\n float* y, // (M, N)\n long long n", [("n",), ("M", "N"), None]),
        ("float* x, float* y, // (n)\n long long n", [None, ("n",), None]),
        ("float* x, // a view\n float* y, // (n) elements\n long long n // (n)\n", [None, ("n",), None]),
        ("float* x, // ( M ,N, )\n float* y, //(1)\n float* z, // ()\n int n", [("M", "N"), ("1",), (), None]),
        ("float* x,\t// (n)\r\n long long n", [("n",), None]),
        ("const float* x, /* (n) */ long long n", [("n",), None]),
        ("float* x /* the input */ /* (n) */, float* y", [("n",), None]),
        ("float* x, // (n)\n", [("n",)]),
        ("float* x /* in */, // (n)\n float* y", [("n",), None]),
        ("const float* x, /* (M, N) */ float* y /* (N) */, long long M", [("M", "N"), ("N",), None]),
        ("float* x, /* (M) */ float* y, /* (N) */ int n", [("M",), ("N",), None]),
        ("float* x /* (M,\n N) */, float* /* (K) */ y", [("M", "N"), ("K",)]),
        ("float* x, /* (n)\n */ float* y", [("n",), None]),
        ("float* x, ///< (n)\n float* y, /** (M) */\n float* z /*! (1) */", [("n",), ("M",), ("1",)]),
        ("float* x,\n // all of (n)\n float* y", [None, None]),
        ("float* x, /* (n) */ /* (n) */\n int n", [("n",), None]),
    ],
)
def test_shape_comments(declaration: str, shapes: list[tuple[str, ...] | None]) -> None:
    assert [p.shape for p in parameters(declaration)] == shapes


@pytest.mark.parametrize(
    "declaration",
    [
        "const float* x, /* (n) */ float* y",
        "const float* x, /* (n) */ float* y, /* (M) */ float* z",
        "/* (n) */ const float* x, /* (n) */ float* y /* (n) */",
        "// (n)\n float* x",
        "float* x,\n // (n)\n float* y",
        "float* x,\n /* (n) */ float* y /* (n) */",
        "int n, /* (n) */ float* x",
        "float* x, float* y,\n // (n)\n",
    ],
)
def test_a_shape_that_may_mean_two_parameters_or_none_is_refused(declaration: str) -> None:
    with pytest.raises(
        ValueError, match=r"^k: the comment `.*\((n|M)\).*` does not say whose shape it is; put it directly"
    ):
        parameters(declaration)


def test_two_shapes_of_one_parameter_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"k: two comments, `/\* \(n\) \*/` and `// \(M\)`, tell the shape of one parameter"
    ):
        parameters("float* x, /* (n) */ // (M)\n int n")


@pytest.mark.parametrize("behind", [") /* (n) */ { y[0] = 1; }", ")  // (n)\n{}", ") {  // (n)\n}", ");  // (n)\n"])
def test_shape_comment_behind_the_last_parameter(behind: str) -> None:
    assert [p.shape for p in parameters("float* x, // (M)\n float* y", behind=behind)] == [("M",), ("n",)]


def test_a_comment_in_the_body_is_no_shape() -> None:
    assert parameters("float* y", behind=") { y[0] = 1; }  // (n)\n")[0].shape is None


@pytest.mark.parametrize(
    "comment", ["// (M * N)", "// (2n)", "// (n", "/* (M, N */", "/* (M, N + 1) */", "// (optional: may be null)"]
)
def test_a_shape_that_cannot_be_checked_is_refused(comment: str) -> None:
    with pytest.raises(ValueError, match=r"k: the shape .* of `x` must be names and numbers"):
        parameters(f"float* x {comment}\n, int n")


# What a declaration must agree with


@pytest.mark.parametrize(
    ("declaration", "sizes", "words"),
    [
        ("float* x", ("n",), "`n` counts threads or elements, but is no integer parameter"),
        ("float* x, // (M, N)\n int M, int n", (), r"`N` counts .*; did you mean 'n'\?|`N` counts"),
        ("float* x, float n", ("n",), "`n` counts .* no integer parameter"),
        ("float* x, Int64s<2> n", ("n",), "`n` counts .* no integer parameter"),
        ("float* n", ("n",), "`n` counts .* no integer parameter"),
        ("float* x, int unit", ("unit",), "`unit` counts threads, and has a name .* call it `unit_`"),
        ("float* x, int lambda", ("lambda",), "`lambda` counts threads, .* call it `lambda_`"),
    ],
)
def test_sizes_must_be_integer_parameters(declaration: str, sizes: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=f"^k: {words}"):
        checked(declaration, sizes)


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        ("float* x, index_t n", "no array of the call decides the type 'index_t' of `n`"),
        ("float* x, acc_t a", "`a` is an acc_t, which follows scalar_t, and no array is of scalar_t"),
        ("acc_t* a, float* x", "`a` is an acc_t, which follows scalar_t"),
        ("float* x, Int64s<NDIM> s", "the length of `s`, NDIM, must be a number or one of the kernel's constants"),
        ("float* x, half a", "`a` is a float16 by value, which cannot be passed; declare it acc_t or float"),
        ("float* x, __nv_bfloat16 a", "`a` is a bfloat16 by value"),
        ("scalar_t* x, scalar_t a", "`a` is a float16 by value"),
    ],
)
def test_types_that_no_call_could_fit(declaration: str, words: str) -> None:
    with pytest.raises(TypeError, match=f"^k: {words}"):
        checked(declaration)


def test_types_that_fit() -> None:
    checked(
        "const scalar_t* x, acc_t* mean /* (1) */, index_t* i, acc_t a, Int64s<NDIM> s, int n",
        ("n",),
        NDIM=2,
    )
    checked("float* x, // (N, 3, LANES)\n int N", LANES=4)


@pytest.mark.parametrize("directive", ["#define scalar_t float\n", "  #  define scalar_t\tdouble\n"])
def test_a_type_that_the_text_redefines_is_refused(directive: str) -> None:
    """The arrays would be read as another type than they are."""
    with pytest.raises(TypeError, match="the text defines 'scalar_t' as a macro"):
        checked("scalar_t* x", text=directive)
    checked("scalar_t* x", text="#define scalar_t_of int\n// #define scalar_t float\n")


def test_types_that_arrays_decide() -> None:
    found = Signature("k", parameters("const a_t* a, const float* f, acc_t* m, scalar_t* x, a_t* b, acc_t v"))
    assert found.bindings == {"a_t": (0, 4), "scalar_t": (3,)}
    types = {"a_t": "int8", "scalar_t": "float16"}
    assert [p.c_type(types) for p in found.parameters] == ["int8", "float32", "float32", "float16", "int8", "float32"]


MEANINGS = {
    "#define real float\n": "defines 'real' as a macro",
    "#define real\t\\\n float\n": "defines 'real' as a macro",
    "/* why */\n#ifdef HALF\n#define real half\n#endif\n": "defines 'real' as a macro",
    "typedef float real;\n": "declares 'real' by typedef or using",
    "typedef float other, real, *third;\n": "declares 'real' by typedef or using",
    "using real = float;\n": "declares 'real' by typedef or using",
    'extern "C" { using real = float; }\n': "declares 'real' by typedef or using",
    "namespace { using real = float; }\n": "declares 'real' by typedef or using",
}
NO_MEANINGS = [
    "#if 0\n#define real float\n#endif\n",
    "// typedef float real;\n",
    "#define real_of(x) x\n#define real(x) x\n",
    "struct A { using real = float; }; __device__ void f() { typedef float real; }\n",
    "namespace a { using real = float; }\n",
    "template <typename real> __device__ real twice(real x) { return x + x; }\n",
]
REAL = 'extern "C" __global__ void k(const real* x, real* y, int n) { if (n) y[0] = x[0]; }'


@pytest.mark.parametrize("where", ["text", "header", "header of a header"])
@pytest.mark.parametrize("meaning", MEANINGS)
def test_a_type_that_text_or_header_gives_a_meaning_is_refused(meaning: str, where: str) -> None:
    headers = {
        "text": {},
        "header": {"a.cuh": meaning},
        "header of a header": {"a.cuh": '#include "b.cuh"\n', "b.cuh": meaning},
    }
    text = meaning if where == "text" else '#include "a.cuh"\n'
    found = "the text" if where == "text" else f"the header {'a' if where == 'header' else 'b'}.cuh"
    with pytest.raises(TypeError, match=f"^k: {found} {MEANINGS[meaning]}; the arrays of a call decide what it is"):
        Kernel(text + REAL, "k", Threads("n"), headers=headers[where])


@pytest.mark.parametrize("text", NO_MEANINGS)
def test_another_of_that_name_is_no_matter(text: str) -> None:
    for headers in ({}, {"a.cuh": text}):
        Kernel(('#include "a.cuh"\n' if headers else text) + REAL, "k", Threads("n"), headers=headers)


def test_a_namespace_of_the_kernel_counts() -> None:
    with pytest.raises(TypeError, match="declares 'real' by typedef or using"):
        Kernel(f"namespace a {{ using real = float; }} namespace a {{ {REAL} }}", "k", Threads("n"))
    Kernel(f"namespace a {{ using real = float; }} namespace b {{ {REAL} }}", "k", Threads("n"))


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


@pytest.mark.parametrize("condition", ["ifdef A", "if A", "if defined(A) && 1", "ifndef A"])
def test_two_definitions_that_differ_are_refused(condition: str) -> None:
    words = r"^k: the text defines it more than once and not alike \(lines 2 and 5\), and which one is compiled only a compiler"
    with pytest.raises(ValueError, match=words):
        Kernel(f"#{condition}\n{LIVE}#else\n{DEAD} }}\n#endif\n", "k")


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
    from cupyops.compiler import compile_text

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

_MANY = 25_000
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
    """A second at most here; what looks back at every place takes minutes."""
    text = "\n".join([ADVERSARIAL[kind], LIVE][:: 1 if where == "before" else -1])
    start = time.process_time()
    for step in (
        lambda: Kernel(text, "k", Threads("n"), headers={"a.cuh": ""}).final_text({}),
        lambda: the_kernel(text),
        lambda: assemble(text, "k.cu", {}, {}, {"a.cuh": ""}),
    ):
        with suppress(ValueError, TypeError):  # some are no text that has the kernel
            step()
    assert time.process_time() - start < 10


def test_many_parameters_take_no_longer_than_their_number_says() -> None:
    start = time.process_time()
    found = parameters("".join(f"const t{i}* x{i} /* (n) */, " for i in range(20_000)) + "int n")
    assert {p.shape for p in found[:-1]} == {("n",)}
    assert time.process_time() - start < 10


def test_code_only_keeps_places() -> None:
    text = "a \"b{\" /* c\n} */ d\n#define E {\\\n }\n'{' 1'000 '}' // f\nextern \"C\""
    code = code_only(text)
    assert len(code) == len(text)
    assert [i for i, c in enumerate(code) if c == "\n"] == [i for i, c in enumerate(text) if c == "\n"]
    assert code.split() == ["a", "d", "1'000", "extern", '"C"']
