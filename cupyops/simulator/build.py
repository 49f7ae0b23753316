"""Compiles a translated text into a shared library, through a cache keyed by content."""

import ctypes
import errno
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from cupyops.compile import signing, upkeep
from cupyops.compile.cache import default_folder
from cupyops.compile.folded import folded
from cupyops.compile.linking import parts
from cupyops.compile.system_headers import shared_with_host, shims
from cupyops.errors import CompileError, LaunchError, MissingDependencyError
from cupyops.sharing import alone, once, own_folder, run_program
from cupyops.trust import Refused, mode, open_folder, shared, warn_refused

from . import host, macros
from .flags import REFUSED, flags_of, libraries
from .host import Compiler
from .linker import linker_of

__all__ = ["build", "counter_path", "load_library", "runtime"]

HERE = Path(__file__).parent
_FORMAT = 3  # raise it when the meaning of an entry changes
_LEADING = re.compile(r"(?://[^\n]*\n)*((?:#include <cuda_\w+\.h>\n)*)")
_SYSTEM_HEADER = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", re.MULTILINE)


def build(
    text: str,
    needs_cuda: bool,
    *,
    checked: bool,
    watched: bool,
    optimize: bool,
    sources: dict[str, str],
    counted: bool = False,
    launched: bool = True,
    standard: str = "",
    check: Callable[[], object] = bool,
) -> Path:
    """Returns the path of the library of a translated text; compiles the text if the cache has no entry.

    Args:
        text: the result of :func:`cupyops.simulator.translate.translate`.
        needs_cuda: whether the text includes CUDA headers, see :func:`needs_cuda`.
        checked: whether the compiler inserts a runtime call before every memory access.
        watched: whether the text has volatile accesses. The compiler then inserts the runtime calls without ``checked``,
            too: a thread may poll volatile memory, and the runtime must let other threads run.
        optimize: whether to optimize; False compiles for a debugger.
        sources: the kernel's sources by file name, written beside the library for a debugger.
        counted: whether the compiler inserts calls of the counters at every memory access and every basic block,
            in place of all checks.
        launched: whether the text has kernels; a text of questions alone has none.
        standard: an option that chooses another version of C++ than C++17, ``-std=c++20``.
        check: is called during a compilation, in a thread of its own, and may raise a CompileError.

    Raises:
        CompileError: the compiler refuses the text; the message is the compiler's output.
        MissingDependencyError: the machine has no C++ compiler that works, or no CUDA headers.
    """
    tool = host.compiler()
    flags = flags_of(tool, checked=checked, watched=watched, optimize=optimize, counted=counted)
    flags += [standard] if standard else []
    root = _root()
    identity: list[object] = [_FORMAT, text, flags, libraries(tool), tool.version, _own_sources()]
    system = [host.cuda_include()] if needs_cuda else []
    identity += map(str, system)
    key = _hash(identity)

    def make(folder: Path, final: Path) -> None:
        for name, source in sources.items():
            if not os.path.isabs(name) and ".." not in Path(name).parts:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(source, encoding="utf-8")
        paths = [f"-I{path}" for path in (HERE / "cuda", HERE / "runtime", HERE / "include", _shims(root), *system)]
        paths.append(f"-I{_macros(tool, flags, root)}")
        mapped = f"-fdebug-prefix-map={folder}={final}"

        def compiled(name: str, one: str) -> str:
            (folder / f"{name}.cpp").write_text(one, encoding="utf-8")

            def compile_with(first: Sequence[str]) -> None:
                said = run(tool, [*flags, mapped, *first, *paths, "-c", f"{name}.cpp", "-o", f"{name}.o"], folder)
                if refused := [line for line in said.splitlines() if any(words in line for words in REFUSED)]:
                    raise CompileError("\n".join(refused).replace(" warning: ", " error: "))

            first = _begin_with(tool, ["device.h", *_leading_headers(one)], [*flags, *paths])
            try:
                compile_with(first)
            except CompileError as error:
                if (constant := folded(one, str(error))) != one:
                    return compiled(name, constant)
                later = _of_later_names(str(error))
                if first is _AS_TEXT and not later:
                    raise
                # This raises for an error in the text, not for a fault of the precompiled headers.
                compile_with([*_AS_TEXT, *later])
                if not later:
                    _headers.update({place: _AS_TEXT for place, given in _headers.items() if given is first})
            return f"{name}.o"

        with ThreadPoolExecutor(1) as pool:
            checked_meanwhile = pool.submit(check)
            objects = [compiled(f"linked{i}" if i else "kernel", one) for i, one in enumerate(parts(text))]
            checked_meanwhile.result()
        # The loader takes a function from the first library that has it: the counters come before the runtime.
        counters = [counter_path()] if counted else []
        modules = [str(module_path())] if launched else []
        inputs = [*objects, *modules]
        linker, linked = linker_of(tool, [folder / name for name in inputs], *counters, runtime_path())
        run(linker, ["-shared", *inputs, "-o", "kernel.so", *linked], folder)
        for name in objects:
            (folder / name).unlink()

    try:
        return _cached(key, "kernel.so", make, root)
    except CompileError:
        if problem := problem_of_compiler(flags):
            raise MissingDependencyError(
                f"the simulator's compiler does not work: it compiles not even an empty kernel. {problem}"
            ) from None
        raise


