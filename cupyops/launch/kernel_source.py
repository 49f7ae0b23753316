"""The text of a kernel with everything that determines the compiled code: constants, headers and options."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import kernels_cu
from cupyops.compile.absent import give
from cupyops.compile.ask import asking_types
from cupyops.compile.cache import Binary
from cupyops.compile.cuda_text import scan
from cupyops.compile.declarations import WORD, declared_names
from cupyops.compile.device_half import NO_CLANG, device_half, may_have_host_half
from cupyops.compile.linking import joined
from cupyops.compile.preprocess import known_macros
from cupyops.compile.project_headers import includes
from cupyops.compile.source import KERNEL, assemble, included
from cupyops.compile.system_headers import found_in, header
from cupyops.dtypes import FLOATS
from cupyops.errors import CompileError
from cupyops.sharing import computed_once

from .asked import Asked, answered, without_body
from .definitions import declarations, declares, entry_in, entry_of, only, split_name, without_overloads
from .given_text import LinkedText, file_name, numbers
from .locate import located
from .scanned import Scanned
from .signature import Signature

__all__ = ["KernelSource", "signature_of"]


_DEFAULT_DEVICE = frozenset(("-default-device", "--device-as-default-execution-space"))


@dataclass(frozen=True)
class KernelSource:
    """One ``__global__`` function of a CUDA C++ text.

    Attributes:
        text: CUDA C++.
        name: the name of the ``__global__`` function, also with namespaces and template arguments.
        filename: the file name of the text in messages.
        constants: values of macros.
        headers: header texts by name for ``#include "name"``, in addition to the shared headers.
        options: NVRTC options in addition to :data:`cupyops.compile.compiler.OPTIONS`.
        declared_in: the Python file that holds the text, or None.
        linked: the texts that are linked with this text.
        module: the names of the kernels of a :class:`.module.Module`, which has them in one binary; empty for a kernel
            with a binary of its own.
        answers: the compiler's answers so far, by the keys of the questions.
    """

    text: str
    name: str
    filename: str
    constants: Mapping[str, int]
    headers: Mapping[str, str]
    options: tuple[str, ...]
    declared_in: Any
    linked: tuple[LinkedText, ...] = ()
    module: tuple[str, ...] = ()
    answers: dict[str, tuple[str, ...]] = field(default_factory=dict, compare=False)

    def final(
        self,
        types: Mapping[str, str],
        twins: Mapping[str, str] | None = None,
    ) -> str:
        """Returns the final text for NVRTC under a choice of types, ``{"scalar_t": "float16"}``.

        Args:
            types: typedef name to dtype name.
            twins: headers by name that replace headers of ``kernels_cu``. The simulator replaces headers with PTX.
        """
        types = {
            name: dtype for name, dtype in types.items() if name.isidentifier()
        }  # the others are types of the text
        texts = self._of_device()
        if not self.module:
            texts = {name: only(source, self.name) for name, source in texts.items()}
        own, named, headers = self._assembled(texts, self.kernels(), types, twins)
        # The compiler reports the types of the kernels: see Signature.compare. Variables that are templates came with C++14.
        old = any(re.fullmatch(r"--?std=\S*(?:03|11)", option) for option in self.options)
        own += "" if old or "" in named else asking_types(named)
        common: Any = {"simulated": twins is not None, "options": self.options}
        others = []
        for t in self.linked:
            texts = self._half(t.text, {**self.headers, **t.headers}, WORD.findall(t.text)) or {}
            known = {**headers, **t.headers, **texts}
            others.append(assemble(known.pop("", t.text), t.filename, types, self.constants, known, **common))
        return joined([own, *others]) if self.linked else own

    def _assembled(
        self,
        own_texts: dict[str, str],
        kernels: Sequence[str],
        types: Mapping[str, str],
        twins: Mapping[str, str] | None,
        asked: bool = False,
    ) -> tuple[str, list[str], dict[str, str]]:
        """Returns the final text of an author's text, the address of each kernel in it as an expression of C++, and the headers.

        Args:
            own_texts: the author's text, by ``""``, and the headers, by name.
            asked: the text is compiled for its types alone, so that a kernel needs no name in a binary.
        """
        text = own_texts.pop("")
        headers = {**(twins or {}), **own_texts}
        common: Any = {"simulated": twins is not None, "options": self.options}
        entries = [entry_in(self.text, name) for name in kernels]
        for i, (name, entry) in enumerate(zip(kernels, entries, strict=True)):
            # NVRTC finds an extern "C" function by its symbol. The simulator takes the address of its name.
            if (entry is None and (asked or twins is not None)) or (entry is not None and (asked or not self.module)):
                text, new_name = without_overloads(text, name, [*headers.values()])
                if new_name:
                    entries[i] = (entry or entry_of(name, declarations(scan(self.text), name)[0], ())).renamed(new_name)
        named: dict[str, Any] = {}
        if any(entries):
            named["kernels"] = [
                entry.expression(name, types, self._shared) if entry else split_name(name)[0]
                for name, entry in zip(kernels, entries, strict=True)
            ]
            named["own"] = frozenset[str]().union(*(entry.names for entry in entries if entry))
        try:
            own = assemble(text, self.filename, types, self.constants, headers, **named, **common)
        except ValueError as error:
            raise ValueError(f"{error}{self._lacking_clang()}") from None
        addresses = []
        for i, (name, entry) in enumerate(zip(kernels, entries, strict=True)):
            function = declarations(scan(self.text), name)[0]
            overloaded = entry is None and any(declares(other, function.name) for other in (text, *headers.values()))
            addresses.append(f"&{KERNEL}{i or ''}" if entry else "" if overloaded else f"&{function.path}")
        return own, addresses, headers

    @property
    def identity(self) -> list[object]:
        """A key for the types of the parameters."""
        own = {name: kernels_cu.headers()[name] for name in self.included() if name not in self.headers}
        return [
            self.text,
            self.name,
            *map(sorted, (self.constants.items(), self.headers.items(), own.items())),
        ]

    def declaration(self, types: Mapping[str, str], twins: Mapping[str, str] | None) -> tuple[str, str]:
        """Returns a final text that declares the kernel without a body, and the kernel's address as an expression of C++. The
        arguments are those of :meth:`final`."""
        types = {name: dtype for name, dtype in types.items() if name.isidentifier()}
        texts = {name: only(source, self.name) for name, source in self._of_device().items()}
        texts[""] = without_body(texts[""], self.name)
        own, (address,), _ = self._assembled(texts, (self.name,), types, twins, asked=True)
        return own, address

    @property
    def _shared(self) -> dict[str, int]:
        """The constants without the arguments of the kernel's template, which are its own in a module."""
        mine = numbers(self.text, self.name) if self.module else {}
        return {name: value for name, value in self.constants.items() if name not in mine}

    def ask(self, types: Mapping[str, str], positions: Sequence[int] = ()) -> Asked:
        """Returns the compiler's answers about the parameters of the kernel.

        Args:
            types: the dtypes of the types that the arrays decide.
            positions: the places of the parameters whose classes are asked for.

        Raises:
            CompileError: the compiler refuses the text.
            MissingDependencyError: there is no compiler.
        """
        try:
            return Asked(self, types, positions)
        except CompileError as error:
            raise self.located(error) from error.__cause__

    def _of_device(self) -> dict[str, str]:
        """Returns the text (under ``""``) and the headers (by name). If they may have host code, only what kernels
        reach remains."""
        return {**self.headers, "": self.text, **(self._half(self.text, self.headers, self._roots()) or {})}

    def _roots(self) -> list[str]:
        return [*self.kernels(), *self.defines.values()]

    def _half(self, text: str, headers: Mapping[str, str], names: Sequence[str]) -> dict[str, str] | None:
        """Returns the code that names reach, of a text (under ``""``) and of the headers that it includes; None if
        libclang is not installed. Returns nothing of a text without host code, as all texts are with NVRTC's option
        ``-default-device``."""
        if isinstance(self.text, kernels_cu.Text) or not _DEFAULT_DEVICE.isdisjoint(self.options):
            return {}
        own = {name: source for name, source in included(text, headers).items() if name in headers}
        # The arguments of a template are not macros for clang, which would replace the parameters in their declaration.
        arguments = {name for kernel in self.kernels() for name in numbers(self.text, kernel)}
        macros = {name: value for name, value in self.defines.items() if name not in arguments}
        if not may_have_host_half(text, own, macros):
            return {}
        return device_half(text, own, macros, self.options, names)

    def _lacking_clang(self) -> str:
        """Returns a line for messages if the text may have host code and libclang is not installed."""
        return f"\n{NO_CLANG}" if self._half(self.text, self.headers, self._roots()) is None else ""

    @computed_once
    def scanned(self) -> Scanned:
        """The declaration of the kernel. See :class:`.Scanned` for the errors."""
        return Scanned(self.text, self.name, self.included(), self.defines)

    def signature(self, sizes: Sequence[str], dtypes: Sequence[str] = FLOATS, *, asked: bool = True) -> Signature:
        """Returns the parameters of the kernel.

        Args:
            sizes: the size parameters of the geometry.
            dtypes: the dtypes of the types that the arrays decide.
            asked: whether the compiler is asked for the types that the text leaves open.

        Raises:
            TypeError, ValueError: no call can match the declaration.
            CompileError: the compiler refuses the text.
        """
        scanned = self.scanned
        types = answered(scanned, self.ask, dtypes) if asked else scanned.parameters
        found = Signature.of(scanned, types)
        found.check(sizes, self.constants)
        return found

    @property
    def defines(self) -> dict[str, str]:
        """The macros that the constants and the options ``-D`` define."""
        return known_macros(self.constants, self.options)

    def kernels(self) -> tuple[str, ...]:
        """Returns the names of the kernels that the final text has."""
        return self.module or (self.name,)

    def named(self, binary: Binary) -> str:
        """Returns the name of the kernel in a binary of the final text."""
        return binary.named(self.name, self.kernels().index(self.name))

    def included(self) -> dict[str, str]:
        """Returns the headers that the text includes, by name."""
        return included(self.text, self.headers)

    def left_out(self) -> dict[str, list[str]]:
        """Returns the headers that the text names and that the compiler does not see, by the reason."""
        known, found = self.included(), dict[str, list[str]]()
        for name in dict.fromkeys(name for text in (self.text, *known.values()) for name, *_ in includes(text)):
            row = header(name)
            if name not in known and not found_in(self.options, name) and (row is None or row.host):
                found.setdefault(row.reason if row else give(name), []).append(name)
        return found

    def located(self, error: CompileError) -> CompileError:
        """Returns the error with the lines of the Python file that holds the text, in addition to the text's lines, and with
        the code that the compiler does not see."""
        words = str(error)
        cut = declared_names(self.text) - declared_names(self._of_device()[""])
        words += "".join(
            f"\n`{name}` is host code, which is left out: declare what a kernel uses __device__"
            for name in sorted(cut.intersection(re.findall(r"[\"'](\w+)[\"']", words)))
        )
        words += "".join(f"\nleft out: #include <{'>, <'.join(n)}>: {reason}" for reason, n in self.left_out().items())
        return CompileError(located(words + self._lacking_clang(), self.filename, self.text, self.declared_in))


def signature_of(text: str, kernel: str) -> Signature:
    """Returns the parameters of a kernel of a text that is not compiled yet. The numbers and types of a template that nothing decides
    are 1 and float32.

    Raises:
        TypeError, ValueError: no call can match the declaration.
        CompileError: the compiler refuses the text.
    """
    entry = entry_in(text, kernel)
    left = [p for p in entry.parameters if p.name not in entry.arguments()] if entry else []
    constants = {p.name: 1 for p in left if p.kind == "value" and p.name and p.default is None}
    source = KernelSource(text, kernel, file_name(kernel), {**numbers(text, kernel), **constants}, {}, (), "")
    return Signature.of(source.scanned, answered(source.scanned, source.ask, FLOATS))
