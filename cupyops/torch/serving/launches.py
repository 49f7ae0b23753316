"""Launches as operators of a graph, and the C++ that Inductor generates for them.

While an operator's body is traced on fake tensors, each launch becomes a call of an operator of its own: of the arrays, which it
writes or reads, the numbers, and the grid and the shared memory as PyTorch's symbols. PyTorch then sees a mutating operator. Its
functionalisation, its memory plan and its layouts hold, and the operations between launches are Inductor's.
"""

import itertools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cupyops.compile.file_scope import variables
from cupyops.compile.linking import parts
from cupyops.dtypes import DTYPES, FLOATS, bfloat16_bits
from cupyops.errors import ExportError
from cupyops.launch import driver, elements
from cupyops.launch.arguments import Arguments
from cupyops.launch.geometry import PORTABLE_CLUSTER, Geometry
from cupyops.launch.load import compiled, target_of
from cupyops.sizes import greatest, is_symbol, least

from .native import Binaries, c_type

__all__ = ["Launches"]

_NAMESPACE = "cupyops_launches"
_NUMBERS = itertools.count()  # of the operators of this process


@dataclass(frozen=True)
class _Value:
    """One parameter of a kernel in C++.

    Attributes:
        kind: ``"array"``, ``"accessor"`` (an array and the numbers after its address), ``"numbers"`` or ``"bytes"``.
        dtype: of the numbers.
        count: of the numbers.
        written: whether the kernel writes the array.
        alignment: of the array's address in bytes.
        data: the bytes.
    """

    kind: str
    dtype: str = ""
    count: int = 0
    written: bool = False
    alignment: int = 1
    data: bytes = b""

    def schema(self, i: int) -> list[str]:
        """Returns the declarations of the operator's arguments."""
        alias = f"(a{i}!)" if self.written else ""
        arrays = [f"Tensor{alias}? p{i}"] if self.kind in ("array", "accessor") else []
        kind = "float" if self.dtype in FLOATS else "bool" if self.dtype == "bool" else "SymInt"
        return [*arrays, *(f"{kind} p{i}_{k}" for k in range(self.count))]

    def lines(self, i: int, given: Sequence[str]) -> list[str]:
        """Returns the C++ lines that declare ``p{i}``, whose address the driver gets.

        Args:
            i: the place of the parameter.
            given: the C++ expressions of the operator's arguments.
        """
        if self.kind == "bytes":
            listed = ", ".join(map(str, self.data))
            return [f"alignas(16) static unsigned char p{i}[] = {{{listed}}};"]
        if self.kind == "array":
            return [f"void* p{i} = {_address(given[0], self.alignment)};"]
        kind = c_type(self.dtype)
        numbers = ", ".join(
            x if self.dtype in (*FLOATS, "bool") else f"cupyops::number<{kind}>({x})" for x in given[-self.count :]
        )
        if self.kind == "accessor":
            place = f"{_address(given[0], self.alignment)}, {{{numbers}}}"
            return [f"struct {{ void* data; {kind} numbers[{self.count}]; }} p{i} = {{{place}}};"]
        return [f"{kind} p{i}[] = {{{numbers}}};"]


def _address(tensor: str, alignment: int) -> str:
    return f"cupyops::address({tensor}, {alignment})" if tensor else "nullptr"


@dataclass(frozen=True)
class _Form:
    """The data that launches of one operator share: the kernel's C++ variable and its parameters."""

    variable: str
    values: tuple[_Value, ...]

    def schema(self, name: str) -> str:
        declared = [part for i, value in enumerate(self.values) for part in value.schema(i)]
        return f"{name}({', '.join([*declared, 'SymInt x', 'SymInt y', 'SymInt z', 'SymInt shared'])}) -> ()"

    def lines(self, given: Sequence[str]) -> list[str]:
        """Returns the C++ of a launch for the C++ expressions of the operator's arguments."""
        found, place = ["{"], 0
        for i, value in enumerate(self.values):
            taken = len(value.schema(i))
            found += value.lines(i, given[place : place + taken])
            place += taken
        listed = ", ".join(f"&p{i}" for i in range(len(self.values)))
        found.append(f"void* given[] = {{{listed}}};")
        found.append(f"{self.variable}.launch({', '.join(given[place:])}, stream, given);")
        return [*found, "}"]


