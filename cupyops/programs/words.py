"""Words of CUDA C++, and messages for programs that use another language, most often Python or NumPy."""

import keyword
import re

from cupyops.compile.standard import NUMBERS

__all__ = ["CUDA_FUNCTIONS", "NO_REDUCTIONS", "OF_ROWS", "RESERVED", "WRITTEN", "no_assignment", "other_language"]

# Functions of CUDA's headers. A kernel cannot have the name of such a function.
CUDA_FUNCTIONS = frozenset(
    [
        "abs",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "assert",
        "atan",
        "atan2",
        "atanh",
        "cbrt",
        "ceil",
        "clock",
        "clock64",
        "copysign",
        "cos",
        "cosh",
        "cospi",
        "cyl_bessel_i0",
        "cyl_bessel_i1",
        "div",
        "erf",
        "erfc",
        "erfcinv",
        "erfcx",
        "erfinv",
        "exp",
        "exp10",
        "exp2",
        "expm1",
        "fabs",
        "fdim",
        "fdividef",
        "floor",
        "fma",
        "fmax",
        "fmin",
        "fmod",
        "free",
        "frexp",
        "hypot",
        "ilogb",
        "isfinite",
        "isinf",
        "isnan",
        "j0",
        "j1",
        "jn",
        "labs",
        "ldexp",
        "lgamma",
        "llabs",
        "llmax",
        "llmin",
        "llrint",
        "llround",
        "log",
        "log10",
        "log1p",
        "log2",
        "logb",
        "lrint",
        "lround",
        "malloc",
        "max",
        "memcpy",
        "memset",
        "min",
        "modf",
        "nan",
        "nearbyint",
        "nextafter",
        "norm",
        "norm3d",
        "norm4d",
        "normcdf",
        "normcdfinv",
        "pow",
        "pow10",
        "powi",
        "printf",
        "rcbrt",
        "remainder",
        "remquo",
        "rhypot",
        "rint",
        "rnorm",
        "rnorm3d",
        "rnorm4d",
        "round",
        "rsqrt",
        "saturate",
        "scalbln",
        "scalbn",
        "signbit",
        "sin",
        "sincos",
        "sincospi",
        "sinh",
        "sinpi",
        "sqrt",
        "tan",
        "tanh",
        "tgamma",
        "trunc",
        "umax",
        "ullmax",
        "ullmin",
        "umin",
        "y0",
        "y1",
        "yn",
    ]
)
# Words of C++ that no variable may have. An expression may have some of them, such as types.
RESERVED = frozenset(
    (
        *(
            "alignas",
            "alignof",
            "asm",
            "auto",
            "bool",
            "case",
            "catch",
            "char",
            "concept",
            "const",
            "const_cast",
            "consteval",
        ),
        *(
            "constexpr",
            "constinit",
            "decltype",
            "default",
            "delete",
            "do",
            "double",
            "dynamic_cast",
            "enum",
            "explicit",
        ),
        *(
            "export",
            "extern",
            "false",
            "float",
            "friend",
            "goto",
            "inline",
            "int",
            "long",
            "mutable",
            "namespace",
            "new",
        ),
        *(
            "noexcept",
            "nullptr",
            "operator",
            "private",
            "protected",
            "public",
            "register",
            "reinterpret_cast",
            "requires",
        ),
        *(
            "short",
            "signed",
            "sizeof",
            "static",
            "static_assert",
            "static_cast",
            "struct",
            "switch",
            "template",
            "this",
        ),
        *(
            "thread_local",
            "throw",
            "true",
            "typedef",
            "typeid",
            "typename",
            "union",
            "unsigned",
            "using",
            "virtual",
            "void",
        ),
        *("volatile", "wchar_t", "NULL", *NUMBERS),
    )
)

