"""Checks the arguments of a call against the kernel's declaration, before the launch.

A call that does not fit the declaration raises ``TypeError`` or ``ValueError``. The message names the kernel, the
parameter, the expected value and the given value.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from cupyops.arrays import ArrayLibrary, Info, is_contiguous, is_dense, library_of, overlaps
from cupyops.dtypes import DTYPES, as_view
from cupyops.errors import expected, nearest

from . import accessors, current, driver, elements
from .elements import Held, held_arrays, placed
from .signature import Parameter, Signature
from .tensor_map import TensorMap

__all__ = ["Arguments", "bind", "check"]


class Arguments(NamedTuple):
    """The checked arguments of one launch.

    Attributes:
        values: arguments by parameter name.
        library: the library of the arrays.
        infos: properties of the arrays by parameter name, without the arrays that are None.
        types: the dtype of each undeclared type, ``{"scalar_t": "float16"}``, taken from the arrays.
        lead: the first array; the launch runs on its device. Without arrays, the current device.
        accessors: the sizes and strides of the arrays whose parameters are accessors.
        held: the arrays that structs by value point to. `infos` has them by their names, ``params.weights``.
    """

    values: dict[str, Any]
    library: ArrayLibrary
    infos: dict[str, Info]
    types: dict[str, str]
    lead: Info
    accessors: Mapping[str, tuple[int, ...]] = MappingProxyType({})
    held: tuple[Held, ...] = ()

    def count_written(self, signature: Signature) -> None:
        """Passes the outputs of the launch to the array library, which records that they are written."""
        outputs = [self.values[p.name] for p in signature.parameters if not p.const and p.name in self.infos]
        outputs += [one.array for one in self.held if not one.parameter.const]
        self.library.written(outputs)

    @property
    def gpu(self) -> int:
        """Index of the GPU whose memory holds the arrays."""
        assert self.lead.device is not None
        return self.lead.device

    @property
    def addresses(self) -> list[Any]:
        """The addresses and numbers that the driver takes, a tuple for an accessor. The arrays must be on a GPU."""
        found = [self.infos[n].pointer if n in self.infos else 0 if v is None else v for n, v in self.values.items()]
        for i, name in enumerate(self.values if self.accessors else ()):
            if name in self.accessors:
                found[i] = (found[i], *self.accessors[name])
        return found


def bind(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments by parameter name, in the order of the parameters.

    Raises:
        TypeError: an argument is missing, unknown or given twice.
    """
    names = kernel.signature.names
    if len(args) > len(names):
        raise TypeError(f"{kernel.name} takes {len(names)} arguments ({', '.join(names)}), got {len(args)}")
    values = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise TypeError(
                f"{kernel.name} has no parameter `{name}`{nearest(name, names)}; it takes {', '.join(names)}"
            )
        if name in values:
            raise TypeError(f"{kernel.name}: parameter `{name}` is given twice")
        values[name] = value
    values |= {p.name: None for p in kernel.signature.parameters if p.optional and p.name not in values}
    missing = [f"`{n}`" for n in names if n not in values]
    if missing:
        raise TypeError(f"{kernel.name}: missing {', '.join(missing)}; it takes {', '.join(names)}")
    return {name: values[name] for name in names}


def check(kernel: Any, values: dict[str, Any], *, vouched: bool = False) -> Arguments:
    """Checks bound arguments against the declaration. With fake arrays, numbers and element counts are not checked.

    Args:
        vouched: the caller guarantees that the outputs may be written to. Read-only outputs and outputs that require
            grad are then accepted. The caller may pass any array for an output that the kernel does not write.

    Raises:
        TypeError: an argument has another type than kernel.
        ValueError: the arrays are on different devices; an array has another layout or size than declared; a number is
            out of range; an array has PyTorch's negative bit; an output is read-only.
        RuntimeError: an output requires grad while gradients are recorded.
    """
    held: list[Held] = []
    for p in kernel.signature.objects:
        plain, more = held_arrays(p, values[p.name])
        if plain is not values[p.name]:
            values, held = {**values, p.name: plain}, held + more
    if held or any(p.pointer and not (p.nullable and values[p.name] is None) for p in kernel.signature.parameters):
        library, infos = _infos(kernel, values, held)
        types = _types(kernel, infos)
        lead = _check_arrays(kernel, infos, types, vouched, held)
    else:
        (library, lead), infos = current.place(kernel.name), {}
        types = _types(kernel, infos)
    if not lead.fake:
        _check_scalars(kernel, values, infos, types)
        if objects := kernel.signature.objects:
            simulated = lead.place == "cpu"
            packed = {p.name: elements.packed(kernel.name, p, values[p.name], simulated) for p in objects}
            pointers = {one.parameter.name: infos[one.parameter.name].pointer for one in held}
            values |= {name: placed(name, given, held, pointers) for name, given in packed.items()}
    if given := {
        p.name: accessors.numbers(p.accessor, infos[p.name])
        for p in kernel.signature.accessors
        if p.accessor is not None
    }:
        return Arguments(values, library, infos, types, lead, given, tuple(held))
    return Arguments(values, library, infos, types, lead, held=tuple(held))


