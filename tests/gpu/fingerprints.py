"""What of a tree decides what a GPU does: the compiled code of its kernels, and what its operators ask the driver for.

    python -m tests.gpu.fingerprints            # prints what they are made of, as JSON

Compiled code. Each kernel is compiled by the NVRTC that ``constraints.txt`` pins, for the architecture that the record's GPUs
have, and its hash taken of what the GPU sees of the binary: instructions, constants, registers, shared memory, parameters and
launch attributes. Names and places in a text are no part of it. A hash of the text's tokens stands beside it: a text with the
tokens of one that is known need not be compiled, whatever its comments and its layout.

Launches. Every case of :mod:`tests.gpu.launch_cases` runs on a GPU that is not there (:mod:`tests.gpu.stub_h200`), twice: by
the checked way to a launch, and by the functions that are generated for the second. Of what the driver and the library of
matrix products are asked for, three hashes are taken: which compiled code in which order; grids, blocks, shared memory and
limits; and the arguments' bytes, in which addresses are replaced by whose memory they are.

Not seen, and to be thought of by whoever changes it: what PyTorch and CuPy do between launches (sums over partial results,
copies, zeros); launches on CuPy's own arrays, under torch.compile, in CUDA graphs and on several GPUs; streams; what
:func:`cupyops.tune` chooses by time; the debug mode; loading of bundles and of the cache; and what depends on the registers of
a binary, by which a driver counts blocks that run at once.
"""

import argparse
import hashlib
import json
import os
import re
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = 90  # of the GPUs that make the record: the code for others has not run
# What is hashed of a binary, and how: raise it when that changes.
FORMAT = 1


