"""Writes a file that repeats a failure: :func:`save_repro`.

A launch that fails stores its call in the exception: the kernel, the arguments and the mode of the simulator. Nothing is
written before :func:`save_repro` is called, unless the environment variable ``CUPYOPS_REPRO`` names a folder. Another
failure, such as a failed check of an operator, stores its own object with a method :meth:`Failure.script`.
"""

import functools
import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from cupyops.arrays import host
from cupyops.compile.cache import write
from cupyops.errors import LaunchError, expected

from . import debug
from .arguments import Arguments
from .saved_memory import SavedMemory, in_lines
from .tensor_map import TensorMap

__all__ = [
    "Call",
    "Failure",
    "Script",
    "folder",
    "keeps_call",
    "literal",
    "noted",
    "save_repro",
    "source_literal",
    "stored",
]

_INLINE = 16384  # bytes of packed arrays up to which the arrays are written into the file itself
_MARK = '"""Repeats a failure: '  # the beginning of each file; save_repro replaces only files with this beginning
_STORED = "_cupyops_repro"  # the attribute of an exception or a report

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class Script:
    """The parts of a file that repeats a failure.

    Attributes:
        words: the failure's message.
        about: what the file does, as sentences.
        imports: the import lines.
        before: the lines before the arrays.
        arrays: the arrays of the failure.
        tensors: whether the arrays are PyTorch's tensors.
        after: the lines after the arrays, which use the dictionary ``arrays``.
    """

    words: str
    about: str
    imports: Sequence[str]
    before: Sequence[str]
    arrays: SavedMemory
    tensors: bool
    after: Sequence[str]


class Failure(Protocol):
    """The record of a call that an exception stores for :func:`save_repro`."""

    def script(self, check: str | None, operator: str | None) -> Script:
        """Returns the file's parts. The arguments are those of :func:`save_repro`."""
        ...


@dataclass(frozen=True)
class Call:
    """A launch that has failed.

    Attributes:
        kernel: the kernel.
        arguments: the checked arguments.
        threads: the number of threads, for a kernel whose calls give the number.
        written: whether the launch recorded its writes, which vouched calls do not.
        settings: the arguments of :func:`cupyops.simulate`; None if nothing simulates the launch.
        copies: the arrays before the launch; None if they were not copied.
        words: the message of the failure.
    """

    kernel: Any
    arguments: Arguments
    threads: Sequence[int]
    written: bool
    settings: Mapping[str, Any] | None
    copies: SavedMemory | None
    words: str

    def __reduce__(self) -> Any:
        return type(None), ()  # an exception that is pickled for another process loses its call

    def script(self, check: str | None, operator: str | None) -> Script:
        kernel, given = self.kernel, self.arguments
        if check is not None:
            raise ValueError(expected("save_repro", "check", "be None for the failure of a launch", repr(check)))
        if given.lead.fake:
            raise ValueError("save_repro: the arrays of the call have no memory (they are fake), so there is no launch")
        geometry = type(kernel.geometry)
        tensors = given.library.name == "torch"
        maps = any(isinstance(value, TensorMap) for value in given.values.values())
        values = ", ".join(self._value(p, given.values[p.name]) for p in kernel.signature.parameters)
        threads = f".forall{literal(tuple(self.threads))}" if self.threads else ""
        call = f"kernel{'' if self.written or threads else '.launch_vouched'}{threads}({values})"
        block = [call]
        if self.settings is not None:
            mode = ", ".join(f"{name}={literal(value)}" for name, value in self.settings.items())
            block = [f"with cupyops.simulate({mode}):", f"    {call}"]
        about = "Runs the launch again" + (", simulated on this machine's CPU" if self.settings is not None else "")
        return Script(
            self.words,
            f"{about}. Edit TEXT, and run the file again.",
            [
                *(["import torch"] if tensors else []),
                "import cupyops",
                "from cupyops import Kernel",
                f"from cupyops.launch.saved_memory import {'address, ' if maps else ''}restored",
                f"from {geometry.__module__} import {geometry.__name__}",
                *(["from cupyops.launch.tensor_map import tensor_map"] if maps else []),
            ],
            [f"TEXT = {source_literal(kernel.text)}", f"kernel = {_declaration(kernel)}"],
            self.copies or _copied(given),
            tensors,
            block,
        )

    def _value(self, p: Any, value: Any) -> str:
        if p.name in self.arguments.infos:
            return f'arrays["{p.name}"]'
        if isinstance(value, TensorMap):
            array = f'address(arrays["{p.map_of}"])' if p.map_of in self.arguments.infos else str(value.address)
            about = (value.rows, value.columns, value.dtype, value.box_rows)
            return f"tensor_map({array}, {', '.join(map(repr, about))}, simulated=True)"
        if held := {one.offset: one.parameter.name for one in self.arguments.held if one.owner == p.name}:
            return _spelled(p.element.record, value, 0, held)
        return literal(value)


