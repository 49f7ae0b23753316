"""Kernels whose arrays have a type that the text computes, and that is known because the text was made for it."""

import numpy as np
from hypothesis import strategies as st

import cupyops
from cupyops import CompileError, Kernel, Threads

__all__ = ["trait"]

TYPES = {"float": "float32", "double": "float64", "int": "int32", "long long": "int64", "short": "int16"}
# Conditions whose value C++ computes.
TRUE = ["true", "1", "(3 > 2)", "!NO", "YES", "sizeof(double) == 8", "int(8) > 4", "(0x8 == 8u)", "Flag::on == 1"]
FALSE = ["false", "0", "(3 < 2)", "!YES", "NO", "sizeof(float) == 8", "int(8) < 4", "(0x8 != 8u)", "Flag::off == 1"]
EIGHT = ["8", "0x8", "8u", "4 + 4", "int(8)", "sizeof(double)", "EIGHT", "1 << 3", "'\\b'"]
PRELUDE = """constexpr bool YES = true, NO = false;
constexpr int EIGHT = 8;
struct Flag { enum { off, on }; };
template <bool B, class T, class U> struct If { using type = T; };
template <class T, class U> struct If<false, T, U> { using type = U; };
template <int N, class T, class U> struct ByNumber { using type = U; };
template <class T, class U> struct ByNumber<8, T, U> { using type = T; };
template <class P, class U> struct Element { using type = U; };
template <class T, class U> struct Element<T*, U> { using type = T; };
template <class T> struct Base { typedef T type; };
template <class T> struct Inherits : Base<T> {};
template <class T> struct Outer { struct Inner { using type = T; }; template <class V> using other = V; };
template <class T, class...> struct First { using type = T; };
"""


@st.composite
def _type(draw: st.DrawFn, right: str, wrong: str, depth: int = 2) -> str:
    """A type expression that is `right`."""
    kind = draw(st.sampled_from(["plain", "if", "number", "element", "base", "inherited", "nested", "member", "first"]))
    if depth == 0 or kind == "plain":
        return right
    a = draw(_type(right, wrong, depth - 1))
    if kind == "if":
        if draw(st.booleans()):
            return f"typename If<({draw(st.sampled_from(TRUE))}), {a}, {wrong}>::type"
        return f"typename If<({draw(st.sampled_from(FALSE))}), {wrong}, {a}>::type"
    if kind == "number":
        if draw(st.booleans()):
            return f"typename ByNumber<({draw(st.sampled_from(EIGHT))}), {a}, {wrong}>::type"
        return f"typename ByNumber<({draw(st.sampled_from(EIGHT))}) + 1, {wrong}, {a}>::type"
    if kind == "element":
        return (
            f"typename Element<{a}*, {wrong}>::type" if draw(st.booleans()) else f"typename Element<{wrong}, {a}>::type"
        )
    return {
        "base": f"typename Base<{a}>::type",
        "inherited": f"typename Inherits<{a}>::type",
        "nested": f"typename Outer<{a}>::Inner::type",
        "member": f"typename Outer<{wrong}>::template other<{a}>",
        "first": f"typename First<{a}, {wrong}, int>::type",
    }[kind]


def trait(data: st.DataObject, backend: str) -> None:
    """Arrays of the type that the text computes give right numbers, and arrays of another type are refused.

    A refusal of the right type, at the declaration or at the call, holds as well: no wrong number comes out of it.
    """
    right, wrong = data.draw(st.permutations(sorted(TYPES)))[:2]
    name = data.draw(_type(right, wrong))
    # Outside of a template, `typename` is allowed and not needed.
    name = name if data.draw(st.booleans()) else name.replace("typename ", "").replace("::template ", "::")
    way = data.draw(
        st.sampled_from(["using real = {};", "typedef {} real;", "#define real {}", "#if 1\nusing real = {};\n#endif"])
    )
    text = f"""{PRELUDE}{way.format(name)}
extern "C" __global__ void k(const real* x, /* (n) */ real* y, /* (n) */ int n) {{
    int i = threadIdx.x;
    if (i < n) y[i] = real(2 * x[i]);
}}
"""
    refusals = (TypeError, ValueError, CompileError)
    try:
        kernel = Kernel(text, "k", Threads("n"))
    except refusals:
        return
    with cupyops.simulate():
        for c_type in (right, wrong):
            dtype = TYPES[c_type]
            # Room after the arrays: an array that is taken for one of a wider type is written past its end.
            x, y = np.zeros(64, dtype)[:4], np.zeros(64, dtype)[:4]
            x[:] = range(1, 5)
            try:
                kernel(x, y, 4)
            except refusals:
                continue
            assert c_type == right, f"arrays of {dtype} are taken for {right}: {name}\n{text}"
            assert (y == 2 * x).all(), f"{y} in place of {2 * x}: {name}\n{text}"