# Functions that CUDA C++ does not have, or that mean something else in CUDA C++, and their definitions in CUDA C++.
WRITTEN = {
    "sigmoid": "1 / (1 + exp(-x))",
    "silu": "x / (1 + exp(-x))",
    "swish": "x / (1 + exp(-x))",
    "relu": "x < 0 ? 0 : x",
    "softplus": "log1p(exp(x))",
    "square": "x * x",
    "sign": "(x > 0) - (x < 0)",
    "absolute": "fabs(x)",
    "ln": "log(x)",
    "power": "pow(a, b)",
    "arccos": "acos(x)",
    "arcsin": "asin(x)",
    "arctan": "atan(x)",
    "where": "c ? a : b",
    "maximum": "fmax(a, b)",
    "minimum": "fmin(a, b)",
    "clamp": "fmin(fmax(x, low), high)",
    "clip": "fmin(fmax(x, low), high)",
}
# Functions of a whole row that row programs do not have, and their definitions by reductions.
OF_ROWS = {
    "mean": "sum(x) / N",
    "avg": "sum(x) / N",
    "average": "sum(x) / N",
    "amax": "max(x)",
    "amin": "min(x)",
    "var": "sum((x - m) * (x - m)) / N, after m = sum(x) / N",
    "std": "sqrt(sum((x - m) * (x - m)) / N), after m = sum(x) / N",
    "norm": "sqrt(sum(x * x))",
    "dot": "sum(a * b)",
    "argmax": "min(x == m ? j : N), after m = max(x)",
    "argmin": "min(x == m ? j : N), after m = min(x)",
    "any": "max(c ? 1 : 0)",
    "all": "min(c ? 1 : 0)",
    "softmax": "e / sum(e), after m = max(x); e = exp(x - m)",
    "logsumexp": "m + log(sum(exp(x - m))), after m = max(x)",
    "len": "N",
}
# Reductions that row programs do not have.
NO_REDUCTIONS = ("cummax", "cummin", "cumprod", "cumsum", "logcumsumexp", "median", "prod", "sort", "topk")

_OTHERS = {
    "and": "CUDA C++ writes && for `and`",
    "or": "CUDA C++ writes || for `or`",
    "not": "CUDA C++ writes ! for `not`",
    "True": "CUDA C++ writes true for `True`",
    "False": "CUDA C++ writes false for `False`",
    "None": "there is no None; every name is a number",
    "return": "nothing is returned; the results are the names that are assigned and not read again",
    "import": "nothing is imported; CUDA's functions are there",
}


def other_language(piece: str) -> str:
    """Returns a message about the first part of a statement that is not CUDA C++, with its CUDA C++ form, or ""."""
    if "#" in piece:
        return "a comment begins with //"
    if power := re.search(r"(?:([A-Za-z_]\w*)\s*)?\*\*(?:\s*(-?[\w.]+))?", piece):
        base, exponent = power[1] or "a", power[2] or "2"
        product = f"{base} * {base}, or " if exponent in ("2", "2.0", "2.") else ""
        return f"CUDA C++ has no **: write {product}pow({base}, {exponent})"
    if "@" in piece:
        return "CUDA C++ has no @, and a program multiplies element by element: write *"
    if re.search(r"\bif\b.*\belse\b", piece, re.DOTALL):
        return "CUDA C++ writes c ? x : y for `x if c else y`"
    for word in re.findall(r"(?<![\w.])[A-Za-z_]\w*", piece):
        if word in _OTHERS:
            return _OTHERS[word]
        if keyword.iskeyword(word):
            return f"`{word}` is a reserved word, and can be no name"
    if member := re.search(r"(?<![\w.])([A-Za-z_]\w*)\s*\.\s*([A-Za-z_]\w*)\s*(\(?)", piece):
        owner, name, called = member.groups()
        module = owner in ("np", "numpy", "torch", "math", "cp", "cupy", "jnp", "F")
        words = "functions are CUDA's own" if module else f"`{owner}` is a number, and has no members"
        known = {**WRITTEN, **OF_ROWS}
        if name in known:
            return f"{words}: {name} is {known[name]}"
        if name in NO_REDUCTIONS:
            return f"{words}, and there is no {name}"
        return f"{words}: write {name}({'...' if module else owner})" if called else words
    if re.search(r"[\[\]]", piece):
        return "each name is one element, or one value of a row, and has no index"
    return ""


def no_assignment(piece: str) -> str:
    """Returns a hint about the most likely mistake in a statement that is not an assignment, or ""."""
    if re.match(r"\s*\w+\s*==", piece):
        return "; an assignment has one =, and == compares"
    if changed := re.match(r"\s*(\w+)\s*([-+*/%&|^]|<<|>>)=", piece):
        return f"; each name is assigned once, so instead of changing `{changed[1]}` give the result another name"
    if typed := re.match(r"\s*(?:(?:const\s+)?[A-Za-z_]\w*\s+(\w+)|(\w+)\s*:[^=]*)\s*=", piece):
        return f"; types are not written: {typed[1] or typed[2]} = ..."
    if re.match(r"\s*\w+(\s*,\s*\w+)+\s*=", piece):
        return "; a statement assigns one name"
    return ""
