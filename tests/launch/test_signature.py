"""Reading a kernel's parameters from its declaration."""

import sys

import pytest

from cupyops.dtypes import DTYPES
from cupyops.errors import CompileError
from cupyops.launch.kernel_source import signature_of
from cupyops.launch.signature import Parameter, Signature


def parameters(
    declaration: str, before: str = 'extern "C" __global__ void ', behind: str = ") {}"
) -> tuple[Parameter, ...]:
    return Signature.parse(f"{before}k({declaration}{behind}", "k").parameters


def parameter(declaration: str) -> Parameter:
    (found,) = parameters(declaration)
    return found


def test_a_number_in_place_of_a_class_is_named() -> None:
    text = "template <typename Policy> __global__ void k(typename Policy::Index i, float* y) {}"
    with pytest.raises(CompileError, match="cannot determine which instance of function template"):
        signature_of(text, "k<float>")


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
        'extern "C" \\\n__global__ \\\r\n void ',
    ],
)
def test_where_a_declaration_may_hide(before: str) -> None:
    assert [p.name for p in parameters("const float* x, long long n", before)] == ["x", "n"]


@pytest.mark.parametrize(
    ("before", "path"),
    [
        ("__global__ void ", "k"),
        ('extern "C" void f();\n__global__ void ', "k"),
        ('extern "C" { void f(); }\nstatic __global__ void __launch_bounds__(256) ', "k"),
        ('// extern "C"\ninline void __global__ ', "k"),
        ("namespace a { namespace b::c { __global__ void ", "a::b::c::k"),
        ("namespace { [[maybe_unused]] __global__ void ", "k"),
        ("BOUNDS(256) int x; __global__ void LAUNCH_BOUNDS(256, (2)) ", "k"),
        ("EXPORT __attribute__((used)) __global__ void ", "k"),
        ("#define KERNEL __global__ void\nKERNEL ", "k"),
    ],
)
def test_a_kernel_without_c_linkage_has_its_c_plus_plus_name(before: str, path: str) -> None:
    found = Signature.parse(f"{before}k(const float* x, int n) {{ if (n) {{}} }} }} }}", "k")
    assert (found.names, found.entry and found.entry.path) == (("x", "n"), path)


def test_a_macro_may_hold_the_linkage() -> None:
    assert Signature.parse('#define KERNEL extern "C" __global__ void\nKERNEL k(float* x) {}', "k").entry is None


def test_a_specialization_is_not_read_in_place_of_its_template() -> None:
    text = (
        "template <typename T> __global__ void k(T* x, int n) {}\n"
        "template <> __global__ void k<float>(float* y, int m) {}\n"
        "template __global__ void k<double>(double*, int);\n"
    )
    assert Signature.parse(text, "k").names == ("x", "n")


def test_two_namespaces_of_one_name_are_told_apart() -> None:
    text = "namespace a { __global__ void k(float* x) {} } namespace b { __global__ void k(int* y) {} }"
    assert Signature.parse(text, "b::k").names == ("y",)
    with pytest.raises(ValueError, match="^k: the text has a::k and b::k; name the kernel with its namespace$"):
        Signature.parse(text, "k")


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


def test_a_backslash_continues_a_line() -> None:
    assert parameters("const float* x, \\\n int \\\r\n n") == parameters("const float* x, int n")


def test_no_parameters() -> None:
    assert parameters("") == parameters(" /* none */ ") == ()


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
        ("const scalar_t* RESTRICT x", True),
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
        ("PARAMETERS", "`PARAMETERS` must have a type and a name, and no macros"),
        ("unknown", "must have a type and a name"),
        ("float* x,\n#ifdef __CUDA_ARCH__\nint m,\n#endif\nint n", "`#ifdef __CUDA_ARCH__` is in the parameter list"),
        ("float* x,\n#define MORE\nint n", "`#define MORE` is in the parameter list"),
    ],
)
def test_refused_parameters(declaration: str, words: str) -> None:
    with pytest.raises(TypeError, match=f"^k: .*{words}"):
        parameters(declaration)


