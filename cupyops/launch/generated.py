"""Generates a launch function for each kernel's signature, as :mod:`dataclasses` generates ``__init__``.

A launch takes the driver about 2 microseconds, and a Python loop over the parameters would take longer. The generated
launch checks all conditions of a correct call in one expression without a loop, and reads the addresses of the tensors.
If a condition fails, or the kernel is not loaded for these dtypes, the generated launch calls the checked launch. The
checked launch then raises an error or loads the kernel. ``print(source_of(kernel.launch))`` prints the generated code
(:mod:`cupyops.codegen`).
"""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cupyops.arrays import overlaps
from cupyops.codegen import free_name, free_names, write
from cupyops.sharing import held_across_fork

from . import accessors, driver, elements
from .arguments import Arguments
from .geometry import Geometry
from .signature import Parameter, Signature
from .tensor_map import TensorMap
from .untraced import hide, untraced

__all__ = ["TensorAccess", "deciding", "open_launch", "write_launch"]

# Names that the code of the generated launch uses. A kernel parameter with such a name is renamed.
_OWN_WORDS = frozenset(
    "launch device variant variants plain current_device unit min max gx gy gz buffer checked launch_kernel stream type "  # noqa: SIM905
    "IndexError Exception TensorMap grad_enabled written packed any overlaps".split()
)


@dataclass(frozen=True)
class TensorAccess:
    """The functions of an array library that a generated launch calls.

    The arrays have ``get_device``, ``data_ptr``, ``is_contiguous``, ``numel``, ``dtype``, ``is_neg`` and
    ``requires_grad``.

    Attributes:
        plain: the array types of the generated launch. Subclasses (fake tensors, wrappers) take the checked launch.
        current_device: returns the index of the calling thread's GPU.
        stream: returns the handle of a GPU's current stream.
        devices: returns the number of GPUs. With one GPU, the generated launch does not check the current device.
        grad_enabled: returns whether autograd is recording.
        written: records that a launch has written into the given arrays.
    """

    plain: frozenset[type]
    current_device: Callable[[], int]
    stream: Callable[[int], int]
    devices: Callable[[], int]
    grad_enabled: Callable[[], bool] = lambda: False
    written: Callable[[Sequence[Any]], None] = lambda arrays: None


