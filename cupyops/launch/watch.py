"""Reads the file of a kernel's text again after an edit, so that the next launch runs the edited text.

A watched kernel takes the checked launch. The launch compares the time stamps of the files with the last ones, and
reads the files if a stamp has changed. The edited text replaces the text of the :class:`.kernel.Kernel`, so every
holder of the kernel launches the edited text: operators, modules and cached configurations. If the edited text cannot be
read, parsed or compiled, the launch prints the reason and runs the last good text.

The parameters of a kernel cannot change, because the callers pass them.
"""

import copy
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar, cast

from cupyops.arrays import host
from cupyops.compile.project_headers import read
from cupyops.environment import switched
from cupyops.errors import CompileError, MissingDependencyError
from cupyops.sharing import Setting, held_across_fork

from .current import capturing
from .given_text import check_text, with_header
from .hooks import close_generated_launches
from .kernel_source import KernelSource

__all__ = ["TextFile", "active", "rereads", "watch", "watching"]

PERIOD = 0.005  # seconds between two looks at the files of a kernel
SETTLING = 0.05  # seconds between two readings of files that an editor may be writing
_READINGS = 4  # readings before a text counts as a bad edit
# A stamp that is this much younger than the reading is not trusted, in nanoseconds: a second edit in the same tick of the
# file system's clock would have the same stamp.
_TICK = 50_000_000

_all = Setting(switched("CUPYOPS_WATCH") == "on")
_reading = held_across_fork(threading.RLock())
# Kernels that were loaded before an edit. A CUDA graph that captured such a kernel launches the kernel in every replay, so
# the kernels stay loaded.
_replaced: list[Any] = []

# The files of kernels that were declared with watch=True.
_always: "weakref.WeakSet[TextFile]" = weakref.WeakSet()

Method = TypeVar("Method", bound=Callable[..., Any])


def watch(on: bool = True) -> None:
    """Makes every kernel that was declared with a path follow the edits of its file, from the next launch on.

    A launch reads the files again if the text, or a header in the text's folder, has changed. ``Kernel(path,
    watch=True)`` watches one kernel, and ``CUPYOPS_WATCH=1`` in the environment all kernels of a process. A watched
    kernel takes the checked launch, which costs the host some thirty times as much as the generated launch.

    Args:
        on: False ends the watching, except for kernels with ``watch=True``. Each kernel keeps its present text.
    """
    _all.set(bool(on))
    close_generated_launches()


def active() -> bool:
    """Returns whether a kernel may be watched. Launches of a watched kernel must not be repeated without the kernel."""
    return _all.now or len(_always) > 0


class TextFile:
    """The file of a kernel's text.

    Args:
        path: the file.
        headers: the header texts that were given with the text. They hide headers of the same names in the folder.
        always: whether the kernel is watched even while :func:`watch` is off.

    Attributes:
        names: the names of the headers in the text's folder that the text included at the last reading.
        due: the time of the next look, on the clock of :func:`time.monotonic`.
        stamps: the time stamps of the files at the last look; None if the next look must read the files.
        seen: the text and the headers of the last reading, or why they could not be used.
        good: what to restore if the present text does not compile: the attributes of the kernel by name.
    """

    def __init__(self, path: str | os.PathLike[str], headers: Mapping[str, str] | None, always: bool) -> None:
        self.path = Path(os.path.abspath(path))
        self.headers = dict(headers or {})
        self.always = always
        self.names: set[str] = set()
        self.due = 0.0
        self.stamps: Any = None
        self.seen: Any = None
        if always:
            _always.add(self)

    def stamp(self) -> list[Any]:
        """Returns the time stamps of the folder, the text, and its headers.

        The stamp of the folder changes when a file is made or renamed, as by an editor that writes another file first.
        """
        found: list[Any] = []
        for path in (self.path.parent, self.path, *(self.path.parent / n for n in sorted(self.names))):
            try:
                about = os.stat(path)
                found.append((about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino))
            except OSError:
                found.append(None)
        return found


def watching(kernel: Any) -> bool:
    """Returns whether a kernel follows the edits of its file."""
    file: TextFile | None = kernel.file
    return file is not None and (file.always or _all.now)


