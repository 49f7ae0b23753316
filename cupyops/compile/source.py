"""Assembles the final text for NVRTC from a ``.cu`` text and a choice of types.

The final text is a prelude with the types and constants, followed by the author's text. The text of each included
shared header replaces its ``#include``. The compile cache hashes the final text, the options, the target and the
compiler's version. ``#line`` directives give compiler messages and profilers the author's file and line.
"""

import re
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache, partial

import kernels_cu
from cupyops.dtypes import DTYPES

from .absent import leave_out
from .cpp_library import specializations
from .cuda_text import LINKAGE, scan
from .header_list import SAME
from .own_integers import renamed
from .preprocess import CONDITIONALS, OF_COMPILER, defines_of, known_macros, preprocess
from .project_headers import includes
from .pytorch_names import with_pytorch
from .splicing import Splicing, without
from .standard import as_library, definitions
from .system_headers import cub_operators, found_in, header, in_text, twin, whole_cub, without_questions

__all__ = ["KERNEL", "assemble", "included", "named_kernels"]

KERNEL = "CupyopsKernel"  # a macro: the name of a kernel that is not extern "C"
_NAMED = re.compile(rf"^#define ({KERNEL}\d*) (.*)$", re.MULTILINE)

_BLANK_AFTER_BACKSLASH = re.compile(r"\\[ \t]+(?=\r?\n)")
# Macros that nvcc has and NVRTC lacks, which a text may ask for in a condition.
_OF_NVCC = {"CUDA_VERSION": "CUDART_VERSION", "THRUST_VERSION": "(CUDART_VERSION >= 13000 ? 300000 : 200001)"}
_OF_NVCC |= {"__linux__": "1"} if sys.platform == "linux" else {}
# nvcc preprocesses with g++. With these macros, the headers of CUDA's C++ library would mistake NVRTC for nvcc and g++,
# so the conditions of a text are rewritten to other macros.
_ASKED = {name: f"Cupyops{name.strip('_').title()}" for name in ("__GNUC__", "__NVCC__") if name in OF_COMPILER}
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(?:el)?if(?:\\\r?\n|[^\n])*", re.MULTILINE)
_OWN_ACC = re.compile(r"\busing\s+acc_t\b|\btypedef\b(?:(?!\btypedef\b)[^;{}])*\bacc_t\s*;")
_OWN_WARP_SIZE = re.compile(r"\bconst(?:expr)?\s+(?:\w+\s+)*warpSize\s*[={]")
# Neither expression matches across another `typedef`, so that the time stays linear in the text.
_DECLARED = re.compile(r"\busing\s+(\w+)\s*=|\btypedef\b(?:(?!\btypedef\b)[^;{}])*;")
_LAST_WORD = re.compile(r"(\w+)\s*;\Z")

# A kernel parameter `Int64s<3> size` takes a Python tuple of three integers by value.
_INT64S = """\
template <int N> struct Int64s {
    long long v[N];
    __device__ __forceinline__ long long operator[](int i) const { return v[i]; }
};
"""
_NAMES = frozenset(("N", "v", "i"))
_DECLARES = re.compile(
    r"\b(?:typename|class|bool|char|short|int|long|unsigned|size_t|float|double|auto|T|acc_t|scalar_t)\s+[*&]*(\w+)"
)
# Headers of CUDA that headers of libraries and of projects include: cuBLAS's, for one, has the 16-bit floats. A text
# may use their names without including such a header.
_UNINCLUDED = {
    "cuda_fp16.h": re.compile(
        r"\b(?:__half2?|half2)\b|[;{}(,<]\s*(?:const\s+)?half\s*(?:\*\s*(?:\w+\s*[,)=;]|__restrict)|\s[A-Za-z_]\w*|[,>)])"
    ),
    "cuda_bf16.h": re.compile(r"\b(?:__)?nv_bfloat162?\b"),
    "cooperative_groups.h": re.compile(r"\bcooperative_groups\b|\bcg\s*::"),
    "cub/cub.cuh": re.compile(r"\bcub\s*::\s*(?:Block|Warp)[A-Z]"),
    "cuComplex.h": re.compile(r"\b(?:make_)?cu(?:Float|Double)?Complex\b"),
    "curand_kernel.h": re.compile(r"\bcurandState\w*\b|\bcurand_(?:init|uniform|normal)\w*\b"),
    "mma.h": re.compile(r"\bnvcuda\b"),
}
_SPACE = re.compile(
    r"\b(?:using\s+namespace|namespace\s+\w+\s*=)\s+(?:::\s*)?(at(?:\s*::\s*cuda\s*::\s*detail)?|c10|torch|thrust|cute|cutlass|glm)\s*;"
)
# nvcc accepts a lambda with `__device__`, which NVRTC does not need.
_LAMBDA = re.compile(r"(?<=\])(\s*)((?:__(?:host|device)__\s*)+)(?=[({])")
_FAMILIES = ("cub/", "curand_")  # one header of a family has the names of the others
# The name that nearly every text gives this namespace, often in a header of its project.
_GROUPS = re.compile(r"cg(?<!\wcg)\s*::")
_OWN_GROUPS = re.compile(r"\bnamespace\s+cg\b")