def run(tool: Compiler, arguments: Sequence[str], folder: Path) -> str:
    """Runs the compiler in a folder, and returns what it prints.

    Raises:
        CompileError: the compiler fails, or writes no output file; the message is what it prints.
        OSError: the file system has no room for the compiler's files.
    """
    # The clang of ziglang turns on UBSan checks unless the command has a -fsanitize option; this option turns them off.
    quiet = tool.family == "clang" and not any(a.startswith("-fsanitize=") for a in arguments)
    base = ["-fno-sanitize=undefined"] if quiet else []
    environment = {**os.environ, "LC_ALL": "C", "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
    command = [*tool.command, *base, *arguments]
    done = run_program(command, cwd=folder, env=environment)
    said = done.stderr or done.stdout
    if done.returncode != 0:
        for number in (errno.ENOSPC, errno.EDQUOT):
            if os.strerror(number) in said:
                raise OSError(number, os.strerror(number), str(folder))
        raise CompileError(_OF_ATTRIBUTE.sub("", said))
    made = arguments[arguments.index("-o") + 1]
    if not (folder / made).exists():
        raise CompileError(f"{said.strip()[:2000] or 'no message'} (it ended without an error, and wrote no {made})")
    return said


# Choices of flags with which the compiler has compiled an empty kernel.
_works: set[tuple[object, ...]] = set()


def problem_of_compiler(flags: Sequence[str]) -> str:
    """Returns why the compiler fails on an empty kernel with these flags, or an empty string if it does not. An
    error in a user's text is distinguished from a compiler that does not work by this question."""
    tool = host.compiler()
    if (tool, *flags) in _works:
        return ""
    with tempfile.TemporaryDirectory(prefix="cupyops-empty-") as name:
        folder = Path(name)
        _write(folder / "empty.cpp", "")
        compiling = [*flags, *_AS_TEXT, f"-I{HERE / 'runtime'}", "-c", "empty.cpp", "-o", "empty.o"]
        linking = ["-shared", "empty.o", "-o", "empty.so"]
        for arguments in (compiling, linking):
            try:
                arguments += [str(runtime_path()), *libraries(tool)] if arguments is linking else []
                run(tool, arguments, folder)
            except (CompileError, OSError) as error:
                command = shlex.join([*tool.command, *arguments])
                return f"{host.instead()}. It says: {str(error).strip()[:2000]}\nThe command was: {command}"
    _works.add((tool, *flags))
    return ""


def _of_later_names(errors: str) -> list[str]:
    """Returns the option with which g++ looks up the functions that a template calls where the template is instantiated, as nvcc
    does, if the lack of such functions is all that it reports. Without an instantiation, nvcc does not look them up."""
    lines = [line for line in errors.splitlines() if " error: " in line]
    return ["-fpermissive"] if lines and all("depend on a template parameter" in line for line in lines) else []


_OF_ATTRIBUTE = re.compile(r"call to '[^']*' declared with (?:attribute error|'error' attribute): ")  # of ptx.py
# Headers take half of a compilation's time. The second compilation with the same headers and flags precompiles them.

# An absolute path: the kernel's folder may have a device.h of the user.
_AS_TEXT = ("-include", str(HERE / "cuda" / "device.h"))
# The compiler arguments for the leading headers, by cache folder and key; None after the first compilation.
_headers: dict[tuple[Path, str], Sequence[str] | None] = {}


def _leading_headers(text: str) -> list[str]:
    """Returns the names of the CUDA headers that a text begins with, in order."""
    found = _LEADING.match(text)
    return re.findall(r"<(.+?)>", found[1]) if found else []


def _begin_with(tool: Compiler, names: list[str], flags: list[str]) -> Sequence[str]:
    """Returns the compiler arguments that include the leading headers of a text.

    A precompiled header from the cache is used at once. Without one, the second compilation with these headers and
    flags precompiles them. If precompilation fails, the compiler reads the headers as text.
    """
    text = "".join(f"#include <{name}>\n" for name in names)
    gcc = tool.family == "gcc"
    product = "headers.h.gch" if gcc else "headers.pch"
    key = _hash(["headers", _FORMAT, text, flags, tool.command, tool.version, _own_sources()])
    root = _root()
    place = root, key
    if found := _headers.get(place):
        return found
    if place not in _headers and not _find(key, product, root):
        _headers[place] = None
        return _AS_TEXT

    def make(folder: Path, final: Path) -> None:
        run(tool, [*flags, "-x", "c++-header", str(source), "-o", product], folder)
        _write(folder / "headers.h", text)  # g++ gets this name, and uses the headers.h.gch beside it

    try:
        # clang requires the header at its path of precompilation, so the header has a cache entry of its own.
        source = _cached(
            _hash(["headers", text]), "headers.h", lambda folder, _: _write(folder / "headers.h", text), root
        )
        path = _cached(key, product, make, root, needed=False)
        header = ("-include", str(path.with_suffix(""))) if gcc else ("-include-pch", str(path))
        # A compiler defines its own macros again when it reads a precompiled header.
        found = (*header, "-include", macros.OF_COMPILER)
    except (CompileError, OSError):  # OSError: for example a full disk
        found = _AS_TEXT
    _headers[place] = found
    return found


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


# The cache has one folder for each entry. A new entry is built in a temporary folder and renamed into place. A lock
# makes one thread of one process build an entry; the others wait for the entry.


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _cached(key: str, product: str, make: Callable[[Path, Path], None], root: Path, *, needed: bool = True) -> Path:
    """Returns the product of an entry; makes the entry if the cache has none.

    An entry of a cache that this user may only read is used where it lies. If the cache has no room for a new entry, the
    entry is made in a temporary folder of this process, if it is `needed`.
    """

    def one() -> Path:
        upkeep.begin(root)
        with alone(root / f".{key}.lock"):
            if not _whole(root / key, product):
                _make(root, key, product, make)
        return root / key / product

    try:
        return _find(key, product, root) or once(str(root / key), one)
    except OSError:
        if not needed or root != _folder():  # the temporary folder has no room either
            raise
        _full.add(root)
        return _cached(key, product, make, _root())


def _find(key: str, product: str, root: Path) -> Path | None:
    """Returns the product of an entry in the cache or in the folder that this process writes to, or None."""
    folders = [root] if root == _folder() or signing.required() else [root, *_only_read()]
    return next((folder / key / product for folder in folders if _whole(folder / key, product)), None)


def _only_read() -> list[Path]:
    """Returns the folder of the cache if no other user can change it, for entries that are read and not written."""
    try:
        with open_folder(_folder()):
            return [_folder()]
    except OSError:
        return []


def _make(root: Path, key: str, product: str, make: Callable[[Path, Path], None]) -> None:
    final = root / key
    temporary = root / f".{key}.{secrets.token_hex(8)}"
    temporary.mkdir(mode())
    try:
        make(temporary, final)
        (temporary / "sha256").write_text(hashlib.sha256((temporary / product).read_bytes()).hexdigest())
        shutil.rmtree(temporary / "zig", ignore_errors=True)
        size = _set_modes(temporary)
        if os.path.lexists(final) and not _whole(final, product):
            upkeep.remove(root, upkeep.Stored([key]))
        try:
            temporary.rename(final)
        except OSError:
            if not _whole(final, product):  # without file locks, another process may have renamed its folder first
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    upkeep.keep_within(root, size, folders=True)


def _set_modes(folder: Path) -> int:
    """Removes the write permission of other users unless the cache is shared, for any umask; returns the bytes of
    the files."""
    size = 0
    for path in folder.rglob("*"):
        about = path.lstat()
        size += about.st_size if path.is_file() else 0
        if not shared():
            path.chmod(stat.S_IMODE(about.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
    return size


def _whole(folder: Path, product: str) -> bool:
    """Returns whether an entry is undamaged and no other user can change it; records its use."""
    try:
        with open_folder(folder.parent) as root:
            wanted = root.read(folder.name, "sha256").decode()
            if hashlib.sha256(root.read(folder.name, *product.split("/"))).hexdigest() != wanted:
                return False
        return upkeep.use(folder)
    except Refused as refused:
        warn_refused("an entry of the simulator's cache", refused)
    except (OSError, ValueError):
        pass
    return False


def _root() -> Path:
    """Returns the folder of the cache, or a temporary folder of this process if the cache cannot be used.

    With ``CUPYOPS_REQUIRE_SIGNED=1`` nothing is loaded that another process has compiled.
    """
    root = _folder()
    if not signing.required() and root not in _full:
        try:
            with open_folder(root, make=True), tempfile.TemporaryFile(dir=root):
                return root
        except Refused as refused:
            warn_refused("the simulator's cache", refused)
        except OSError:
            pass
    return once("the simulator's own folder", lambda: _own_folder(os.getpid()))


def _folder() -> Path:
    """Returns the folder of the cache, which may be absent, and which this user may not be allowed to write to."""
    return default_folder() / "simulator"


# Folders of the cache in which this process has found no room for an entry.
_full: set[Path] = set()


@cache
def _own_folder(process: int) -> Path:
    """Creates a folder for this process, used if the cache cannot be used; a forked child gets its own."""
    return own_folder("cupyops-simulator-")


@cache
def _own_sources() -> str:
    """Returns a hash of the simulator's headers, of what writes headers, and of the runtime's sources."""
    files = [HERE / "macros.py"] + sorted(
        p
        for folder in ("cuda", "module", "runtime", "counting", "include")
        for p in (HERE / folder).rglob("*")
        if p.suffix in (".h", ".cuh", ".cpp")
    )
    return _hash([(str(p.relative_to(HERE)), p.read_text(encoding="utf-8")) for p in files])


def _shims(root: Path) -> Path:
    """Returns a folder with the headers whose twins have other names: the wheel cannot hold ``nv/target``, for example,
    because the file name has no suffix."""
    texts = shims()

    def make(folder: Path, final: Path) -> None:
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")

    return _cached(_hash(["headers", sorted(texts.items())]), "nv/target", make, root).parent.parent


def _macros(tool: Compiler, flags: list[str], root: Path) -> Path:
    """Returns a folder with the headers that hide the macros of the compiler and of its headers, see :mod:`.macros`."""

    def make(folder: Path, final: Path) -> None:
        _write(folder / "empty.cpp", "")
        listing = [*flags, *_AS_TEXT, f"-I{HERE / 'runtime'}", *macros.LISTING, "empty.cpp", "-o", "macros.txt"]
        run(tool, listing, folder)
        macros.write((folder / "macros.txt").read_text(encoding="utf-8", errors="replace"), HERE, folder, _write)
        (folder / "macros.txt").unlink()

    key = _hash(["macros", _FORMAT, flags, tool.command, tool.version, _own_sources()])
    return _cached(key, macros.UNDEFINED, make, root).parent


# The runtime library, which all kernels share.


@cache
def _runtime_of(tool: Compiler, root: Path) -> Path:
    return _library(tool, root, "runtime", [])


@cache
def _counter_of(tool: Compiler, root: Path) -> Path:
    return _library(tool, root, "counting", [str(_runtime_of(tool, root))])


@cache
def _module_of(tool: Compiler, root: Path) -> Path:
    """Returns the path of the object that is linked into the library of each kernel."""
    flags = ("-std=c++14", "-O1", "-fPIC", "-fno-omit-frame-pointer", "-w")
    source = str(HERE / "module" / "module.cpp")

    def make(folder: Path, final: Path) -> None:
        run(tool, [*flags, "-c", source, "-o", "module.o"], folder)

    key = _hash(["module", _FORMAT, flags, tool.command, tool.version, _own_sources()])
    return _cached(key, "module.o", make, root)


def _library(tool: Compiler, root: Path, name: str, linked: list[str]) -> Path:
    """Returns the path of the library of the sources in a folder, ``runtime`` or ``counting``."""
    sources = sorted((HERE / name).glob("*.cpp"))
    include = [f"-I{HERE / folder}" for folder in ("runtime", "counting")]
    flags = ("-std=c++14", "-O3", "-fPIC", "-fno-omit-frame-pointer", "-fvisibility=default", "-w")
    key = _hash([name, _FORMAT, flags, tool.version, _own_sources()])

    def make(folder: Path, final: Path) -> None:
        def one(source: Path) -> str:
            run(tool, [*flags, *include, "-c", str(source), "-o", f"{source.stem}.o"], folder)
            return f"{source.stem}.o"

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            objects = list(pool.map(one, sources))
        # A kernel's library names the runtime by this soname; the loader finds the loaded runtime by it in any folder.
        soname = f"-Wl,-soname,cupyops-{key}.so"
        run(tool, ["-shared", soname, *objects, *linked, "-o", f"{name}.so", "-lpthread"], folder)

    return _cached(key, f"{name}.so", make, root)


def runtime_path() -> Path:
    """Returns the path of the runtime's library; the first call compiles the library."""
    return _kept(_runtime_of)


def module_path() -> Path:
    """Returns the path of the object of ``module/``, which is linked into each kernel's library; the first call compiles it."""
    return _kept(_module_of)


def counter_path() -> Path:
    """Returns the path of the counters' library; the first call compiles the library."""
    return _kept(_counter_of)


def _kept(library_of: Any) -> Path:
    tool, root = host.compiler(), _root()
    path: Path = library_of(tool, root)
    if not upkeep.use(path.parent):  # another process has removed the entry
        library_of.cache_clear()
        path = library_of(tool, root)
    return path


def load_library(path: Path) -> Any:
    """Loads a compiled library into this process.

    A file system may be mounted such that no library of it is loaded, with ``noexec``. The library is then loaded from a copy in a
    temporary folder, and a warning says so.

    Raises:
        OSError: the loader refuses the library.
        LaunchError: no temporary folder allows it either.
    """
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        if "failed to map segment" not in str(error):
            raise
    folders = dict.fromkeys([tempfile.gettempdir(), "/dev/shm", "/var/tmp", f"/run/user/{os.geteuid()}"])
    for folder in folders:
        with suppress(OSError), tempfile.TemporaryDirectory(prefix="cupyops-loaded-", dir=folder) as own:
            shutil.copyfile(path, copy := Path(own) / path.name)
            loaded = ctypes.CDLL(str(copy))  # stays in memory without its file
            _warn(
                f"the system loads no library from {path.parent.parent}, whose file system is mounted with noexec: each process "
                f"loads a copy in {folder}. Choose another folder with CUPYOPS_CACHE_DIR"
            )
            return loaded
    raise LaunchError(
        f"the system loads no library from {path.parent.parent}, nor from {', '.join(folders)}: their file systems are mounted with "
        f"noexec. Choose another folder with CUPYOPS_CACHE_DIR"
    )


@cache
def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=4)


_loaded: dict[str, Any] = {}


def _load_runtime(path: Path) -> Any:
    # The loader resolves a kernel's runtime by soname to the first loaded library, which may be in another cache
    # folder. The process must therefore use the first library, too.
    name = path.parent.name
    return _loaded.get(name) or _loaded.setdefault(name, load_library(path))


def runtime(counted: bool = False) -> Any:
    """Loads the runtime into this process and returns it; with `counted`, loads and returns the counters as well.

    Raises:
        MissingDependencyError: the machine has no C++ compiler, or the compiler cannot compile the runtime.
    """
    try:
        library = _load_runtime(runtime_path())
        return _load_runtime(counter_path()) if counted else library
    except CompileError as error:
        raise MissingDependencyError(
            f"{' '.join(host.compiler().command)} cannot compile the simulator's runtime: {str(error)[:2000]}"
        ) from error


def needs_cuda(text: str) -> bool:
    """Returns whether a text includes a CUDA header that the host compiler reads, too."""
    return shared_with_host(_SYSTEM_HEADER.findall(text))
