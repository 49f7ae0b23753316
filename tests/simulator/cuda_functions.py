"""The arguments and results of CUDA's functions: a table that NVRTC fills, and that the simulator must match.

``python -m tests.simulator.cuda_functions`` writes ``cuda_functions.txt`` anew. Each line is the answer to one question: the
letters of :data:`TYPES` in turn stand for ``T`` in the call, and ``.`` for a call that is refused. ``clock64()``, say, has no ``T``
and one answer.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

import cupyops
from cupyops import Kernel, Threads
from cupyops.compile import toolchain

TABLE = Path(__file__).with_name("cuda_functions.txt")
HEADERS = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
TYPES = {
    "b": "bool",
    "c": "char",
    "a": "signed char",
    "h": "unsigned char",
    "s": "short",
    "t": "unsigned short",
    "i": "int",
    "j": "unsigned int",
    "l": "long",
    "m": "unsigned long",
    "x": "long long",
    "y": "unsigned long long",
    "f": "float",
    "d": "double",
    "H": "__half",
    "G": "__half2",
    "B": "__nv_bfloat16",
    "A": "__nv_bfloat162",
    "F": "float2",
    "T": "float3",
    "E": "float4",
    "D": "double2",
    "I": "int2",
    "K": "int4",
    "J": "uint2",
    "U": "uchar4",
    "S": "short2",
    "L": "longlong2",
    "M": "ulonglong2",
}
VECTORS = tuple(
    f"{of}{n}"
    for of in (
        "char",
        "uchar",
        "short",
        "ushort",
        "int",
        "uint",
        "long",
        "ulong",
        "longlong",
        "ulonglong",
        "float",
        "double",
    )
    for n in "1234"
)
# Functions of the compiler itself, and those that tables of their own hold.
OUTSIDE = re.compile(
    r"__cudaPush|__(?:h|i|b|d|s|w)?g?mma_|__[hibd]mma|__wgmma|__gen_nv|__cu_va|__nv_|__nvvm|__cxa|__match\d|__pm\d|__builtin|__assertfail|tex\w|surf\w|cuda\w|_mm|__cvta_"
    r"|(?:__|sync)?(?:any|all|ballot)\Z|syncthreads_|__internal|printf"
)


# Functions that the simulator does not have: a text that calls one is an error that names it.
NOT_SIMULATED = ("__isConstant", "__isGridConstant", "__isLocal", "__cluster_map_shared_multicast", "__uni_sync")


def compiled(text: str) -> tuple[str, str]:
    """Returns the PTX of a text, or none, and what NVRTC says."""
    from cupy_backends.cuda.libs import nvrtc

    program = nvrtc.createProgram(text, "k.cu", [], [])
    try:
        nvrtc.compileProgram(program, ["-arch=compute_90", "-std=c++17", f"-I{toolchain.cuda_headers()}"])
        ptx = nvrtc.getPTX(program)
    except nvrtc.NVRTCError:
        ptx = b""
    return ptx.decode() if isinstance(ptx, bytes) else ptx, nvrtc.getProgramLog(program)


def questions(table: str) -> dict[str, str]:
    """Returns the answers of a table by their questions."""
    lines = (line for line in table.splitlines() if not line.startswith("#"))
    return {question: answer for answer, question in (line.split(" ", 1) for line in lines)}


def asking(asked: Iterable[str], simulated: bool) -> str:
    """A text that has the answers in the array `table`. Each answer has as many letters as there are types."""
    lines, entries = [], []
    for i, question in enumerate(asked):
        if question.startswith(("sizeof", "alignof")):
            lines.append(f"template <class T> __device__ constexpr char q{i}(int) {{ return '0' + {question}; }}\n")
            entries.append(f"ALL(q{i})")
            continue
        if binary := re.fullmatch(r"T (\S+) (\w.*)", question):
            name, parts = binary[1], ["T&" if binary[1] == "+=" else "T", binary[2]]
            call = f" {name} ".join(f"(made<{a}, T>())" for a in parts)
        else:
            name, arguments = question.rstrip(")").split("(", 1)
            parts = [a.strip() for a in arguments.split(",") if a.strip()]
            call = f"{name}({', '.join(f'(made<{a}, T>())' for a in parts)})"
        has = f"typename If<cupyops_has_{name}<T>>::type, " if simulated and name.startswith("atomic") else ""
        code = f"code<decltype({call})>"
        if (vector := name.removeprefix("make_")) in VECTORS:
            code = f"(same<decltype({call}), {vector}> ? '=' : {code})"
        if not parts:
            lines.append(f"template <class T> __device__ constexpr char q{i}(int) {{ return {code}; }}\n")
        else:
            # The second parameter is a type, so that a call that does not exist is not an error.
            lines.append(
                f"template <class T, class = Two<{has}decltype({call})>> __device__ constexpr char q{i}(int) {{ return {code}; }}\n"
                f"template <class T> __device__ constexpr char q{i}(...) {{ return '.'; }}\n"
            )
        entries.append(f"ALL(q{i})")
    codes = "".join(f"template <> constexpr char code<{t}> = '{c}';\n" for c, t in (TYPES | {"v": "void"}).items())
    macro = ", ".join(f"q<{t}>(0)" for t in TYPES.values())
    return (
        HEADERS
        + "#define ALL(q) "
        + macro
        + "\ntemplate <class T> constexpr char code = '?';\n"
        + codes
        + "template <class A, class T> __device__ A made();\ntemplate <class... T> using Two = void;\n"
        + "template <class A, class B> constexpr bool same = false;\ntemplate <class A> constexpr bool same<A, A> = true;\n"
        + "template <class U> __device__ void taken(U);\n"
        + "template <bool> struct If {};\ntemplate <> struct If<true> { typedef void type; };\n"
        + "".join(lines)
        + f"__device__ char table[{len(entries) * len(TYPES)}] = {{{', '.join(entries)}}};\n"
        + 'extern "C" __global__ void k(char* y) { int i = blockIdx.x * 32 + threadIdx.x; if (i < (int)sizeof table) y[i] = table[i]; }\n'
    )


def pieces(asked: list[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(asked), size):
        yield asked[start : start + size]


def answered(asked: Iterable[str], letters: str) -> dict[str, str]:
    """Returns the answers by their questions. A question without a T has one."""
    by_type = map("".join, zip(*[iter(letters)] * len(TYPES), strict=True))
    found = {}
    for question, answer in zip(asked, by_type, strict=True):
        a_size = question.startswith(("sizeof", "alignof"))
        of_types = re.search(r"\bT\b", question)
        found[question] = str(ord(answer[0]) - ord("0")) if a_size else answer if of_types else answer[0]
    return found


def of_nvrtc(asked: list[str]) -> dict[str, str]:
    """Asks NVRTC."""
    answers: dict[str, str] = {}
    for some in pieces(asked, 300):
        ptx, log = compiled(Kernel(asking(some, False), "k", Threads(block=32)).final_text({}))
        found = re.search(r"table\[\d+\] = \{([^}]*)\}", ptx)
        if not found:
            raise ValueError(log[:2000])
        letters = "".join(chr(int(number)) for number in found[1].split(","))
        answers |= answered(some, letters)
    return answers


def of_simulator(asked: list[str]) -> dict[str, str]:
    """Asks the simulator."""
    y = np.zeros(len(asked) * len(TYPES), np.uint8)
    with cupyops.simulate(sanitize=False):
        Kernel(asking(asked, True), "k", Threads(block=32))[len(y)](y.view(np.int8))
    return answered(asked, y.tobytes().decode())


def candidates() -> list[str]:
    """Words that may be names of functions: of NVRTC's library, of CUDA's headers, of the C library and of the simulator."""
    import subprocess

    from cupyops.simulator import build

    words: set[str] = set()
    toolchain.nvrtc_version()  # loads the library
    library = next(Path(p) for p in Path("/proc/self/maps").read_text().split() if re.search(r"libnvrtc\.so", p))
    for file in (library, *library.parent.glob("libnvrtc-builtins.so*")):
        strings = re.findall(rb"(?<![\w$])[A-Za-z_]\w{1,60}(?=\0)", file.read_bytes())
        words |= {w.decode().removeprefix("__nv_") for w in strings}
    own = Path(build.__file__).parent
    folder = toolchain.cuda_headers()
    headers = [
        *own.glob("cuda/*.h"),
        *folder.glob("sm_*.h"),
        *folder.glob("cuda_[bf][fp]16.h*"),
        *folder.glob("*functions.h"),
    ]
    for file in headers:
        words |= set(re.findall(r"\b[A-Za-z_]\w+", file.read_text(errors="replace")))
    maths = subprocess.run(
        ["g++", "-E", "-xc", "-include", "math.h", "/dev/null"], capture_output=True, text=True, check=True
    )
    words |= set(re.findall(r"\b([a-z]\w*)\s*\(", maths.stdout))
    return sorted(w for w in words if re.match(r"(?:__)?[a-z]", w) and not OUTSIDE.match(w))


def existing(names: list[str]) -> list[str]:
    """Returns the names that NVRTC declares. It stops at 100 errors."""
    found = []
    for some in pieces(names, 400):
        left = some
        while left:
            declared = "".join(f"namespace p{i} {{ using ::{n}; }}\n" for i, n in enumerate(left))
            _, log = compiled(f'{HEADERS}#line 1 "k.cu"\n{declared}')
            bad = {int(line) for line in re.findall(r"^k\.cu\((\d+)\): error", log, re.MULTILINE)}
            last = max(bad) if "Error limit" in log else len(left)
            found += [n for i, n in enumerate(left[:last], 1) if i not in bad]
            left = left[last:]
    return found


def overloads(names: list[str]) -> dict[str, list[tuple[str, ...]]]:
    """Returns the parameters of a function's overloads, from NVRTC's errors."""
    found: dict[str, list[str]] = {name: [] for name in names}
    head = f'{HEADERS}struct S{{}}; template <class...> struct P;\n#line 1 "k.cu"\n'
    for some in pieces(names, 45):
        _, log = compiled(head + "".join(f"static_assert(sizeof(P<decltype(&::{name})>));\n" for name in some))
        for line, parameters in re.findall(r'k\.cu\((\d+)\): error: incomplete type "P<[^"]*\(\*\)\(([^"]*)\)>"', log):
            found[some[int(line) - 1]].append(parameters)
    several = [name for name in names if not found[name]]
    for some in pieces(several, 40):
        calls = "".join(f"__device__ void f{i}() {{ S s; {n}({', '.join('s' * 15)}); }}\n" for i, n in enumerate(some))
        _, log = compiled(head + calls)
        for name, parameters in re.findall(r'number of parameters of function "(\w+)\(([^"]*)\)" does not match', log):
            if name in some:
                found[name].append(parameters)
    return {
        name: sorted({tuple(p.strip() for p in ps.split(",")) if ps not in ("", "void") else () for ps in lists})
        for name, lists in found.items()
    }


def asked_of_types() -> Iterator[str]:
    """Yields the questions of conversions, operators, sizes and alignments."""
    for of in ("sizeof", "alignof"):
        yield from (
            f"{of}({t})"
            for t in (*VECTORS, "dim3", "__half", "__half2", "__nv_bfloat16", "__nv_bfloat162", "long", "clock_t")
        )
    yield from (
        f"static_cast<{t}>(T)"
        for t in ("size_t", "ptrdiff_t", "clock_t", "int64_t", "uint64_t", "intptr_t", "uintmax_t")
    )
    for t in TYPES.values():
        yield f"static_cast<{t}>(T)"
        yield f"taken<{t}>(T)"
    for operator in ("+", "-", "*", "/", "==", "<", "+=", "&", "<<"):
        yield from (f"T {operator} {t}" for t in ("T", "int", "float", "double", "__half", "__nv_bfloat16"))


def asked_of(name: str, lists: list[tuple[str, ...]]) -> Iterator[str]:
    """Yields the questions of a function: those parameters vary in which its overloads of as many parameters differ."""
    plain = [
        [re.sub(r"\bvolatile |\bconst |&", "", p).replace("__nv_bool", "bool").strip() for p in ps] for ps in lists
    ]
    plain = [ps for ps in plain if "cudaRoundMode" not in ps]  # an overload of fma that the simulator does not have
    for count in sorted({len(ps) for ps in plain}):
        group = [ps for ps in plain if len(ps) == count]
        columns = list(zip(*group, strict=True))
        varied = [len(set(column)) > 1 for column in columns]
        if not any(varied):
            varied = [column[0].rstrip("* ") in TYPES.values() for column in columns]
        arguments = [
            ("T" + "*" * column[0].count("*")) if v else column[0] for column, v in zip(columns, varied, strict=True)
        ]
        yield f"{name}({', '.join(arguments)})"
        if len(arguments) > 1:
            yield f"{name}({', '.join(arguments[:-1])})"
        if arguments == ["T", "T"] and len(group) > 1:
            yield from (f"{name}(T, {t})" for t in ("int", "unsigned int", "long long", "float", "double", "__half"))


def main() -> None:
    names = existing(candidates())
    found = overloads(names)
    asked = [*sorted({q for name in names for q in asked_of(name, found[name])}), *asked_of_types()]
    answers = {q: a for q, a in of_nvrtc(asked).items() if set(a) != {"."}}
    lacking = [question for question in answers if question.split("(")[0] in NOT_SIMULATED]
    lines = [f"{answer} {question}\n" for question, answer in answers.items() if question not in lacking]
    version = ".".join(map(str, toolchain.nvrtc_version()))
    TABLE.write_text(f"# NVRTC {version}\n" + "".join(lines) + "".join(f"# not simulated: {q}\n" for q in lacking))


if __name__ == "__main__":
    main()