def assemble(
    text: str,
    filename: str,
    types: Mapping[str, str],
    constants: Mapping[str, int],
    headers: Mapping[str, str] | None = None,
    *,
    kernels: Sequence[str] = (),
    own: Collection[str] = (),
    simulated: bool = False,
    options: Sequence[str] = (),
    prelude: str = "",
) -> str:
    """Returns the final text for NVRTC.

    Args:
        text: the author's CUDA C++.
        filename: the file name of the text in messages.
        types: typedef name to dtype name, ``{"scalar_t": "float16"}``. ``scalar_t`` also defines ``acc_t``.
        constants: macro name to integer.
        headers: header texts by name, for ``#include "name"``, in addition to the shared headers of ``kernels_cu``.
        kernels: the C++ names of the kernels with their template arguments, which NVRTC instantiates; empty if all
            kernels are ``extern "C"``.
        own: the parameters of the kernels' templates, which the prelude does not define.
        simulated: whether the simulator compiles the text.
        options: NVRTC options, which may define macros and name folders of headers.
        prelude: definitions that the text does not use, such as those of what follows the text.

    Raises:
        ValueError: a header is unknown, and the text may be another one with it (:func:`.absent.leave_out`).
    """
    shared = kernels_cu.headers()
    headers = headers or {}
    text, headers, of_pytorch = with_pytorch(text, headers, " ".join(kernels))
    texts = without_questions({"": text, **included(text, headers)}, headers.keys(), options, simulated)
    text, headers = texts[""], {name: texts.get(name, source) for name, source in headers.items()}
    known = {**shared, **headers}
    filename = filename.replace("\\", "/").replace('"', "'")  # #line allows no backslash and no quote
    lines = ["// Written by cupyops: types and constants of this compilation."]
    own_texts = tuple(source for name, source in texts.items() if name not in shared)
    own_types = {header for d in types.values() if (header := DTYPES[d].header)}
    for name in sorted(own_types | {*of_pytorch}.union(*map(_unincluded, own_texts))):
        lines += _lines_of(name, texts, simulated)
    lines += [prelude] if prelude else []
    # A directive may name the namespace of headers that are left out.
    spaces = {name for source in own_texts for name in _SPACE.findall(scan(source).bare)}
    lines += [f"namespace {name} {{}}" for name in sorted(spaces)]
    bare_texts = [scan(source).bare for source in own_texts]
    if any(map(_GROUPS.search, bare_texts)) and not any(map(_OWN_GROUPS.search, bare_texts)):
        lines.append("namespace cg = cooperative_groups;")
    lines += [f"typedef {DTYPES[d].c_type} {name};" for name, d in types.items() if name not in own]
    if "scalar_t" in types and not ("scalar_t" in own and ("acc_t" in own or _OWN_ACC.search(text))):
        lines.append(f"typedef {DTYPES[DTYPES[types['scalar_t']].acc].c_type} acc_t;")
    defines = {name: str(value) for name, value in constants.items() if name not in own}
    if simulated:  # NVRTC reads the options itself
        defines |= defines_of({}, options)
    macros = [f"#define {name} {value}" for name, value in defines.items()]
    macros += [f"#define {KERNEL}{i or ''} {name}" for i, name in enumerate(kernels)]
    followed = preprocess(text, texts, known_macros(constants, options))
    # Code that a condition removes, and its headers, do not count.
    live_names = {"", *(i.name for i in followed.includes)}
    texts = {name: source for name, source in texts.items() if name in live_names}
    live_texts = {n: source if n in shared else followed.compiled(n, source) for n, source in texts.items()}
    given_thrust = any(found_in(options, name) for name in ("thrust/pair.h", "thrust/tuple.h"))
    macros += _standard((*live_texts.values(), " ".join(kernels)), simulated, given_thrust)
    # A macro that is a name in Int64s would change it, so Int64s comes first. The texts of all other kernels stay as they
    # are, and with them their entries in caches and bundles.
    # The macros of the options -D are there before the prelude.
    given = {} if simulated else defines_of({}, options)
    int64s = without(_INT64S.rstrip(), {name: given[name] for name in sorted(_NAMES & given.keys())})
    lines += [*macros, int64s] if defines.keys().isdisjoint(_NAMES) else [int64s, *macros]
    around_library = renamed(macros) | ({} if simulated else {**defines, **given})
    system_lines = partial(_system, simulated, live_texts, around_library, options)
    hidden = {} if simulated else _hidden({**defines, **given}, [*(shared.keys() - headers.keys())])
    absent = leave_out(followed, texts, known, options, filename)

    def state(where: str, place: int) -> bool | None:
        return followed.live("" if where == filename else where, place)

    spliced = Splicing(known, headers.keys(), hidden, absent, state, system_lines).whole(text, filename)
    for name, other in _ASKED.items():
        asking = _asking(spliced, name, other)
        lines += [f"#define {other} {OF_COMPILER[name]}"] if asking != spliced else []
        spliced = asking
    own_code = "\n".join(own_texts)
    spliced = spliced if simulated else specializations(spliced, own_code)
    spliced = _unmarked(spliced) if _LAMBDA.search(own_code) else spliced
    # g++, which preprocesses for nvcc, continues a line that ends with a backslash and blanks. NVRTC does not.
    return "\n".join(lines) + "\n" + _BLANK_AFTER_BACKSLASH.sub(r"\\", LINKAGE.sub(r"\g<0> ", spliced))