class Launches:
    """The launches of one package.

    Args:
        architectures: the compute capabilities for which the package has binaries.

    Attributes:
        operator: the name of the operator whose body is traced, for messages.
        kept: the storages of the tensors that this operator does not write.
        conditions: conditions of symbols under which the traced steps are those of the bodies.
    """

    def __init__(self, architectures: Sequence[int]) -> None:
        self.architectures = tuple(architectures)
        self.operator = ""
        self.kept: set[int] = set()
        self.conditions: list[Any] = []
        self.binaries = Binaries()
        self._forms: dict[_Form, Any] = {}
        self._library = torch.library.Library(_NAMESPACE, "FRAGMENT")

    def close(self) -> None:
        """Takes the operators back."""
        from torch._inductor import lowering

        for overload in self._forms.values():
            lowering.lowerings.pop(overload, None)
            lowering.lowerings.pop(overload.overloadpacket, None)
        self._library._destroy()

    def refuse(self, why: str) -> ExportError:
        return ExportError(f"package: {self.operator} cannot be packaged: {why}")

    def plan(self, kernel: Any, arguments: Arguments, threads: Sequence[Any]) -> None:
        """Calls the operator of a launch, which the trace records. The planner of :func:`cupyops.launch.recording.while_planning`."""
        types = arguments.types
        values, given = self._values(kernel, arguments)
        device: Any = arguments.lead.device if arguments.lead.place == "cuda" else None
        geometry, name = kernel.geometry, kernel.describe(types)
        sizes = [*threads] or [arguments.values[s] for s in geometry.sizes]
        counts = [*sizes, 1, 1][:3] if geometry.per_call else sizes
        target = target_of(kernel, types, 1 if device is None else driver.multiprocessors(device))
        # The method of the class itself: the checks of a grid's limits would compare symbols, and the driver checks
        # them.
        grid = Geometry.grid_for(geometry, target, {"min": least, "max": greatest})(*counts)
        shared = kernel.hardware.shared
        if kernel.shared_bytes is not None:
            shared = kernel.shared_bytes.function(*(arguments.values[n] for n in kernel.shared_bytes.names))
        binaries, entry = self._binaries(kernel, types, name)
        how = kernel.hardware.cooperative, geometry.cluster > PORTABLE_CLUSTER
        form = _Form(self.binaries.kernel(name, entry, binaries, geometry.threads, *how), tuple(values))
        self._operator(form, kernel.name)(*given, *grid, shared)

    def _values(self, kernel: Any, arguments: Arguments) -> tuple[list[_Value], list[Any]]:
        """Returns the parameters of a launch, and the arguments of its operator."""
        types, values, given = arguments.types, list[_Value](), list[Any]()
        if arguments.held:
            raise self.refuse(f"a struct of {kernel.name} holds arrays")
        for p in kernel.signature.parameters:
            value = arguments.values[p.name]
            if p.map_of is not None or (p.element is not None and p.element.handle and not p.pointer):
                raise self.refuse(f"`{p.name}` of {kernel.name} is a {'tensor map' if p.map_of else p.element.handle}")
            if p.pointer or p.accessor is not None:
                written = not p.const and value is not None and value.untyped_storage()._cdata not in self.kept
                alignment = p.element.alignment if p.element is not None and p.shape is None else 1
                given.append(value)
                if p.accessor is None:
                    values.append(_Value("array", written=written, alignment=max(alignment, 1)))
                    continue
                bits, numbers = p.accessor.bits, [*arguments.accessors[p.name]]
                numbers += [0] * (p.accessor.counted and bits == 32)  # to a multiple of 8 bytes
                values.append(_Value("accessor", f"int{bits}", len(numbers), written))
            elif p.element is not None and p.element.record is not None:
                try:
                    data = elements.packed(kernel.name, p, value)
                except (TypeError, ValueError) as error:
                    raise self.refuse(str(error)) from error
                values.append(_Value("bytes", data=data))
                continue
            else:
                dtype = p.c_type(types)
                numbers = [*value] if p.length is not None else [value]
                numbers = [self._number(kernel, p.name, dtype, number) for number in numbers]
                values.append(_Value("numbers", "uint16" if c_type(dtype) == "uint16_t" else dtype, len(numbers)))
            given += numbers
        return values, given

    def _number(self, kernel: Any, name: str, dtype: str, number: Any) -> Any:
        """Returns a number as an argument of the operator. 16-bit floats become their bits."""
        if is_symbol(number):
            if dtype in ("float16", "bfloat16", "bool"):
                raise self.refuse(f"`{name}` of {kernel.name} is a {dtype} that depends on a size")
            return torch.sym_float(number) if dtype in FLOATS else number
        driver.check_scalar(kernel.name, name, DTYPES[dtype], number)
        if dtype == "bfloat16":
            return bfloat16_bits(number)
        if dtype == "float16":
            return struct.unpack("=H", struct.pack("=e", number))[0]
        if dtype == "uint64":
            return int(number) - (int(number) >> 63 << 64)
        return float(number) if dtype in FLOATS else bool(number) if dtype == "bool" else int(number)

    def _binaries(self, kernel: Any, types: Mapping[str, str], what: str) -> tuple[list[tuple[int, bool, bytes]], str]:
        """Returns the binaries for all architectures, and the kernel's name in them."""
        found, name = [], ""
        for architecture in self.architectures:
            if not kernel.runs_on(architecture):
                raise self.refuse(f"{what} needs {kernel.hardware}, and the package is for sm_{architecture}, too")
            text, binary = compiled(kernel, types, architecture)
            if set := [name for name in variables(parts(text)[0]) if name in kernel.storage.given]:
                raise self.refuse(
                    f"Python has set the variable `{set[0]}` of {what}, and a package has the text's values"
                )
            name = kernel.source.named(binary)
            found.append((architecture, kernel.hardware.exactly, binary.code))
        return found, name

    def _operator(self, form: _Form, kernel: str) -> Any:
        found = self._forms.get(form)
        if found is None:
            name = f"{''.join(c if c.isalnum() else '_' for c in kernel)}_{next(_NUMBERS)}"
            self._library.define(form.schema(name), tags=(torch.Tag.needs_exact_strides,))
            torch.library.register_fake(f"{_NAMESPACE}::{name}", _nothing, lib=self._library)
            found = self._forms[form] = getattr(getattr(torch.ops, _NAMESPACE), name).default
            _lower(found, form, self)
        return found