def _spelled(dtype: Any, memory: bytes, offset: int, held: Mapping[int, str]) -> str:
    """Returns the tuple of a struct's fields, with the arrays at the offsets of `held`."""
    import numpy

    if offset in held and dtype == numpy.uint64:
        return f'arrays["{held[offset]}"]'
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        inner = numpy.dtype((base, shape[1:]))
        parts = [(inner, offset + i * inner.itemsize) for i in range(shape[0])]
    elif dtype.names is not None:
        parts = [(field, offset + at) for field, at, *_ in map(dtype.fields.__getitem__, dtype.names)]
    else:
        return literal(numpy.frombuffer(memory, dtype, 1, offset)[0].item())
    return f"({''.join(f'{_spelled(of, memory, at, held)}, ' for of, at in parts)})"


def _declaration(kernel: Any) -> str:
    options = kernel.options[: len(kernel.options) - len(kernel.hardware.options)]
    constants = {n: v for n, v in kernel.constants.items() if n not in kernel.geometry.constants}
    hardware = kernel.hardware
    given: dict[str, Any] = {"dtypes": kernel.dtypes, "filename": kernel.filename}
    given |= {"constants": constants} if constants else {}
    given |= {"headers": dict(kernel.headers)} if kernel.headers else {}
    given |= {"options": options} if options else {}
    usual = {"shared": 0, "since": 0, "exactly": False, "cooperative": False}
    given |= {name: found for name, value in usual.items() if (found := getattr(hardware, name)) != value}
    lines = [
        f"    {name}={_header_texts(value) if name == 'headers' else literal(value)}," for name, value in given.items()
    ]
    if linked := kernel.source.linked:
        lines.append(f"    link=[{', '.join(source_literal(t.text) for t in linked)}],")
    return "\n".join(["Kernel(", "    TEXT,", f"    {kernel.name!r},", f"    {kernel.geometry!r},", *lines, ")"])


def _header_texts(headers: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name!r}: {source_literal(text)}" for name, text in headers.items()) + "}"