def _asking(text: str, name: str, other: str) -> str:
    """Returns a text whose conditions ask for another macro."""
    word = re.compile(rf"\b{name}\b")
    return _CONDITION.sub(lambda condition: word.sub(other, condition[0]), text) if name in text else text


def _unmarked(text: str) -> str:
    """Returns a text with blanks for ``__device__`` and ``__host__`` between the captures and the parameters of a lambda."""
    return _LAMBDA.sub(lambda m: m[1] + re.sub(r"\S", " ", m[2]), text)


@lru_cache(512)
def _unincluded(text: str) -> frozenset[str]:
    """Returns the headers of CUDA whose names a text uses and which it does not include."""
    code = scan(text)
    included_names = {d.header for d in code.directives}
    pieces = (code.bare, *(d.rest for d in code.directives if d.name == "define"))
    found = set()
    for header_name in _UNINCLUDED.keys() - included_names:
        if any(header_name.startswith(f) and i.startswith(f) for f in _FAMILIES for i in included_names):
            continue
        names = {match[0] for piece in pieces for match in _UNINCLUDED[header_name].finditer(piece)}
        # A text may declare the type itself, as texts with a complex number of their own do.
        if names and not any(
            re.search(rf"\b(?:struct|class)\s+{re.escape(name)}\b\s*\{{", code.bare) for name in names
        ):
            found.add(header_name)
    return frozenset(found)


def _lines_of(name: str, texts: Mapping[str, str], simulated: bool) -> list[str]:
    """Returns the lines that include a header of CUDA."""
    if simulated and twin(name) == SAME:
        return as_library([f"<{name}>"])
    parts = whole_cub(texts, simulated) if name == "cub/cub.cuh" else [name]
    operators = cub_operators(texts.values(), simulated) if name.startswith("cub/") else []
    return [*(f"#include <{part}>" for part in parts), *operators]