def _nothing(*_: Any) -> None:
    pass


def _lower(overload: Any, form: _Form, launches: Launches) -> None:
    """Registers Inductor's lowering of a launch."""
    from torch._inductor import ir, lowering
    from torch._inductor.codegen.cpp_utils import cexpr
    from torch._inductor.virtualized import V
    from torch._library.utils import get_layout_constraint_tag

    limits = "std::numeric_limits<double>"

    def number(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float):
            names = {"nan": f"{limits}::quiet_NaN()", "inf": f"{limits}::infinity()", "-inf": f"-{limits}::infinity()"}
            return names.get(repr(value), repr(value))
        value = value.node.expr if is_symbol(value) else value
        found: str = cexpr(V.graph.sizevars.simplify(value)) if hasattr(value, "free_symbols") else f"{value}LL"
        return found

    class LaunchCall(ir.FallbackKernel):
        def codegen(self, wrapper: Any) -> None:
            if not V.graph.aot_mode:
                raise launches.refuse("only AOTInductor compiles its launches")
            if not getattr(wrapper, "has_cupyops_launches", False):
                wrapper.has_cupyops_launches = True
                wrapper.header.splice(launches.binaries.source())
                for condition in launches.conditions:
                    message = f'"this package was made for sizes with {condition}"'
                    wrapper.writeline(f"if (!({cexpr(condition)})) throw std::runtime_error({message});")
            inputs: Any = self.inputs
            tensors = [_Reference(x.codegen_reference()) for x in inputs]
            args, kwargs = self.unflatten_args(tensors, self.constant_args)
            declared = [a.name for a in overload._schema.arguments]
            given = [*args, *(kwargs[name] for name in declared[len(args) :])]
            words = ["" if x is None else x if isinstance(x, _Reference) else number(x) for x in given]
            for line in form.lines(words):
                wrapper.writeline(line)

    constraint = lowering.tag_to_layout_constraint(get_layout_constraint_tag(overload, with_default=True))
    lowering.make_fallback(overload, layout_constraint=constraint, warn=False, override_decomp=True)

    def lowered(*args: Any, **kwargs: Any) -> None:
        LaunchCall.create(overload, *args, **kwargs)

    lowering.register_lowering(overload, type_promotion_kind=None)(lowered)


class _Reference(str):
    """The C++ expression of a tensor."""