def rereads(method: Method) -> Method:
    """Decorates a method of a kernel that compiles the text: the method of a watched kernel first looks for an edit."""

    @functools.wraps(method)
    def call(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if watching(kernel):
            _look(kernel)
        return method(kernel, *args, **kwargs)

    return cast(Method, call)


def _look(kernel: Any) -> None:
    file = kernel.file
    if time.monotonic() < file.due:
        return
    with _reading:
        if time.monotonic() < file.due:  # another thread has looked
            return
        if file.stamps is None or file.stamps != file.stamp():
            if _capturing(kernel):
                return  # loading a kernel would end the capture of a CUDA graph
            _read(kernel, file)
        file.due = time.monotonic() + PERIOD


def _read(kernel: Any, file: TextFile) -> None:
    """Reads the files, and gives the kernel the text if the text has changed and can be used."""
    for reading in range(_READINGS):
        if reading:
            time.sleep(SETTLING)
        before = file.stamp()
        source, seen, usable = _source(kernel, file)
        # An editor may be writing the files: the stamps then change, or the text breaks off.
        if usable and before == file.stamp():
            break
    file.names = source.headers.keys() - file.headers.keys()
    after = file.stamp()
    now = time.time_ns()
    young = any(stamp is not None and abs(now - stamp[0]) < _TICK for stamp in after)
    file.stamps = None if young else after
    known, file.seen = seen == file.seen, seen
    if known or (source is kernel.source and usable):
        return
    if not usable:
        _tell(file, f"the edit is not used, and {kernel.name} keeps the last good text: {seen}")
        return
    try:
        fresh = _compiled(kernel, source)
    except (CompileError, MissingDependencyError) as error:
        _tell(file, f"the edit does not compile, and {kernel.name} runs the last good text. {error}")
        return
    _replaced.append(kernel._variants)
    vars(kernel).update(fresh)
    _tell(file, f"the edit is live in {kernel.name}")


def _source(kernel: Any, file: TextFile) -> tuple[KernelSource, Any, bool]:
    """Reads the files.

    Returns:
        The source with the text of the files, or the kernel's present source if the text has not changed or cannot be
        read; what the files contain, or why the text cannot be used; and whether the text can be used.
    """
    source: KernelSource = kernel.source
    try:
        text, beside = read(file.path, kernel.options, file.headers, kernel.constants)
        spliced, headers = with_header(text, kernel.name, {**beside, **file.headers}, kernel.filename)
        source = replace(kernel.source, text=spliced, headers=headers, answers={})
        if source == kernel.source:
            return kernel.source, (text, beside), True
        if (text, beside) != file.seen:
            _check(kernel, source)
        return source, (text, beside), True
    except (OSError, TypeError, ValueError, CompileError) as error:
        return source, str(error), False


def _check(kernel: Any, source: KernelSource) -> None:
    """Raises unless the kernel can have the text.

    Raises:
        ValueError: the text has no such kernel, the parameters have changed, or an included header is unknown.
        TypeError: the declaration of a parameter is wrong.
    """
    check_text(source.text, kernel.name)
    signature = source.signature(kernel.geometry.sizes, kernel.dtypes)
    if signature != kernel.signature:
        pairs = zip_longest(kernel.signature.parameters, signature.parameters)
        changed = ", ".join(f"`{(old or new).name}`" for old, new in pairs if old != new)
        raise ValueError(
            f"the declaration of {changed} has changed, and the callers pass the arguments of the old declaration. "
            f"Start the program again for new parameters"
        )
    known = kernel.source.left_out()
    if missing := next(
        (f"#include <{names[0]}>: {reason}" for reason, names in source.left_out().items() if reason not in known), ""
    ):
        raise ValueError(missing)


def _compiled(kernel: Any, source: KernelSource) -> dict[str, Any]:
    """Returns the attributes of a kernel with another text, compiled for the dtypes and GPUs that the kernel has run on.

    Raises:
        CompileError, MissingDependencyError: the text does not compile.
    """
    fresh = {"source": source, "_variants": {}, "_generated_variants": {}, "_simulated": {}}
    copied = copy.copy(kernel)
    vars(copied).update(fresh)
    names = list(kernel.signature.bindings)
    for device, *dtypes in list(kernel._variants):
        copied.variant(dict(zip(names, dtypes, strict=True)), device)
    # The keys in the simulator are its mode and the types.
    for dtypes in {key[1:] for key in vars(kernel).get("_simulated", ())} if host().enabled() else ():
        host().code(copied, dict(zip(names, dtypes, strict=True)))
    return fresh


def _capturing(kernel: Any) -> bool:
    """Returns whether a CUDA graph is captured on the current stream of a GPU that the kernel is loaded on."""
    devices = {key[0] for key in kernel._variants}
    if not devices:
        return False
    return capturing(devices)


def _tell(file: TextFile, words: str) -> None:
    print(f"cupyops: {file.path.name}: {words}", file=sys.stderr, flush=True)