def literal(value: Any) -> str:
    """Returns the Python text of None, a number, a string, bytes, or a tuple, list, dict or slice of them.

    Raises:
        TypeError: the value is of another type.
    """
    if isinstance(value, slice):
        return f"slice({literal(value.start)}, {literal(value.stop)}, {literal(value.step)})"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        inside = ", ".join(map(literal, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()  # a number of NumPy's
    if isinstance(value, float):
        return repr(value) if value - value == 0 else f'float("{value}")'
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return repr(value)
    raise TypeError(expected("save_repro", "a value of the call", "be a number or a string", type(value).__name__))


def source_literal(text: str) -> str:
    """Returns the Python text of a source, in lines if that is possible."""
    plain = not any(piece in text for piece in ('"""', "\r", "\0")) and not text.endswith(('"', "\\"))
    return f'r"""{text}"""' if plain else repr(str(text))


def keeps_call(method: Method) -> Method:
    """Decorates :meth:`.kernel.Kernel.run`: an exception stores the call for :func:`save_repro`."""

    @functools.wraps(method)
    def run(kernel: Any, arguments: Arguments, threads: Sequence[int] = (), *, written: bool = False) -> Any:
        copies = _copied_before(arguments) if folder() is not None else None
        try:
            return method(kernel, arguments, threads, written=written)
        except Exception as error:
            settings: Mapping[str, Any] | None = {"sanitize": True}
            if arguments.lead.place != "cuda":
                settings = host().settings() if host().enabled() else None
            call = Call(kernel, arguments, threads, written, settings, copies, f"{type(error).__name__}: {error}")
            with suppress(AttributeError):
                setattr(error, _STORED, call)
            if isinstance(error, LaunchError):
                noted(error, kernel.name)
            raise

    return cast(Method, run)


def _copied_before(arguments: Arguments) -> SavedMemory | None:
    """Copies the arrays before a launch that may change them or end the GPU's context: in debug mode and simulated."""
    lead = arguments.lead
    simulated = lead.place == "cpu" and host().enabled()
    if lead.fake or not (simulated or (lead.place == "cuda" and debug.enabled())):
        return None
    return SavedMemory.copied(arguments.infos)


def _copied(arguments: Arguments) -> SavedMemory:
    try:
        return SavedMemory.copied(arguments.infos)
    except Exception as error:  # CuPy's driver errors
        raise RuntimeError(
            f"save_repro: the arrays cannot be read from the GPU, whose context has ended with the failure: {error}. With "
            f"CUPYOPS_REPRO=FOLDER and CUPYOPS_DEBUG=1, every launch copies its arrays first"
        ) from error


def folder() -> Path | None:
    """Returns the folder in which every failed launch and check writes a file: ``CUPYOPS_REPRO``. None: no file."""
    found = os.environ.get("CUPYOPS_REPRO", "")
    return Path(found) if found else None


def noted(error: Exception, name: str) -> None:
    """Adds a note to an exception: how to write the file, or where ``CUPYOPS_REPRO`` had the file written."""
    into = folder()
    words = "cupyops.save_repro(error) writes a file that repeats this failure."
    if into is not None:
        number = hashlib.sha256(str(error).encode()).hexdigest()[:8]
        try:
            into.mkdir(parents=True, exist_ok=True)
            words = f"{save_repro(error, into / f'repro_{name}_{number}.py')} repeats this failure."
        except Exception as problem:  # the failure itself must reach the caller
            words = f"CUPYOPS_REPRO: no file was written: {problem}"
    if hasattr(error, "add_note"):  # from Python 3.11 on
        error.add_note(words)


def stored(failure: BaseException) -> Any:
    """Returns what an exception, or the nearest of its causes, stores for :func:`save_repro`. Returns None if nothing."""
    return next((found for e in _chain(failure) if (found := getattr(e, _STORED, None)) is not None), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def save_repro(
    failure: Any = None,
    path: str | os.PathLike[str] = "repro.py",
    *,
    check: str | None = None,
    operator: str | None = None,
) -> Path:
    """Writes a Python file that repeats a failure, and returns its path. ``python repro.py`` ends with the same error.

    For a failed launch, the file has the kernel's text, its options and the arrays. The file simulates the launch on a
    CPU. For a failed check of :func:`cupyops.torch.check_op`, the file has the same if a launch failed; otherwise it
    has the samples, and a line that imports the operator. Arrays of up to 16 KiB are in the file itself, and others in
    a file ``.npz`` beside it. The arrays have the values of the time of this call. ``CUPYOPS_REPRO=FOLDER`` in the
    environment writes a file for every failed launch and check, with the values from before the launch.

    Args:
        failure: a :class:`LaunchError`, another exception that a launch raised, a ``CheckFailed``, or the report of
            ``check_op``. By default the exception that is being handled, or the last uncaught exception.
        path: the file. An existing file is replaced only if this function wrote the file.
        check: the failed check to repeat; by default the first.
        operator: ``"module:expression"``, where the file finds the operator of a check, ``"mylib.ops:softclip"``. By
            default the module of which the operator is an attribute.

    Raises:
        ValueError: the failure is neither of a launch nor of a check; the arrays are fake; or the operator is in no
            module.
        TypeError: an argument of the call cannot be written as Python text.
        FileExistsError: the file exists, and this function has not written it.
        RuntimeError: the arrays are on a GPU whose context has ended.
        OSError: the file cannot be written.
    """
    if failure is None:
        failure = sys.exc_info()[1] or getattr(sys, "last_value", None)
    found = stored(failure) if isinstance(failure, BaseException) else getattr(failure, _STORED, None)
    if found is None:
        wanted = "be an exception of a launch, a CheckFailed, or the report of failed checks"
        raise ValueError(expected("save_repro", "failure", wanted, f"{type(failure).__name__}: {failure}"))
    path = Path(path)
    with suppress(FileNotFoundError):
        if not path.read_text(encoding="utf-8", errors="replace").startswith(_MARK):
            raise FileExistsError(f"save_repro: {path} exists and was not written by save_repro; give another path")
    script = found.script(check, operator)
    data = script.arrays.packed()
    beside = path.with_suffix(".npz")
    if len(data) > _INLINE:
        write(beside, data)
    write(path, _text(script, data, beside.name).encode())
    return path


def _text(script: Script, data: bytes, beside: str) -> str:
    words = script.words.replace("\\", "/").replace('"""', "'''")
    inline = len(data) <= _INLINE
    return "\n".join(
        [
            f"{_MARK}{words.splitlines()[0] if words else ''}",
            "",
            script.about,
            '"""',
            "",
            *([] if inline else ["from pathlib import Path", ""]),
            *script.imports,
            "",
            *script.before,
            "",
            "# The memory of the arrays: an .npz file" + (" in base64." if inline else "."),
            *(['DATA = """', in_lines(data), '"""'] if inline else [f"DATA = Path(__file__).with_name({beside!r})"]),
            "arrays = restored(",
            "    DATA,",
            "    {  # block, offset in bytes, dtype, shape, strides in elements",
            *(f"        {name!r}: {literal(tuple(view))}," for name, view in script.arrays.views.items()),
            "    },",
            *(["    torch,"] if script.tensors else []),
            ")",
            "",
            *script.after,
            'print("The failure was not repeated.")',
            "",
        ]
    )
