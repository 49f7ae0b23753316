"""The mutants of the code that lets texts for nvcc run unchanged: the reading of declarations, the removal of host
code, and the simulator's functions of 16-bit floats."""

_NUMBERS = "cupyops/importer/numbers.py"
_ARITHMETIC = "cupyops/importer/arithmetic.py"
_HALVES = "cupyops/simulator/cuda/halves.h"
_MACROS = "cupyops/compile/macros.py"
_LAYOUTS = "cupyops/launch/asked.py"
_TOLD = "cupyops/launch/asked.py"
_SPLICING = "cupyops/compile/splicing.py"
_TRANSLATE = "cupyops/simulator/translate.py"
_SOURCE = "cupyops/compile/source.py"

CONSTRUCTS = (
    ("a fused product forgets what is added", _HALVES, "WIDEN(a), WIDEN(b), WIDEN(c)", "WIDEN(a), WIDEN(b), 0.0"),
    (
        "halves are rounded up where they are rounded down",
        _HALVES,
        "cupyops_to_integer<I>(floor(double(WIDEN(h))), NAN)",
        "cupyops_to_integer<I>(ceil(double(WIDEN(h))), NAN)",
    ),
    (
        "halves are rounded down where they are rounded up",
        _HALVES,
        "cupyops_to_integer<I>(ceil(double(WIDEN(h))), NAN)",
        "cupyops_to_integer<I>(floor(double(WIDEN(h))), NAN)",
    ),
    ("log1p is missing", "cupyops/simulator/include/cuda/std/cmath.h", "using ::std::log1p;", ""),
    ("cbrt is missing", "cupyops/simulator/include/cuda/std/cmath.h", "using ::std::cbrt;", ""),
    (
        "quotients of host code are rounded down",
        _NUMBERS,
        "return q if (a < 0) == (b < 0) else -q",
        "return q if (a < 0) == (b < 0) else -q - 1",
    ),
    (
        "the sum of unsigned values does not wrap",
        _ARITHMETIC,
        'return Expression(f"{result.name}({value.text})", ATOM, (value.text, value.rank))',
        "return value",
    ),
    (
        "dynamic shared memory has one dimension",
        _TRANSLATE,
        "+ dynamic[3]",
        "",
    ),
    ("the runtime's version is missing", "cupyops/simulator/cuda/text_only.h", "#define CUDART_VERSION 12090", ""),
    (
        "umin is the maximum",
        "cupyops/simulator/cuda/numbers.h",
        "umin(unsigned a, unsigned b) { return min",
        "umin(unsigned a, unsigned b) { return max",
    ),
    (
        "llmax is the minimum",
        "cupyops/simulator/cuda/numbers.h",
        "llmax(long long a, long long b) { return max",
        "llmax(long long a, long long b) { return min",
    ),
    (
        "an expression in a comment is a shape",
        "cupyops/launch/shape_comments.py",
        "if not _SHAPE_BEGINS.match(comment):",
        "if '(' not in comment:",
    ),
    ("an enumeration is no integer", _TOLD, 'if answer.kind == "e" else None', 'if answer.kind == "x" else None'),
    (
        "macros with parameters are not followed",
        _MACROS,
        'if tokens[opening : opening + 1] == ["("]:',
        "if tokens[opening : opening + 1] == []:",
    ),
    (
        "fields of a struct lie one behind the other",
        _LAYOUTS,
        "offsets.append(field.offset)",
        "offsets.append(sum(one.itemsize for one in formats[:-1]))",
    ),
    ("fields of a struct have no extents", _LAYOUTS, "if field.extents else dtype", "if False else dtype"),
    (
        "a bfloat16 is cut instead of rounded",
        "cupyops/dtypes.py",
        "(bits + 0x7FFF + (bits >> 16 & 1)) >> 16",
        "(bits + 0x10000) >> 16",
    ),
    (
        "a bfloat16 is packed at the wrong place",
        "cupyops/launch/signature.py",
        "rounded[place] = bfloat16_bits(rounded[place])",
        "rounded[0] = bfloat16_bits(rounded[place])",
    ),
    (
        "a header counts as included behind a condition of the architecture",
        _SPLICING,
        "set(seen) if undecided else seen, around",
        "seen, around",
    ),
    ("#pragma once is lost behind such a condition", _SPLICING, "self._guarded.add(name)", "pass"),
    (
        "a header without a guard is included once",
        _SPLICING,
        "not _is_guarded(self.known[name])",
        "_is_guarded(self.known[name])",
    ),
    (
        "a header of a library of the host is read where a project has it",
        "cupyops/compile/project_headers.py",
        "if row is not None and row.nowhere:",
        "if row is None and row.nowhere:",
    ),
    (
        "macros that begin as those of CUDA are not defined",
        "cupyops/compile/preprocess.py",
        'any(followed.live("", other) for other in places)',
        'any(followed.live("", other) is not False for other in places)',
    ),
    (
        "static shared memory in a macro stays",
        _TRANSLATE,
        "_STATIC.sub(declared, _DYNAMIC.sub(declared, directive))",
        "_DYNAMIC.sub(declared, directive)",
    ),
    ("a macro for __shared__ stays", _TRANSLATE, "return found[1] or words", "return found[0]"),
    ("a declaration of a function of CUDA stays", _TRANSLATE, "text = _BUILT_IN.sub(lambda", "_BUILT_IN.sub(lambda"),
    (
        "a constraint that is a macro is lost",
        "cupyops/simulator/ptx.py",
        'constraint = expanded or ""',
        'constraint = ""',
    ),
    (
        "16-bit floats are not widened by PTX",
        "cupyops/simulator/cuda/ptx.h",
        "IsNarrow<D>::value || IsNarrow<S>::value)",
        "IsNarrow<D>::value)",
    ),
    (
        "the strides of complex numbers are those of their parts",
        "cupyops/launch/accessors.py",
        "tuple(stride // 2 for stride in",
        "tuple(stride for stride in",
    ),
    (
        "a type that is asked for is no pointer",
        _TOLD,
        "pointer = depth > 0",
        "pointer = p.pointer",
    ),
    (
        "an array by value has one element",
        "cupyops/launch/typenames.py",
        "Element(name, dtype, int(array[2]), DTYPES[dtype].itemsize)",
        "Element(name, dtype, 1, DTYPES[dtype].itemsize)",
    ),
    (
        "a mark of the order of bytes stays",
        "cupyops/compile/project_headers.py",
        'text[1:] if text.startswith("\\ufeff") else text',
        "text",
    ),
    (
        "a kernel keeps the name of functions beside it",
        "cupyops/launch/definitions.py",
        "return text, named",
        "return text, None",
    ),
    (
        "a constant in place of warpSize meets the simulator's",
        _SOURCE,
        '["#define warpSize CupyopsOwn_warpSize"] if own else []',
        "[]",
    ),
    (
        "the library has no concepts",
        "cupyops/compile/names/std.cuh",
        "\n#include <cuda/std/concepts>",
        "",
    ),
    (
        "CuPy's header of complex numbers is lacking",
        "cupyops/compile/project_headers.py",
        "return text, {**asked, **headers}",
        "return text, headers",
    ),
    (
        "constants that NVRTC names stay const",
        "cupyops/compile/folded.py",
        '_MARKED = "constexpr const"',
        '_MARKED = "const"',
    ),
    ("conditions ask for nvcc's macro itself", _SOURCE, "word.sub(other, condition[0])", "condition[0]"),
)