def _hidden(macros: Mapping[str, str], names: Collection[str]) -> dict[str, dict[str, str]]:
    """Returns, for shared headers, the macros whose names a header declares itself, as ``N`` in ``template <int N>``. The
    header is compiled without these macros."""
    found: dict[str, dict[str, str]] = {}
    for name in names if macros else ():
        declared = _declared(name)
        if own := {macro: value for macro, value in macros.items() if macro in declared}:
            found[name] = own
    return found


@cache
def _declared(name: str) -> frozenset[str]:
    """Returns the names that a shared header declares, itself or through the headers that it includes.

    The search takes milliseconds for all headers together, and every final text asks for all headers.
    """
    known = kernels_cu.headers()
    texts = [known[name], *included(known[name], {}).values()]
    return frozenset(word for text in texts for word in _DECLARES.findall(scan(text).bare))


def named_kernels(text: str) -> list[tuple[str, str]]:
    """Returns the kernels that :func:`assemble` names in a final text: the macro and the C++ name of each."""
    return [(m[1], m[2]) for m in _NAMED.finditer(text)]


@lru_cache(256)
def _standard(texts: tuple[str, ...], simulated: bool, given_thrust: bool = False) -> list[str]:
    """Returns the lines that define the names of the C and C++ libraries that texts use.

    Args:
        texts: the text and its headers, without code that conditions remove.
        simulated: whether the simulator compiles the texts.
        given_thrust: whether a folder of the options has the headers of Thrust.
    """
    code: list[str] = []
    declared: set[str] = set()
    asked: set[str] = set()
    library = False
    for text in texts:
        found = scan(text)
        macros = [d.rest for d in found.directives if d.name == "define"]
        asked.update(w for d in found.directives if d.name in CONDITIONALS for w in _OF_NVCC if w in d.rest)
        code += [found.bare, *(macro.partition(" ")[2] for macro in macros)]
        rows = (header(d.header) for d in found.directives if d.header)
        library = library or any(row is not None and "cccl" in row.folders for row in rows)
        declared.update(macro.split()[0].split("(")[0] for macro in macros if macro)
        for match in _DECLARED.finditer(found.bare):
            named = match[1] or ((last := _LAST_WORD.search(match[0][-256:])) and last[1])
            declared.update([named] if named else [])
    # NVRTC takes a constant of the text in place of CUDA's. The simulator's headers have defined theirs.
    own = simulated and any(
        scan(t).scope(m.start()) == () for t in texts for m in _OWN_WARP_SIZE.finditer(scan(t).bare)
    )
    renamed = ["#define warpSize CupyopsOwn_warpSize"] if own else []
    of_nvcc = [f"#ifndef {name}\n#define {name} {_OF_NVCC[name]}\n#endif" for name in sorted(asked)]
    return [*renamed, *of_nvcc, *definitions("\n".join(code), declared, simulated, library, given_thrust)]


def included(text: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the known headers that a text includes, directly or through other headers, by name."""
    known = {**kernels_cu.headers(), **headers}
    found: dict[str, str] = {}
    texts = [text]
    while texts:
        for name, quoted, _ in includes(texts.pop()):
            if name in known and name not in found and in_text(name, quoted):
                found[name] = known[name]
                texts.append(known[name])
    return found


def _system(
    simulated: bool,
    texts: Mapping[str, str],
    macros: Mapping[str, str],
    options: Sequence[str],
    name: str,
    quote: str,
) -> list[str] | None:
    """Returns the lines that take the place of the ``#include`` of a system header, or None if the directive stays.

    CUDA's C++ library uses names that are macros of launch policies, such as ``BLOCK_THREADS``. The library is included
    without `macros`, the macros of the prelude.
    """
    row = header(name)
    if row is None or (row.host and found_in(options, name)):
        return None
    if not row.folders:
        return []
    if simulated and twin(name) is None:
        return [f"#error the simulator has no header <{name}>"]
    lines = _lines_of(name, texts, simulated)
    if macros and "cccl" in row.folders:
        return without("\n".join(lines), macros).split("\n")
    return lines if lines != [f"#include <{name}>"] or quote == '"' else None
