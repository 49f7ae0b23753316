"""From a final text to a library that is loaded into this process, through a cache keyed on content."""

import ctypes
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from cupyops.compile.cache import default_folder
from cupyops.errors import CompileError, MissingDependencyError
from cupyops.sharing import alone, once, own_folder

from . import host
from .host import Compiler

__all__ = ["build", "runtime", "tells_volatile_apart"]

HERE = Path(__file__).parent
_FORMAT = 3  # raise it when the meaning of an entry changes
_LEADING = re.compile(r"(?://[^\n]*\n)*((?:#include <cuda_\w+\.h>\n)*)")
_SYSTEM_HEADER = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<cuda_", re.MULTILINE)

# As on a GPU: plain char is signed, integers wrap, a product and a sum are rounded once each (a text that wants a fused
# multiply-add says fma). Frames are kept, since a report follows them to the author's line.
_COMMON = (
    *("-std=c++17", "-gdwarf-4", "-fPIC", "-fsigned-char", "-ffp-contract=off", "-fno-strict-aliasing", "-w"),
    # No symbol of one kernel may stand for another's: a template's variables have the same name in both.
    *("-fvisibility=hidden", "-fvisibility-inlines-hidden"),
    *("-fno-math-errno", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-threadsafe-statics"),
)
# What ends a launch on a GPU, or would end this process.
_ALWAYS = "-fsanitize=alignment,integer-divide-by-zero"
_CHECKED = "-fsanitize=signed-integer-overflow,shift,alignment,bounds,integer-divide-by-zero"


def build(
    text: str, needs_cuda: bool, *, checked: bool, watched: bool, optimize: bool, sources: dict[str, str]
) -> Path:
    """The library of a translated text, from the cache or compiled now.

    Args:
        text: from :func:`cupyops.simulator.translate.translate`.
        needs_cuda: it includes CUDA's headers.
        checked: every access goes by the runtime.
        watched: volatile accesses do, since a thread may wait by them.
        optimize: else as a debugger likes it.
        sources: the author's texts by file name, to be kept beside the library for a debugger.

    Raises:
        CompileError: with the compiler's messages as its text.
        MissingDependencyError: there is no compiler, or no CUDA headers.
    """
    tool = host.compiler()
    flags = [*_COMMON, *_mode_flags(tool, checked, watched, optimize)]
    includes = [HERE / "cuda", HERE / "runtime", _shims()]
    identity: list[object] = [_FORMAT, text, flags, tool.version, _own_sources()]
    if needs_cuda:
        includes.append(host.cuda_include())
        identity.append(str(host.cuda_include()))
    key = _hash(identity)

    def make(folder: Path, final: Path) -> None:
        for name, source in sources.items():
            if not os.path.isabs(name) and ".." not in Path(name).parts:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(source, encoding="utf-8")
        (folder / "kernel.cpp").write_text(text, encoding="utf-8")
        paths = [f"-I{path}" for path in includes]
        mapped = f"-fdebug-prefix-map={folder}={final}"

        def compile_with(first: Sequence[str]) -> None:
            run(tool, [*flags, mapped, *first, *paths, "-c", "kernel.cpp", "-o", "kernel.o"], folder)

        first = _begin_with(tool, ["device.h", *_leading_headers(text)], [*flags, *paths])
        try:
            compile_with(first)
        except CompileError:
            if first is _AS_TEXT:
                raise
            compile_with(_AS_TEXT)  # what is wrong with the text is said as ever; else the headers were refused
            _headers.update({place: _AS_TEXT for place, given in _headers.items() if given is first})
        run(tool, ["-shared", "kernel.o", "-o", "kernel.so", str(runtime_path()), "-lm"], folder)
        (folder / "kernel.o").unlink()

    return _cached(key, "kernel.so", make)


def _mode_flags(tool: Compiler, checked: bool, watched: bool, optimize: bool) -> list[str]:
    level = "-O0" if not optimize else "-O1" if checked else "-O2"
    flags = [level, _CHECKED if checked else _ALWAYS, *([] if checked else ["-fwrapv"])]
    if tool.family == "clang":
        flags += ["-fno-sanitize-trap=all", "-fsanitize-recover=all", "-ferror-limit=8", "-fno-caret-diagnostics"]
    else:
        flags += ["-fno-gnu-unique", "-fmax-errors=8", "-fno-diagnostics-show-caret"]
    if checked or watched:
        flags += ["-fsanitize=thread"]
        options = ["tsan-distinguish-volatile=1", "tsan-instrument-func-entry-exit=0"]
        if tool.family == "clang":
            options.append("tsan-instrument-read-before-write=1")
            flags += [f for o in options for f in ("-mllvm", f"-{o}")]
        elif tells_volatile_apart(tool):
            flags += [f"--param={o}" for o in options]
    return flags


def tells_volatile_apart(tool: Compiler) -> bool:
    """Whether checked accesses to volatile memory are known as such. Else who waits by them would race with who sets the flag, so
    that races in global memory cannot be looked for."""
    return tool.family == "clang" or tool.major >= 12


def run(tool: Compiler, arguments: Sequence[str], folder: Path) -> None:
    """Runs the compiler in a folder.

    Raises:
        CompileError: with what it said.
    """
    # The clang of ziglang asks for checks of its own where nobody asks for any; refused before others, they all go.
    quiet = tool.family == "clang" and not any(a.startswith("-fsanitize=") for a in arguments)
    base = ["-fno-sanitize=undefined"] if quiet else []
    environment = {**os.environ, "LC_ALL": "C", "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
    command = [*tool.command, *base, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise CompileError(done.stderr or done.stdout)


# Headers take half of a compilation, so they are precompiled for the flags of a kind of launch, once there is a second.

_AS_TEXT = ("-include", "device.h")
# By cache and key, what this process gives the compiler; None where it has met these headers once.
_headers: dict[tuple[Path, str], Sequence[str] | None] = {}


def _leading_headers(text: str) -> list[str]:
    """CUDA's headers that a text begins with, by name, in their order."""
    found = _LEADING.match(text)
    return re.findall(r"<(.+?)>", found[1]) if found else []


def _begin_with(tool: Compiler, names: list[str], flags: list[str]) -> Sequence[str]:
    """Arguments that have a text begin with these headers: precompiled, unless they are new to this process and the cache, or
    cannot be."""
    text = "".join(f"#include <{name}>\n" for name in names)
    gcc = tool.family == "gcc"
    product = "headers.h.gch" if gcc else "headers.pch"
    key = _hash(["headers", _FORMAT, text, flags, tool.command, tool.version, _own_sources()])
    place = _root(), key
    if found := _headers.get(place):
        return found
    if place not in _headers and not (_root() / key / product).exists():
        _headers[place] = None
        return _AS_TEXT

    def make(folder: Path, final: Path) -> None:
        run(tool, [*flags, "-x", "c++-header", str(source), "-o", product], folder)
        _write(folder / "headers.h", text)  # g++ is given this name, and takes what lies beside it

    try:
        # clang looks for the header where it was, so it lies where it stays.
        source = _cached(_hash(["headers", text]), "headers.h", lambda folder, _: _write(folder / "headers.h", text))
        path = _cached(key, product, make)
        found = ("-include", str(path.with_suffix(""))) if gcc else ("-include-pch", str(path))
    except (CompileError, OSError):  # a full disk, too
        found = _AS_TEXT
    _headers[place] = found
    return found


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


# The cache: one folder an entry, moved into place whole, and made once by all threads and processes that miss it.


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _cached(key: str, product: str, make: Callable[[Path, Path], None]) -> Path:
    root = _root()
    final = root / key

    def one() -> None:
        with alone(root / f".{key}.lock"):
            if not _whole(final, product):
                _make(root, key, product, make)

    if not _whole(final, product):
        once(str(final), one)
    return final / product


def _make(root: Path, key: str, product: str, make: Callable[[Path, Path], None]) -> None:
    final = root / key
    temporary = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=root))
    try:
        make(temporary, final)
        (temporary / "sha256").write_text(hashlib.sha256((temporary / product).read_bytes()).hexdigest())
        shutil.rmtree(temporary / "zig", ignore_errors=True)
        if final.exists() and not _whole(final, product):
            shutil.rmtree(final, ignore_errors=True)
        try:
            temporary.rename(final)
        except OSError:
            if not _whole(final, product):  # another process may have been first, where nothing can be locked
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _whole(folder: Path, product: str) -> bool:
    try:
        wanted = (folder / "sha256").read_text()
        return hashlib.sha256((folder / product).read_bytes()).hexdigest() == wanted
    except OSError:
        return False


def _root() -> Path:
    root = default_folder() / "simulator"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            return root
    except OSError:
        return once("the simulator's own folder", lambda: _own_folder(os.getpid()))


@cache
def _own_folder(process: int) -> Path:
    """A folder for this process alone, where the cache cannot be written; one that it forks off needs another."""
    return own_folder("cupyops-simulator-")


@cache
def _own_sources() -> str:
    """A hash of the headers and the runtime."""
    files = sorted(p for folder in ("cuda", "runtime") for p in (HERE / folder).iterdir() if p.suffix in (".h", ".cpp"))
    return _hash([(p.name, p.read_text(encoding="utf-8")) for p in files])


def _shims() -> Path:
    """A folder with the one header of CUDA's tools that has no file ending, which a wheel would not hold."""

    def make(folder: Path, final: Path) -> None:
        (folder / "nv").mkdir()
        (folder / "nv" / "target").write_text('#include "nv_target.h"\n')

    return _cached("headers-1", "nv/target", make).parent.parent


# The runtime, which all kernels share


@cache
def _runtime_of(tool: Compiler, root: Path) -> Path:
    sources = sorted((HERE / "runtime").glob("*.cpp"))
    key = _hash(["runtime", _FORMAT, tool.version, _own_sources()])
    flags = ("-std=c++14", "-O2", "-fPIC", "-fno-omit-frame-pointer", "-fvisibility=default", "-w")

    def make(folder: Path, final: Path) -> None:
        def one(source: Path) -> str:
            run(tool, [*flags, f"-I{source.parent}", "-c", str(source), "-o", f"{source.stem}.o"], folder)
            return f"{source.stem}.o"

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            objects = list(pool.map(one, sources))
        # A kernel asks for it by this name, and it is loaded then, wherever it lies.
        run(tool, ["-shared", f"-Wl,-soname,cupyops-{key}.so", *objects, "-o", "runtime.so", "-lpthread"], folder)

    return _cached(key, "runtime.so", make)


def runtime_path() -> Path:
    """The runtime's library, compiled on first use."""
    return _runtime_of(host.compiler(), _root())


_loaded: dict[str, Any] = {}


def _load_runtime(path: Path) -> Any:
    # Kernels are given the one that was loaded first under its name, also those of another cache folder.
    name = path.parent.name
    return _loaded.get(name) or _loaded.setdefault(name, ctypes.CDLL(str(path)))


def runtime() -> Any:
    """The runtime, loaded into this process.

    Raises:
        MissingDependencyError: there is no compiler, or it cannot compile the runtime.
    """
    try:
        return _load_runtime(runtime_path())
    except CompileError as error:
        raise MissingDependencyError(
            f"{' '.join(host.compiler().command)} cannot compile the simulator's runtime: {str(error)[:2000]}"
        ) from error


def needs_cuda(text: str) -> bool:
    """Whether a text includes one of CUDA's headers."""
    return _SYSTEM_HEADER.search(text) is not None