def _infos(kernel: Any, values: Mapping[str, Any], held: Sequence[Held]) -> tuple[ArrayLibrary, dict[str, Info]]:
    libraries, infos = {}, {}
    for p in kernel.signature.parameters:
        if not p.pointer or (p.nullable and values[p.name] is None):
            continue
        try:
            library = library_of(values[p.name])
        except TypeError:
            got = values[p.name]
            wanted = "be a CuPy array or a PyTorch tensor" + (" or None" if p.nullable else "")
            numpy = type(got).__module__ == "numpy" and type(got).__name__ == "ndarray"
            mend = ". NumPy arrays are taken within `with cupyops.simulate():`, on a CPU" if numpy else ""
            raise TypeError(f"{expected(kernel.name, p.name, wanted, type(got).__name__)}{mend}") from None
        libraries[library.name] = library
        info = library.info(values[p.name])
        infos[p.name] = info if p.element is None else elements.seen(kernel.name, p, values[p.name], info)
    for one in held:
        library = library_of(one.array)
        libraries[library.name] = library
        infos[one.parameter.name] = library.info(one.array)
    if len(libraries) != 1:
        what = f"arrays of {' and '.join(libraries)}" if libraries else "no array at all"
        raise TypeError(f"{kernel.name}: a launch takes arrays of one library, got {what}")
    return next(iter(libraries.values())), infos


def _types(kernel: Any, infos: Mapping[str, Info]) -> dict[str, str]:
    types: dict[str, str] = {}
    for name, positions in kernel.signature.bindings.items():
        candidates = [kernel.signature.parameters[i].name for i in positions]
        given = next((a for a in candidates if a in infos), None)
        types[name] = infos[given].dtype if given is not None else ""
        if kernel.signature.parameters[positions[0]].untyped:
            continue  # the compiler knows the type
        if given is not None and types[name] not in kernel.dtypes:
            got = types[name] + as_view(given, types[name])
            raise TypeError(expected(kernel.name, given, f"have dtype {' or '.join(kernel.dtypes)}", got))
    for name in [name for name, dtype in types.items() if not dtype and name.isidentifier()]:
        # All arrays of this type are None, so the kernel does not use the type. It gets the dtype of scalar_t.
        types[name] = types.get("scalar_t", "")
        if not types[name]:
            arrays = ", ".join(f"`{kernel.signature.parameters[i].name}`" for i in kernel.signature.bindings[name])
            raise TypeError(f"{kernel.name}: give at least one of {arrays}: they decide what {name} is")
    return types


def _check_arrays(
    kernel: Any, infos: Mapping[str, Info], types: Mapping[str, str], vouched: bool, held: Sequence[Held]
) -> Info:
    first, lead = next(iter(infos.items()))
    for p in (*kernel.signature.parameters, *(one.parameter for one in held)):
        if p.name not in infos:
            continue
        info, wanted = infos[p.name], p.c_type(types)
        if info.dtype != wanted and not (p.untyped and p.type not in types):
            because = f" ({p.type}, as the arrays before it)" if p.type in types else ""
            got = info.dtype + as_view(p.name, info.dtype)
            raise TypeError(expected(kernel.name, p.name, f"have dtype {wanted}{because}", got))
        if (info.place, info.device) != (lead.place, lead.device):
            raise ValueError(expected(kernel.name, p.name, f"be on the device of `{first}` ({lead})", info))
        if info.fake != lead.fake:
            got = "one without memory (fake)" if info.fake else "one with memory"
            raise ValueError(expected(kernel.name, p.name, f"be an array of the kind of `{first}`", got))
        _check_access(kernel, p, info, vouched)
        if p.element is not None:
            elements.check_elements(kernel.name, p, info)
        if p.accessor is not None:
            accessors.check_accessor(kernel.name, p, info, kernel.constants)
    shaped = [(p, infos[p.name]) for p in kernel.signature.parameters if p.name in infos and p.shape is not None]
    # Layouts are compared and not hashed, because sizes may be symbols under torch.compile.
    one_layout = kernel.geometry.any_layout and all(
        (i.shape, i.strides) == (shaped[0][1].shape, shaped[0][1].strides) for _, i in shaped
    )
    for p, info in shaped:
        if not (is_contiguous(info) or (one_layout and is_dense(info.shape, info.strides))):
            alike = ", or dense and laid out like the other arrays" if kernel.geometry.any_layout else ""
            got = f"strides {info.strides} for shape {info.shape}"
            raise ValueError(
                f"{expected(kernel.name, p.name, f'be contiguous{alike}', got)}. Pass a contiguous array, or declare "
                f"`{p.name}` without a shape and give its strides to the text"
            )
    return lead