@pytest.mark.parametrize(
    ("declaration", "found"),
    [
        ("int n = 5", Parameter("n", "int32")),
        ("int n = f(1, 2) < 3", Parameter("n", "int32")),
        ("const std::size_t n = (3)", Parameter("n", "uint64")),
        ("::std::int64_t n", Parameter("n", "int64")),
        ("float x[]", Parameter("x", "float32", pointer=True, const=False)),
        ("const float x[4]", Parameter("x", "float32", pointer=True)),
        ("volatile float* x", Parameter("x", "float32", pointer=True, const=False)),
        ("const volatile int* volatile x", Parameter("x", "int32", pointer=True)),
        ("[[maybe_unused]] float* __attribute__((aligned(16))) __restrict__ x", Parameter("x", "float32", True, False)),
        ("__align__(16) const float* x", Parameter("x", "float32", pointer=True)),
        ("unsigned long n", Parameter("n", "uint32" if sys.platform == "win32" else "uint64")),
        ("const long int* n", Parameter("n", "int32" if sys.platform == "win32" else "int64", pointer=True)),
    ],
)
def test_declarations_of_c_plus_plus(declaration: str, found: Parameter) -> None:
    assert parameters(declaration) == (found,)
    assert parameters(f"{declaration}, int last") == (found, Parameter("last", "int32"))


def asked(declaration: str) -> Parameter:
    """Returns a parameter with the type that the compiler reports."""
    found, *_ = signature_of(f"__global__ void k({declaration}, int n = 0) {{}}", "k").parameters
    return found


@pytest.mark.parametrize(
    ("declaration", "found"),
    [
        ("float (*of)(float, int*)", Parameter("of", "uint64")),
        ("void (* const then) (int (*)(int)) = nullptr", Parameter("then", "uint64")),
        ("float** x", Parameter("x", "uint64", pointer=True, const=False)),
        ("float* const* x", Parameter("x", "uint64", pointer=True)),
        ("const scalar_t* __restrict__ const* __restrict__ x", Parameter("x", "uint64", pointer=True)),
        ("const half *x[]", Parameter("x", "uint64", pointer=True, const=False)),
        ("void** x /* (n) */", Parameter("x", "uint64", pointer=True, const=False, shape=("n",))),
        ("volatile int& x", Parameter("x", "int32", pointer=True, const=False)),
    ],
)
def test_types_that_the_compiler_takes_apart(declaration: str, found: Parameter) -> None:
    assert asked(declaration) == found


@pytest.mark.parametrize(
    ("declaration", "words"),
    [
        ("float*** x", r"k: parameter `x` is of type `float\*\*\*`: pass arrays as T\*"),
        ("float&& x", "cannot have a parameter with rvalue reference type"),
        ("void x", "may not have void type"),
        ("long double x", "k: parameter `x` has type 'long double', for which no Python value can be passed"),
    ],
)
def test_parameters_that_the_compiler_refuses_or_no_value_fits(declaration: str, words: str) -> None:
    with pytest.raises((TypeError, CompileError), match=words):
        asked(declaration)


def test_a_conditional_in_the_parameters_is_followed() -> None:
    text = "__global__ void k(float* x, // (n)\n#ifdef MORE\nint m, float* z, // (m)\n#else\nlong long o,\n#endif\nint n) {}"
    assert Signature.parse(text, "k").names == ("x", "o", "n")
    found = Signature.parse(text, "k", None, {"MORE": "1"})
    assert found.names == ("x", "m", "z", "n")
    assert [p.shape for p in found.parameters] == [("n",), None, ("m",), None]


def test_void_is_no_parameter() -> None:
    assert parameters("void") == parameters(" void /* none */ ") == ()


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
        ("\n // (n)\n float* x", [("n",)]),
        ("float* x,\n // (n)\n float* y", [None, ("n",)]),
        (
            "\n // (n) the input\n // of any sign\n const float* x,\n /* (M,\n N) */\n float* y,\n int n",
            [("n",), ("M", "N"), None],
        ),
        ("float* x, // (n)\n // (M)\n float* y, // a view\n int n", [("n",), ("M",), None]),
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
        "float* x,\n // (n)\n int n",
        "float* x,\n // (n)\n float* y, // (M)\n int n",
        "float* x,\n /* (n) */ float* y /* (n) */",
        "int n, /* (n) */ float* x",
        "float* x, float* y,\n // (n)\n",
    ],
)
def test_a_shape_that_may_mean_two_parameters_or_none_is_refused(declaration: str) -> None:
    with pytest.raises(
        ValueError, match=r"^k: the comment `.*\((n|M)\).*` may belong to two parameters, or to none; put it directly"
    ):
        parameters(declaration)


