"""Declarations of kernels, drawn and rendered, and texts with characters changed."""

import re

from hypothesis import strategies as st

import kernels_cu
from cupyops import CompileError, Kernel, Threads
from cupyops.dtypes import DTYPES
from cupyops.launch.signature import Parameter, Signature

__all__ = ["declaration", "mutated_text"]

SHIPPED = ("add2", "column_sums", "lltm_cell", "rotary_embedding")  # texts with a kernel of their name
# What a text may call the types that the library knows by one name, and types that the caller's arrays decide.
SPELLINGS = [(d.c_type, d.name) for d in DTYPES.values()] + [
    ("size_t", "uint64"),
    ("int64_t", "int64"),
    ("half", "float16"),
]
OWN = [("scalar_t", "scalar_t"), ("acc_t", "acc_t"), ("index_t", "index_t")]
BY_VALUE = [(c, name) for c, name in SPELLINGS if DTYPES[name].code is not None] + [("acc_t", "acc_t")]
GAPS = st.sampled_from([" ", "  ", "\t", "\n", "\n    ", " /* why */ ", " // why\n", " \\\n"])
DECOYS = st.sampled_from(
    [
        "",
        '// extern "C" __global__ void k(int wrong) {}\n',
        '/* extern "C" __global__\nvoid k(int wrong) {} */',
        'const char* s = "__global__ void k(int wrong)";\n',
        '#define K extern "C" __global__ void k(int wrong)\n',
        "__device__ float helper(const float* x, int n) { return x[n]; }\n",
        'extern "C" __global__ void other(float* wrong  // (wrong)\n) {}\n',
        "#include <cuda_fp16.h>\n",
    ]
)
HEADS = st.sampled_from(
    [
        'extern "C" __global__ void k(',
        'extern "C" __global__ void __launch_bounds__(256) k(',
        'extern "C" __global__ __launch_bounds__(32 * (1 + 3), 2)\nvoid k (',
        'extern\n"C"\n__global__\nvoid\nk(',
        'extern "C" { __global__ void k(',
    ]
)


@st.composite
def parameters(draw: st.DrawFn) -> tuple[list[tuple[str, str]], list[Parameter]]:
    """(declaration, shape comment) of each parameter, and the expected result of the parser."""
    count = draw(st.integers(0, 9))
    words = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(lambda w: w not in _RESERVED)
    names = draw(st.lists(words, min_size=count, max_size=count, unique=True))
    rendered, expected = [], []
    for name in names:
        if draw(st.booleans()):
            c_type, type_ = draw(st.sampled_from(SPELLINGS + OWN))
            const = draw(st.booleans())
            shape, nullable, comment = None, False, ""
            if draw(st.booleans()):
                terms = draw(
                    st.lists(st.one_of(st.sampled_from(names), st.integers(1, 99).map(str)), min_size=1, max_size=3)
                )
                nullable = draw(st.booleans())
                shape = tuple(terms)
                comment = f"({', '.join(terms)}){' or null' if nullable else ''}"
            restrict = draw(st.sampled_from(["", " __restrict__", "__restrict__"]))
            before, behind = draw(st.tuples(st.sampled_from(["", " "]), st.sampled_from(["", " "])))
            star = f"{before}*{restrict}{behind}" if behind or not restrict else f"{before}*{restrict} "
            if not before and not star.startswith("*"):
                star = " " + star
            rendered.append((f"{'const ' if const else ''}{c_type}{star}{name}", comment))
            expected.append(Parameter(name, type_, True, const, shape, None, nullable))
        else:
            c_type, type_ = draw(st.sampled_from(BY_VALUE))
            rendered.append((f"{draw(st.sampled_from(['', 'const ']))}{c_type} {name}", ""))
            expected.append(Parameter(name, type_))
    return rendered, expected


# Names that no parameter may have.
_RESERVED = {c for c, _ in SPELLINGS + OWN} | set(
    re.findall(
        r"\w+",
        """k alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const continue default
        delete do double else enum explicit extern false float for friend goto if inline int long mutable new not not_eq
        nullptr operator or or_eq private public register return short signed sizeof static struct switch template this
        throw true try typedef typeid typename union unsigned using virtual void volatile while xor xor_eq""",
    )
)


def declaration(data: st.DataObject, backend: str) -> None:
    """A declaration is parsed as the parameters from which it was rendered."""
    rendered, expected = data.draw(parameters())
    text = data.draw(DECOYS) + data.draw(HEADS)
    for i, (words, comment) in enumerate(rendered):
        text += data.draw(GAPS) + words
        last = i == len(rendered) - 1
        style = data.draw(st.sampled_from(["/*", "//", "///<"])) if comment else ""
        if style == "/*":
            text += f" /* {comment} */" + ("" if last else ",")
        elif style:
            behind = data.draw(st.booleans()) and not last
            text += f",  {style} {comment}\n" if behind else f"  {style} {comment}\n" + ("" if last else ",")
        elif not last:
            text += ","
    text += ") { }" + data.draw(DECOYS)
    assert list(Signature.parse(text, "k").parameters) == expected, text


def mutated_text(data: st.DataObject, backend: str) -> None:
    """A text with pieces deleted, doubled, swapped or replaced makes a kernel, or one of the documented errors."""
    text = str(data.draw(st.sampled_from(_texts())))
    for _ in range(data.draw(st.integers(1, 6))):
        a, b = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        b = min(b, a + data.draw(st.integers(0, 40)))
        piece = data.draw(
            st.one_of(
                st.sampled_from(
                    ["", text[a:b] * 2, text[a:b][::-1], "(", ")", "{", "}", "*/", "/*", '"', "'", "//", "\\\n"]
                ),
                st.sampled_from(
                    ["#if 0\n", "#endif\n", "#define x (\n", 'R"(', ')"', "template <int N> ", "...", "\x00", "é"]
                ),
                st.text(max_size=8),
            )
        )
        text = text[:a] + piece + text[b:]
    try:
        kernel = Kernel(text, data.draw(st.sampled_from([None, "k", "scale", *SHIPPED])), Threads("n"))
        assert kernel.signature.names is not None
    except (ValueError, TypeError, CompileError):
        pass


def _texts() -> list[str]:
    own = """
    // y = factor * x
    extern "C" __global__ void __launch_bounds__(256) scale(
        const scalar_t* __restrict__ x,  // (n)
        scalar_t* __restrict__ y,        // (n) or null
        Int64s<3> sizes, acc_t factor, long long n) {
        const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < n) y[i] = scalar_t(factor * acc_t(x[i]));
    }
    """
    return [own, *map(kernels_cu.source, SHIPPED)]