def launch_source(
    signature: Signature,
    geometry: Geometry,
    constants: Mapping[str, int],
    *,
    one_device: bool = False,
    vouched: bool = False,
) -> str:
    """Returns the text of the generated launch.

    Args:
        signature, geometry, constants: those of the kernel.
        one_device: there is one GPU, so the current device is not checked.
        vouched: the caller has checked shapes and layouts, and has allocated the outputs. Only the dtypes and devices
            of the inputs are checked. Autograd has saved no new output, so the version counters are not incremented.

    >>> from cupyops.launch.geometry import Threads
    >>> text = 'extern "C" __global__ void k(const float* x, // (n)\\n long long n) {}'
    >>> print(launch_source(Signature.parse(text, "k"), Threads("n"), {}))  # doctest: +NORMALIZE_WHITESPACE
    def launch(x, n):
        try:
            device = x.get_device()
            variant = variants.get((device, x.dtype))
            if not (
                variant is None
                or type(x) not in plain
                or current_device() != device
                or not x.is_contiguous()
                or x.numel() != n
                or x.is_neg()
            ):
                unit = variant.unit
                gx, gy, gz = -(-n // 256), 1, 1
                if not gx:
                    return None
                try:
                    buffer = variant.buffers.pop()
                except IndexError:
                    buffer = variant.new_buffer()
                variant.pack_into(buffer[0], 0, x.data_ptr(), n)
                launch_kernel(
                    variant.function, gx, gy, gz, 256, 1, 1, variant.shared,
                    stream(device), buffer[1], 0)
                variant.buffers.append(buffer)
                return None
        except Exception:
            pass
        return checked(x, n)
    """
    taken = set(_OWN_WORDS)
    names = free_names(signature.names, taken)
    arguments = ", ".join(names.values())
    arrays = [p for p in signature.parameters if p.pointer]
    first = next(p for p in arrays if not p.nullable)
    lead = names[first.name]
    keyed = _named(deciding(signature, vouched=vouched), names)
    dtypes = [f"None if {x} is None else {x}.dtype" if p.nullable else f"{x}.dtype" for p, x in keyed]
    checked = [p for p in arrays if p.const or not vouched or p is first]
    shapes = {names[p.name]: p.shape for p in checked if p.shape is not None and not vouched}
    conditions = [f"type({lead}) not in plain", *([] if one_device else ["current_device() != device"])]
    of_arrays = [(p, x, f"{x}.get_device() != device") for p, x in _named(checked, names) if p is not first]
    shaped = [(p, x) for p, x in _named(checked, names) if x in shapes]
    of_arrays += [(p, x, f"not {x}.is_contiguous()") for p, x in shaped]
    of_arrays += [(p, x, f"{x}.numel() != {_product(shapes[x], names, constants)}") for p, x in shaped]
    of_arrays += [
        (p, x, c) for p, x in _named(checked, names) if p.element and not vouched for c in elements.conditions(p, x)
    ]
    of_arrays += [
        (p, x, c) for p, x in _named(arrays, names) if p.accessor for c in accessors.conditions(p, x, constants)
    ]
    outputs = [] if vouched else [(p, x) for p, x in _named(arrays, names) if not p.const]
    if not vouched:
        of_arrays += [(p, x, f"{x}.is_neg()") for p, x in _named(arrays, names)]
        of_arrays += [(p, x, f"({x}.requires_grad and grad_enabled())") for p, x in outputs]
    of_arrays += [
        (p, x, f"(not {x}.is_contiguous() and overlaps({x}.shape, {x}.stride()))")
        for p, x in outputs
        if p.shape is None
    ]
    conditions += [f"({x} is not None and {c})" if p.nullable else c for p, x, c in of_arrays]
    # The product of two negative sizes may equal the number of elements. A single negative size cannot.
    products = [[t for t in shape if t in names] for shape in shapes.values()]
    conditions += [f"{names[t]} < 0" for t in dict.fromkeys(t for terms in products if len(terms) > 1 for t in terms)]
    # struct would accept any object as a bool, for its truth value.
    bools = [names[p.name] for p in signature.parameters if p.type == "bool" and not p.pointer]
    conditions += [f"({x} is not True and {x} is not False)" for x in bools]
    for p in signature.parameters:
        if p.map_of is not None:
            array, x = names[p.map_of], names[p.name]
            of_another = f"{x}.address != {array}.data_ptr() or {x}.size != {array}.numel()"
            may = next(f"{array} is not None and " if a.nullable else "" for a in arrays if a.name == p.map_of)
            conditions += [f"type({x}) is not TensorMap", f"({may}({of_another}))"]
    unpacking, values = [], []
    for p in signature.parameters:
        if p.element is not None and not p.pointer and p.length is None:
            values.append(f"packed[{p.name!r}]({names[p.name]})")
        elif p.length is None:
            address = f"{names[p.name]}.data_ptr()"
            address = f"0 if {names[p.name]} is None else {address}" if p.nullable else address
            values.append(address if p.pointer else names[p.name])
            if p.accessor is not None:  # the conditions hold the number of dimensions
                values.append(accessors.written(p.accessor, names[p.name]))
        else:
            # Each tuple is unpacked into its own number of names. One format for all tuples would accept a tuple that
            # is too long beside a tuple that is too short.
            parts = [free_name(f"{p.name}_{i}", taken) for i in range(int(constants.get(p.length, p.length)))]
            unpacking.append(f"{', '.join(parts)}, = {names[p.name]}")
            values += parts
    blocks = [
        re.sub(r"\w+", lambda word: names[word[0]] if word[0] in geometry.sizes else word[0], b)
        for b in geometry.blocks
    ]
    always = [x for p, x in outputs if not p.nullable]
    planned = [f"not g{axis}" for axis, b in zip("xyz", blocks, strict=True) if b != "1"]
    return "\n".join(
        [
            f"def launch({arguments}):",
            "    try:",
            f"        device = {lead}.get_device()",
            f"        variant = variants.get((device, {', '.join(dtypes)}))",
            "        if not (",
            "                variant is None",
            *(f"                or {c}" for c in conditions),
            "        ):",
            "            unit = variant.unit",
            f"            gx, gy, gz = {', '.join(blocks)}",
            f"            if {' or '.join(planned) or 'False'}:",
            "                return None",
            *(f"            {line}" for line in unpacking),
            "            try:",
            "                buffer = variant.buffers.pop()",
            "            except IndexError:",
            "                buffer = variant.new_buffer()",
            f"            variant.pack_into(buffer[0], 0, {', '.join(values)})",
            "            launch_kernel(",
            f"                variant.function, gx, gy, gz, {', '.join(map(str, geometry.threads))}, variant.shared,",
            "                stream(device), buffer[1], 0)",
            "            variant.buffers.append(buffer)",
            *(["            written((" + "".join(f"{x}, " for x in always) + "))"] if always else []),
            *(f"            if {x} is not None: written(({x},))" for p, x in outputs if p.nullable),
            "            return None",
            "    except Exception:",  # the checked launch raises the proper error
            "        pass",
            f"    return checked({arguments})",
        ]
    )