def test_two_shapes_of_one_parameter_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"k: two comments, `/\* \(n\) \*/` and `// \(M\)`, give the shape of one parameter"
    ):
        parameters("float* x, /* (n) */ // (M)\n int n")


@pytest.mark.parametrize("behind", [") /* (n) */ { y[0] = 1; }", ")  // (n)\n{}", ") {  // (n)\n}", ");  // (n)\n"])
def test_shape_comment_behind_the_last_parameter(behind: str) -> None:
    assert [p.shape for p in parameters("float* x, // (M)\n float* y", behind=behind)] == [("M",), ("n",)]


def test_a_comment_in_the_body_is_no_shape() -> None:
    assert parameters("float* y", behind=") { y[0] = 1; }  // (n)\n")[0].shape is None


@pytest.mark.parametrize("comment", ["// (M * N)", "// (2n)", "/* (M, N + 1) */", "// (B, H/2, 3)", "/// (n - 1, 2)"])
def test_a_warning_tells_that_an_expression_is_not_checked(comment: str) -> None:
    with pytest.warns(UserWarning, match=r"^k: the comment `.*` gives `x` no shape to check, which must be names and"):
        found = parameters(f"float* x {comment}\n, float* y, // (n)\n int n")
    assert [p.shape for p in found] == [None, ("n",), None]


@pytest.mark.parametrize("comment", ["// (n", "/* (M, N */", "// (optional: may be null)", "// (the input)"])
def test_words_in_parentheses_are_no_shape(comment: str) -> None:
    assert parameters(f"float* x {comment}\n, int n")[0].shape is None


def test_a_warning_tells_that_no_call_decides_a_name_of_a_shape() -> None:
    text = "__global__ void k(float* x /* (F, 3) */, float* y /* (n) */, float* z /* (count) */, int n, int counts) {}"
    with pytest.warns(
        UserWarning, match=r"`\(F, 3\)` gives `x` no shape to check, since the kernel has no integer parameter `F`"
    ):
        found = Signature.parse(text, "k", defines={}).parameters
    # A name that resembles a parameter's is refused by the kernel as a misspelling.
    assert [p.shape for p in found[:3]] == [None, ("n",), ("count",)]
    assert Signature.parse(text, "k", defines={"F": "2"}).parameters[0].shape == ("F", "3")


@pytest.mark.parametrize(
    "comment", ["// (h*w+1)*n", "/* (h + 1) * n */", "// (n) / 4", "// (M) * (N)", "/// (h * w) + 1"]
)
def test_the_parenthesis_of_an_expression_begins_no_shape(comment: str) -> None:
    assert [p.shape for p in parameters(f"float* x, {comment}\n float* y, // (n)\n int n")] == [None, ("n",), None]


@pytest.mark.parametrize("comment", ["// (n) - as x", "/* (n)*/", "// (n), as x", "// (n) or null"])
def test_words_behind_a_shape(comment: str) -> None:
    assert parameters(f"float* x, {comment}\n int n")[0].shape == ("n",)


def test_types_that_arrays_decide() -> None:
    found = Signature("k", parameters("const a_t* a, const float* f, acc_t* m, scalar_t* x, a_t* b, acc_t v"))
    assert found.bindings == {"a_t": (0, 4), "scalar_t": (3,)}
    types = {"a_t": "int8", "scalar_t": "float16"}
    assert [p.c_type(types) for p in found.parameters] == ["int8", "float32", "float32", "float16", "int8", "float32"]


@pytest.mark.parametrize(
    ("declaration", "found"),
    [
        ("const float& x", Parameter("x", "float32", pointer=True)),
        ("scalar_t &x", Parameter("x", "scalar_t", pointer=True, const=False)),
        ("float", Parameter("parameter0", "float32")),
        ("unsigned int", Parameter("parameter0", "uint32")),
        ("const float* __restrict__", Parameter("parameter0", "float32", pointer=True)),
        ("int = 5", Parameter("parameter0", "int32")),
    ],
)
def test_addresses_references_and_parameters_without_names(declaration: str, found: Parameter) -> None:
    assert parameter(declaration) == found