def _check_access(kernel: Any, p: Parameter, info: Info, vouched: bool) -> None:
    """Raises if the memory holds negated values, or if an output must not be written to."""
    if info.negated:
        wanted = "not have the negative bit, since a kernel sees the memory"
        instead = f"{p.name}.resolve_neg()" if p.const else f"a tensor of its own, as torch.empty_like({p.name})"
        got = "one that has it (as x.conj().imag), whose memory holds the negated values"
        raise ValueError(f"{expected(kernel.name, p.name, wanted, got)}. Pass {instead}")
    if p.const or vouched:
        return
    if info.read_only:
        raise ValueError(expected(kernel.name, p.name, "be writable", "a read-only array"))
    if not info.fake and overlaps(info.shape, info.strides):
        wanted = "have memory of its own for each element, since a kernel writes it"
        got = f"shape {tuple(info.shape)} with strides {tuple(info.strides)}, as of an expanded view"
        raise ValueError(f"{expected(kernel.name, p.name, wanted, got)}. Pass a copy: {p.name}.clone()")
    if info.recorded:
        wanted = "not require grad while gradients are recorded, since autograd does not see what a kernel writes"
        raise RuntimeError(
            f"{expected(kernel.name, p.name, wanted, 'one that does')}. Launch under torch.no_grad(), or pass "
            f"{p.name}.detach()"
        )


def _check_scalars(kernel: Any, values: Mapping[str, Any], infos: Mapping[str, Info], types: Mapping[str, str]) -> None:
    for p in kernel.signature.parameters:
        if p.map_of is not None:
            _check_map(kernel, p, values, infos)
        elif not p.pointer and (p.element is None or p.length is not None):
            _check_scalar(kernel, p, values[p.name], types)
    counted = (t for p in kernel.signature.parameters for t in p.shape or () if t in values)
    for size in (*kernel.geometry.sizes, *counted):
        if values[size] < 0:
            raise ValueError(expected(kernel.name, size, "be at least 0", values[size]))
    for p in kernel.signature.parameters:
        if p.name in infos and p.shape is not None:
            count = 1
            for term in p.shape:
                count *= int(term) if term.isdigit() else int(values.get(term, kernel.constants.get(term)))
            if infos[p.name].size != count:
                shape = " x ".join(p.shape) or "1"
                raise ValueError(expected(kernel.name, p.name, f"hold {shape} = {count} elements", infos[p.name].size))


def _check_map(kernel: Any, p: Parameter, values: Mapping[str, Any], infos: Mapping[str, Info]) -> None:
    """Raises unless the tensor map given for a parameter ``x_map`` describes the array given for ``x``.

    If the array is None, any tensor map is accepted.
    """
    found, array = values[p.name], infos.get(p.map_of or "")
    if not isinstance(found, TensorMap):
        raise TypeError(expected(kernel.name, p.name, "be a TensorMap", type(found).__name__))
    if array is not None and (found.address, found.size) != (array.pointer, array.size):
        wanted = f"be a map of `{p.map_of}`, {array.size} elements at {array.pointer:#x}"
        raise ValueError(expected(kernel.name, p.name, wanted, f"one of {found.size} at {found.address:#x}"))
    if array is not None and found.simulated != (array.place == "cpu"):
        wanted = f"be made with simulated={not found.simulated}, for an array on {array.place}"
        raise ValueError(expected(kernel.name, p.name, wanted, f"one with simulated={found.simulated}"))


def _check_scalar(kernel: Any, p: Parameter, value: Any, types: Mapping[str, str]) -> None:
    if p.length is not None:
        count = int(kernel.constants.get(p.length, p.length))
        if not isinstance(value, tuple) or len(value) != count:
            kind = f"numbers ({p.element.name})" if p.element else "integers"
            raise TypeError(expected(kernel.name, p.name, f"be a tuple of {count} {kind}", repr(value)))
    dtype, numbers = DTYPES[p.c_type(types)], value if p.length is not None else (value,)
    for number in numbers:
        driver.check_scalar(kernel.name, p.name, dtype, number)