def deciding(signature: Signature, *, vouched: bool = False) -> list[Parameter]:
    """Returns the array parameters whose dtypes are part of a loaded kernel's key.

    An ordinary call uses all arrays. A vouched call (:func:`launch_source`) uses the inputs, and those outputs
    whose type no input decides.
    """
    arrays = [p for p in signature.parameters if p.pointer]
    decided = {p.type for p in arrays if p.const and not p.nullable}
    return [p for p in arrays if not vouched or p.const or (p.type in signature.bindings and p.type not in decided)]


def _named(parameters: Sequence[Parameter], names: Mapping[str, str]) -> list[tuple[Parameter, str]]:
    return [(p, names[p.name]) for p in parameters]


def _product(shape: Sequence[str], names: Mapping[str, str], constants: Mapping[str, int]) -> str:
    return " * ".join(names.get(t) or str(int(constants.get(t, t))) for t in shape) or "1"


def write_launch(
    signature: Signature,
    geometry: Geometry,
    constants: Mapping[str, int],
    tensors: TensorAccess,
    checked: Callable[..., None],
    checked_vouched: Callable[..., None] | None = None,
    *,
    cooperative: bool = False,
) -> tuple[Callable[..., None], Callable[..., None], dict[tuple[Any, ...], Any]]:
    """Returns the generated launch, the generated launch of vouched calls, and an empty dictionary of loaded kernels.

    Both functions look kernels up in this dictionary by (device, dtypes of the :func:`deciding` parameters).
    """
    variants: dict[tuple[Any, ...], Any] = {}
    functions = []
    for vouched in (False, True):
        scope: dict[str, Any] = {
            "variants": variants,
            "plain": tensors.plain,
            "current_device": tensors.current_device,
            "stream": tensors.stream,
            "grad_enabled": tensors.grad_enabled,
            "written": tensors.written,
            "checked": (checked_vouched or checked) if vouched else checked,
            "TensorMap": TensorMap,
            "overlaps": overlaps,
            "packed": {
                p.name: partial(elements.packed, signature.kernel, p) for p in signature.parameters if p.element
            },
            "launch_kernel": driver.launch_cooperative_kernel() if cooperative else driver.launch_kernel(),
        }
        text = launch_source(signature, geometry, constants, one_device=tensors.devices() == 1, vouched=vouched)
        what = f"{'vouched ' if vouched else ''}launch of {signature.kernel}"
        launch = write(what, "launch", text, scope)
        launch.__qualname__ = signature.kernel  # the name in Python's message for a wrong number of arguments
        functions.append(untraced(launch))
    hide()
    return functions[0], functions[1], variants


_OPENING = held_across_fork(threading.RLock())  # held while a generated launch is installed


def open_launch(kernel: Any, arguments: Arguments, variant: Any) -> None:
    """Installs the generated launch of a kernel, and adds a loaded kernel to it.

    Args:
        kernel: the :class:`.kernel.Kernel`.
        arguments: the arguments of a checked launch.
        variant: the kernel, loaded for these arguments.
    """
    tensors = getattr(arguments.library, "tensor_access", None)
    # The checked launch finds the arrays of structs by value. The generated launch runs on the device of its first array.
    records = (p.element.record for p in kernel.signature.objects if p.element.record is not None)
    if tensors is None or kernel.nullable or not arguments.infos or any(map(elements.takes_arrays, records)):
        return
    given = [
        [arguments.values[p.name] for p in deciding(kernel.signature, vouched=vouched)] for vouched in (False, True)
    ]
    keys = [(arguments.lead.device, *(None if x is None else x.dtype for x in arrays)) for arrays in given]
    with _OPENING:
        if kernel.launch == kernel.checked_launch:
            kernel.launch, kernel.launch_vouched, kernel._generated_variants = write_launch(
                kernel.signature,
                kernel.geometry,
                kernel.constants,
                tensors,
                kernel.checked_launch,
                kernel.checked_vouched,
                cooperative=kernel.hardware.cooperative,
            )
        kernel._generated_variants.update(dict.fromkeys(keys, variant))