def pinned_nvrtc() -> str:
    """The version in ``constraints.txt``."""
    line = re.search(r"^nvidia-cuda-nvrtc-cu12==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert line, "constraints.txt pins no nvidia-cuda-nvrtc-cu12"
    return line[1]


def installed_nvrtc() -> str:
    """The version of the NVRTC that CuPy has loaded, as far as it tells; the wheel's where that is the one."""
    import importlib.metadata

    from cupyops.compile.toolchain import nvrtc_version

    loaded = ".".join(map(str, nvrtc_version()))
    for name in ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc"):
        try:
            wheel = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if wheel.startswith(loaded + "."):
            return wheel
    return loaded


# Texts

_TOKEN = re.compile(
    r"""(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)"""
    r"""|(?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)")"""
    r"""|(?P<quoted>(?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))"""
    r"""|(?P<number>\.?\d(?:[eEpP][+-]|'?[\w.])*)|(?P<word>[A-Za-z_$]\w*)"""
    r"""|(?P<joined>\\\n)|(?P<line>\n)|(?P<space>[^\S\n]+)"""
    r"""|(?P<sign><<=|>>=|\.\.\.|->\*|<=>|::|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|##|.)""",
    re.DOTALL,
)
# These make code of where they stand.
_PLACES = re.compile(
    r"\b(?:__LINE__|__FILE__|__COUNTER__|__func__|__FUNCTION__|__PRETTY_FUNCTION__|assert|source_location)\b"
)


def tokens(text: str) -> str:
    """A final text without comments, layout and ``#line``: two texts with equal tokens are one program.

    >>> print(tokens("#line 3\\nint  f( ){ return 1;} // one\\n#define F( x ) (x)\\n"))
    int f ( ) { return 1 ; }
    #define F( x ) (x)
    """
    if _PLACES.search(text):
        return text
    code: list[str] = []  # since the last directive
    lines: list[str] = []
    # `#line` stands where another file begins, and most texts have most of their files in common.
    for part in re.split(r"^(?=#line\b)", text.replace("\r\n", "\n"), flags=re.MULTILINE):
        for words, directive in _pieces(part):
            code += [words] if words else []
            if directive:
                lines += [" ".join(code), directive]
                code = []
    return "\n".join(line for line in (*lines, " ".join(code)) if line)


@cache
def _pieces(text: str) -> list[tuple[str, str]]:
    """The tokens in front of each directive, and the directive; behind the last one, tokens alone."""
    code: list[str] = []
    pieces: list[tuple[str, str]] = []
    directive, at_start, space = "", True, False
    for found in (*_TOKEN.finditer(text), None):
        kind, word = (found.lastgroup, found[0]) if found else ("line", "")
        if kind == "line":
            if directive and not re.match(r"#line\b", directive):
                pieces.append((" ".join(code), directive))
                code = []
            directive, at_start, space = "", True, False
        elif kind in ("comment", "joined", "space"):
            space = True
        else:
            if at_start and word == "#":
                directive = "#"
            elif directive:
                # Within a directive a space may mean something: `#define F (x)` has no parameters.
                directive += (" " if space and directive != "#" else "") + word
            else:
                code.append(word)
            at_start = space = False
    return [*pieces, (" ".join(code), "")]


class Source(NamedTuple):
    """A kernel to compile.

    Attributes:
        what: kernel, types and constants, for messages.
        text: the final text.
        options: for NVRTC, but for where headers lie.
    """

    what: str
    text: str
    options: tuple[str, ...]

    @property
    def key(self) -> str:
        """Of its tokens and options."""
        return _key(self.text, self.options)


@cache
def _key(text: str, options: tuple[str, ...]) -> str:
    return _hash([FORMAT, tokens(text), options])


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


# Binaries


def code_of(source: Source) -> str:
    """The hash of the compiled code, by the NVRTC at hand."""
    return compile_source(source).code


class Binary(NamedTuple):
    """What NVRTC makes of a source: the hash of its code, its warnings, and the bytes of spilled registers."""

    code: str
    warnings: list[str]
    spilled: int


def compile_source(source: Source) -> Binary:
    """Compiles by the NVRTC at hand."""
    from cupyops.commands.compile import about_the_kernel
    from cupyops.compile.compiler import OPTIONS, resources_in
    from cupyops.compile.toolchain import cuda_headers, nvrtc

    compiler = nvrtc()
    program = compiler.createProgram(source.text, "kernel.cu", [], [])
    try:
        # What ptxas reports changes no code.
        flags = [*source.options, *(o for o in OPTIONS if o.startswith("-X")), "--no-cache", f"-I{cuda_headers()}"]
        try:
            compiler.compileProgram(program, flags)
        except compiler.NVRTCError as error:
            raise RuntimeError(f"{source.what}: {compiler.getProgramLog(program)}") from error
        ptx, log = compiler.getPTX(program), str(compiler.getProgramLog(program)).replace("\0", "")
        code = code_hash(compiler.getCUBIN(program), ptx.decode() if isinstance(ptx, bytes) else ptx)
        return Binary(code, about_the_kernel(log), sum(spilled for _, spilled in resources_in(log).values()))
    finally:
        compiler.destroyProgram(program)


def code_hash(cubin: bytes, ptx: str) -> str:
    """Of what a GPU sees of a binary."""
    parts: list[Any] = [("variables", *_variables_in_use(ptx))]
    for name, content, size in _sections(cubin):
        kind = ".".join(name.split(".")[:3])
        if kind.startswith(".text"):
            parts.append(("text", content.hex()))
        elif kind.startswith(".nv.info"):
            parts += [("attribute", *entry) for entry in _attributes(content)]
        elif kind in (".nv.constant4", ".nv.global"):
            pass  # also of what nothing uses: each constexpr of a header stands there
        elif kind.startswith((".nv.constant", ".nv.shared", ".nv.local")):
            parts.append((kind, size, content.hex()))
    return _hash(sorted(parts, key=repr))


def _sections(elf: bytes) -> Iterator[tuple[str, bytes, int]]:
    """Name, content and size of each; what takes memory alone (shared memory) has no content."""
    (start,) = struct.unpack_from("<Q", elf, 40)
    step, count, names = struct.unpack_from("<HHH", elf, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", elf, start + i * step) for i in range(count)]
    no_content = 8  # SHT_NOBITS
    for name, kind, _, _, offset, size, *_ in heads:
        begin = heads[names][4] + name
        content = b"" if kind == no_content else elf[offset : offset + size]
        yield elf[begin : elf.index(b"\0", begin)].decode(), content, size


# EIATTR_PARAM_CBANK, FRAME_SIZE, MIN_STACK_SIZE, MAX_STACK_SIZE and REGCOUNT begin with the number of a symbol.
_OF_A_SYMBOL = (0x0A, 0x11, 0x12, 0x23, 0x2F)


def _attributes(content: bytes) -> Iterator[tuple[int, Any]]:
    """Registers, stack, parameters, bounds, clusters: the entries of a section ``.nv.info``."""
    at, with_length = 0, 4  # EIFMT_SVAL
    while at + 4 <= len(content):
        form, kind, value = struct.unpack_from("<BBH", content, at)
        at += 4
        if form != with_length:
            yield kind, value
            continue
        found = content[at : at + value]
        at += value
        yield kind, (found[4:] if kind in _OF_A_SYMBOL else found).hex()


def _variables_in_use(ptx: str) -> list[str]:
    """Types and values of the global and constant variables that code refers to, without their names."""
    declared = r"^\s*(?:\.\w+\s+)?\.(?:global|const)\s([^;]*);"
    code = re.sub(declared, "", ptx, flags=re.MULTILINE)
    found = []
    for declaration in re.findall(declared, ptx, re.MULTILINE):
        name = re.search(r"([\w$]+)\s*(?:\[\d*\])?\s*(?:=|$)", declaration)
        if name and re.search(rf"(?<![\w$.]){re.escape(name[1])}(?![\w$])", code):
            found.append(declaration.replace(name[1], "", 1))
    return sorted(found)


class Compiled(NamedTuple):
    """What :func:`compiled` found.

    Attributes:
        code: by the sources' keys, the hashes of their code.
        faults: the warnings of what was compiled now, but for those of spills.
        spills: the kernels of the folder kernels_cu that were compiled now and spill registers. ``make compile`` allows no
            spill of what it compiles; a launch may choose a config that spills where it is measured faster, and the path
            of unaligned arrays may spill.
    """

    code: dict[str, str]
    faults: list[str]
    spills: list[str]


def compiled(sources: Sequence[Source], known: Mapping[str, str], processes: int | None = None) -> Compiled:
    """Compiles the sources whose code is not known."""
    wanted = {source.key: source for source in sources}
    unknown = {key: source for key, source in wanted.items() if key not in known}
    made: list[Binary] = []
    if unknown:
        workers = min(processes or os.cpu_count() or 1, -(-len(unknown) // 8))
        if workers == 1:
            made = [compile_source(source) for source in unknown.values()]
        else:
            # NVRTC lets in one thread at a time.
            with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
                made = list(pool.map(compile_source, unknown.values(), chunksize=4))
    new = {key: binary.code for key, binary in zip(unknown, made, strict=True)}
    pairs = list(zip(unknown.values(), made, strict=True))
    faults = [f"{s.what}: {w}" for s, binary in pairs for w in binary.warnings if "Registers are spilled" not in w]
    spills = [f"{s.what} spills {binary.spilled} bytes" for s, binary in pairs if binary.spilled and _of_a_text(s)]
    return Compiled({key: known.get(key) or new[key] for key in wanted}, faults, spills)


def _of_a_text(source: Source) -> bool:
    """Returns whether the kernel is one of the folder kernels_cu, and not of a program, whose rule counts its registers."""
    import kernels_cu

    kernel = source.what.partition("<")[0]
    return any(re.search(rf"\b{kernel}\s*\(", kernels_cu.source(name)) for name in kernels_cu.names())


# A tree


class Seen(NamedTuple):
    """What a process saw of its tree.

    Attributes:
        sources: shipped kernels with all their choices of types, and those that a case launches.
        cases: by operator and case, the events: (source's number, geometry, arguments) of a launch; a product has no source.
    """

    sources: list[Source]
    cases: dict[str, dict[str, list[tuple[int, Any, Any]]]]

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Seen":
        """As JSON gives it back."""
        sources = [Source(what, text, tuple(options)) for what, text, options in found["sources"]]
        cases = {o: {about: [tuple(e) for e in es] for about, es in of.items()} for o, of in found["cases"].items()}
        return cls(sources, cases)


def look(operators: Sequence[str] = ()) -> Seen:
    """Declared kernels and launches of the tree that this process imports, which cannot use a GPU any more; where operators are
    named, their launches alone."""
    from . import stub_h200

    machine = stub_h200.install()
    import autograd_bridge  # noqa: F401  what is shipped
    from cupyops.launch.kernel import Kernel, all_kernels

    # A kernel is asked for a text when it is compiled and again for the name of the text.
    plain, texts = Kernel.final_text, dict[tuple[Any, ...], str]()

    def final_text(self: Kernel, types: Mapping[str, str], *twins: Any) -> str:
        key = self, *types.items()
        return plain(self, types, *twins) if twins else texts.get(key) or texts.setdefault(key, plain(self, types))

    Kernel.final_text = final_text  # type: ignore[method-assign]
    for kernel in () if operators else all_kernels():
        if kernel.runs_on(ARCHITECTURE):
            for types in kernel.type_choices():
                kernel.variant(types, 0)

    from .launch_cases import launch_cases

    events: dict[str, dict[str, list[Any]]] = {}
    for case in (case for case in launch_cases() if not operators or case.operator in operators):
        seen = events.setdefault(case.operator, {}).setdefault(case.about, [])
        for _ in range(2):
            inputs = case.inputs()
            machine.watch(inputs)
            case.run(inputs)
            seen += machine.events
    machine.watch([])
    loaded = {k.name for k in machine.loaded}
    kernels = [k for k in all_kernels() if k.name in loaded]
    names = {k.final_text(t): _described(k, t) for k in kernels for t in (*k.type_choices(), *k.met.values())}
    found = {(k.text, k.options): Source(names.get(k.text, k.name), k.text, k.options) for k in machine.loaded}
    numbers = {key: i for i, key in enumerate(found)}

    def event(e: Any) -> tuple[int, Any, Any]:
        if isinstance(e, stub_h200.Product):
            return -1, e.what, e.arguments
        limits = sorted(e.kernel.limits.items())
        geometry = e.grid, e.block, e.shared, e.stream, e.cooperative, limits
        return numbers[e.kernel.text, e.kernel.options], geometry, e.arguments

    cases = {o: {about: [event(e) for e in es] for about, es in of_o.items()} for o, of_o in events.items()}
    return Seen(list(found.values()), cases)


def _described(kernel: Any, types: Mapping[str, str]) -> str:
    constants = ", ".join(f"{name}={value}" for name, value in kernel.constants.items())
    return f"{kernel.name}<{', '.join(types.values())}>" + (f" [{constants}]" if constants else "")


def look_at(tree: Path, operators: Sequence[str] = ()) -> Seen:
    """:func:`look` in a process of its own, at a tree that need not be this one."""
    from tests import preloaded

    environment = {n: v for n, v in os.environ.items() if not n.startswith("CUPYOPS_")}
    with tempfile.TemporaryDirectory() as cache:
        environment |= {"PYTHONPATH": str(tree), "CUPYOPS_CACHE_DIR": cache}
        done = preloaded.run(["-m", "tests.gpu.fingerprints", *operators], cwd=tree, env=environment)
    if done.returncode:
        raise RuntimeError(f"the launches of {tree} could not be looked at:\n{done.stderr[-4000:]}")
    return Seen.of(json.loads(done.stdout))


class Fingerprints(NamedTuple):
    """As the record holds them.

    Attributes:
        nvrtc: version that made the code.
        code: by key of a source, the hash of its code.
        launches: by operator and case, hashes of the kernels' code in order, of their geometry, and of their arguments.
    """

    nvrtc: str
    code: dict[str, str]
    launches: dict[str, dict[str, list[str]]]


def fingerprints(seen: Seen, code: Mapping[str, str], nvrtc: str) -> Fingerprints:
    """Of what was seen, whose code is known."""
    keys = [source.key for source in seen.sources]

    def parts(events: Sequence[tuple[int, Any, Any]]) -> list[str]:
        columns = ([code[keys[i]] if i >= 0 else "" for i, *_ in events], *([e[c] for e in events] for c in (1, 2)))
        return [_hash(column)[:8] for column in columns]

    launches = {o: {about: parts(events) for about, events in of.items()} for o, of in seen.cases.items()}
    return Fingerprints(nvrtc, {key: code[key] for key in keys}, launches)


PARTS = ("kernels", "geometry", "arguments")


def changes(recorded: Fingerprints, now: Fingerprints, seen: Seen) -> list[str]:
    """What a GPU would do otherwise than when it was recorded: kernels whose code it has not run, and cases whose launches differ,
    each in words."""
    ran = set(recorded.code.values())
    found = [f"the code of {s.what}" for s in seen.sources if now.code[s.key] not in ran]
    for operator, cases in now.launches.items():
        before = recorded.launches.get(operator, {})
        for about, hashes in cases.items():
            if about not in before:
                found.append(f"the launches of {operator} ({about}), which are new")
                continue
            parts = [p for p, a, b in zip(PARTS, before[about], hashes, strict=True) if a != b]
            if parts:
                found.append(f"the {' and '.join(parts)} of {operator}'s launches ({about})")
        found += [f"the launches of {operator} ({about}), which are gone" for about in before if about not in cases]
    found += [
        f"the launches of {operator}, which are gone" for operator in recorded.launches if operator not in now.launches
    ]
    return found


def main() -> int:
    """Prints what :func:`look` saw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", help="the launches of these alone")
    json.dump(look(parser.parse_args().operators)._asdict(), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
