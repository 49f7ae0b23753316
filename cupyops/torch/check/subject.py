"""Defines :class:`Subject`: an operator on one backend, its samples in every dtype, and its results and gradients."""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from cupyops import simulator
from cupyops.dtypes import FLOATS
from cupyops.errors import LaunchError
from cupyops.sharing import computed_once
from cupyops.torch.core.operator import Operator

from .failures import does_not_compile, first_words, refuses_gradient
from .inputs import (
    Arguments,
    converted,
    fresh,
    lead_of,
    near_numbers,
    other_values,
    tensors_in,
    to_device,
    with_rows,
    words_of,
)
from .registry import Skip

__all__ = ["Subject", "Variant"]

# The name of a dtype, and a sample in this dtype.
Variant = tuple[str, Arguments]

# Exceptions by which an operator refuses an argument; other exceptions are faults.
_REFUSALS = (TypeError, ValueError, NotImplementedError)


class Subject:
    """One operator on one backend.

    Attributes:
        samples: argument tuples on the backend's device: the given samples, followed by variations of the first sample
            that cover numbers at their defaults, and numbers away from their defaults.
        tolerance: factor on the allowed errors.
        dtypes: names of the dtypes that the operator must accept; None: every floating dtype that it accepts.
        prove: what the body guarantees, as conditions on the kernels' parameters.
        schema: the arguments of the operator's PyTorch schema.
        refused: the reason by the name of each dtype that the operator refuses.
    """

    def __init__(
        self,
        op: Operator,
        samples: Sequence[Arguments],
        backend: str,
        *,
        tolerance: float = 1.0,
        dtypes: Sequence[str] | None = None,
        prove: tuple[str, ...] = (),
    ) -> None:
        self.op = op
        self.backend = backend
        self.device = torch.device("cuda", torch.cuda.current_device()) if backend == "cuda" else torch.device("cpu")
        if backend == "cuda" and (given := [a[i] for a in samples for i in tensors_in(a) if a[i].is_cuda]):
            self.device = given[0].device
        self.samples = [fresh(to_device(args, self.device)) for args in samples]
        self.tolerance = tolerance
        self.dtypes = dtypes
        self.prove = prove
        self.schema = op.op._schema.arguments
        self.refused: dict[str, str] = {}
        with self.mode():
            self.samples += self._about_defaults()

    # The backend

    def mode(self) -> AbstractContextManager[None]:
        """Returns a context manager in which the operator runs on this backend."""
        return simulator.simulate(self.backend == "simulator", sanitize=True)

    @property
    def kernels(self) -> bool:
        """Returns whether the backend runs kernels; the backend ``reference`` runs none."""
        return self.backend != "reference"

    @property
    def reference(self) -> Callable[..., Any]:
        """Returns the reference, as a function that runs it outside the simulator.

        Raises:
            Skip: the operator has no reference.
        """
        reference = self.op.reference
        if reference is None:
            raise Skip("the operator has no reference")

        def plain(*args: Any) -> Any:
            with simulator.simulate(False):
                return reference(*args)

        return plain

    # Arguments

    @property
    def mutated(self) -> list[int]:
        """Returns the positions of the tensors that the schema declares as written, ``Tensor(a!)``."""
        return [i for i, a in enumerate(self.schema) if a.alias_info is not None and a.alias_info.is_write]

    def wanted(self, args: Arguments) -> list[int]:
        """Returns the positions of the tensors to differentiate by.

        These are the tensors that require gradients; if none does, all floating tensors that are not written.
        """
        floating = [i for i in tensors_in(args) if args[i].is_floating_point() and i not in self.mutated]
        return [i for i in floating if args[i].requires_grad] or floating

    def _about_defaults(self) -> list[Arguments]:
        """Returns variations of the first sample in which numbers are at their defaults, or away from them.

        If a number is away from its default in all samples, one variation has all numbers at their defaults. For each
        number that is at its default in all samples, one variation has another number. Variations that the operator
        refuses are left out.
        """
        first, found = self.samples[0], list[Arguments]()
        defaults = {i: a.default_value for i, a in enumerate(self.schema) if isinstance(a.default_value, (int, float))}
        usual = tuple(defaults.get(i, x) for i, x in enumerate(first))
        if any(all(args[i] != value for args in self.samples) for i, value in defaults.items()) and self._takes(usual):
            found.append(fresh(usual))
        for i, value in defaults.items():
            if all(args[i] == value for args in self.samples):
                others = ((*first[:i], other, *first[i + 1 :]) for other in near_numbers(value))
                found += [fresh(args) for args in others if self._takes(args)][:1]
        return found

    def other_values(self, place: int, value: Any, others: Sequence[Any]) -> list[Any]:
        """Returns other values of an argument that is not a tensor; which of them make sense, the reference decides.

        Args:
            others: the values that other samples have.
        """
        argument = self.schema[place]
        kind, optional = argument.type, argument.type.kind() == "OptionalType"
        kind = kind.getElementType() if optional else kind
        like = value
        if value is None:
            of = kind.getElementType() if kind.kind() == "ListType" else kind
            like = {"FloatType": 1.0, "NumberType": 1.0, "IntType": 1, "SymIntType": 1, "BoolType": True}.get(of.kind())
            like = [like] if of is not kind and like is not None else like
        elif kind.kind() == "FloatType" and type(value) is int:
            like = float(value)
        default = [argument.default_value] if argument.has_default_value() else []
        found = [None] * optional + [v for v in (*others, *default) if not isinstance(v, Tensor)]
        found += [like] if value is None and like is not None else []
        found += self._words(place) if kind.kind() == "StringType" else other_values(like)
        chosen: list[Any] = []
        for v in found:
            # 1, 1.0 and True are equal, and so are 0.0 and -0.0: these are not other values.
            if not (v is value or (type(v) is type(value) and v == value) or any(v is c or v == c for c in chosen)):
                chosen.append(v)
        return chosen

    def _words(self, place: int) -> list[str]:
        """Returns words that may be choices of a text: constants of the reference's code, and of its message for no word."""
        found = words_of(self.op.reference)
        args = fresh(self.samples[0])
        try:
            self.outputs((*args[:place], "?", *args[place + 1 :]), self.reference)
        except Exception as error:
            found += re.findall(r"\w+", first_words(error))
        return [*dict.fromkeys(found)]

    @property
    def one_dtype(self) -> str:
        """Returns float32 if the operator takes it, else the dtype of the first sample.

        In float32 the reference's own rounding is measured against float64.
        """
        names = [name for name, _ in self.variants]
        return "float32" if "float32" in names else names[0]

    def _takes(self, args: Arguments) -> bool:
        """Returns whether operator and reference accept the arguments; a failed launch counts as accepted."""
        try:
            for function in [self.op.call, *([self.reference] if self.op.reference is not None else [])]:
                self.outputs(fresh(args), function)
        except (*_REFUSALS, ArithmeticError, LookupError, RuntimeError) as error:
            return isinstance(error, LaunchError)
        return True

    @computed_once
    def variants(self) -> list[Variant]:
        """Returns each sample in its own dtype and in every floating dtype that the operator accepts."""
        found: list[Variant] = []
        for args in self.samples:
            own = lead_of(args).dtype
            names = dict.fromkeys((str(own).removeprefix("torch."), *(self.dtypes or FLOATS)))
            for name in names if own.is_floating_point else list(names)[:1]:
                changed = fresh(args) if getattr(torch, name) == own else self._taken(name, args)
                if changed is not None:
                    found.append((name, changed))
        return found

    def _taken(self, name: str, args: Arguments) -> Arguments | None:
        """Converts all arguments to a dtype, or only the lead; returns None if the operator refuses both."""
        for alone in (False, True):
            changed = converted(args, getattr(torch, name), alone=alone)
            if refusal := self._refused(changed):
                self.refused.setdefault(name, refusal)
            else:
                self.refused.pop(name, None)
                return changed
        return None

    def widened(self, args: Arguments) -> Arguments:
        """Returns the arguments in float64.

        Raises:
            Skip: the operator refuses float64.
        """
        if lead_of(args).dtype == torch.float64:
            return args
        if (found := self._taken("float64", args)) is None:
            raise Skip("there is no reference, and the operator does not take float64")
        return found

    def _refused(self, args: Arguments) -> str:
        """Returns why the operator refuses the arguments, or an empty string."""
        try:
            if not self.kernels:
                # The body defines which arguments the operator accepts; the reference may accept more.
                with contextlib.suppress(RuntimeError):
                    self.outputs(to_device(args, torch.device("meta")))
            self.results(fresh(args))
        except _REFUSALS as error:
            return "" if does_not_compile(error) else first_words(error)
        except RuntimeError as error:
            # PyTorch implements some operations of a reference for some dtypes only.
            if "not implemented for" in str(error) or (self.op.reference is not None and self.reference_raises(args)):
                return first_words(error)
        return ""

    def reference_raises(self, args: Arguments) -> bool:
        """Returns whether the reference itself fails on the arguments, or its gradient does."""
        try:
            self.results(fresh(args), self.reference)
        except Skip:
            return False
        except Exception:
            return True
        return False

    @property
    def each(self) -> list[Variant]:
        """Returns every sample in each dtype; on the backend ``reference``, in float32 and float64 only, if there are any.

        PyTorch's results in 16-bit dtypes depend on the layout and on the path of the gradient.
        """
        wide = [(name, args) for name, args in self.variants if name in ("float32", "float64")]
        return wide if wide and not self.kernels else self.variants

    @property
    def one_each(self) -> list[Variant]:
        """Returns the first sample of each dtype in :attr:`each`."""
        return list({name: (name, args) for name, args in reversed(self.each)}.values())[::-1]

    def of_dtype(self, name: str) -> list[Arguments]:
        """Returns the samples in a dtype.

        Raises:
            Skip: the operator refuses the dtype.
        """
        found = [args for dtype, args in self.variants if dtype == name]
        if not found:
            why = self.refused.get(name, "the samples are not floating")
            raise Skip(f"needs {name}, and the operator does not take it: {why}")
        return found

    def told(self, count: int, what: str) -> str:
        """Returns the words of a passed check: the count of tried items, their dtypes, and the refused dtypes."""
        dtypes = ", ".join(dict.fromkeys(name for name, _ in self.variants))
        refused = f"; refused: {', '.join(self.refused)}" if self.refused else ""
        return f"{count} {what} of {dtypes}{refused}"

    def rows(self, args: Arguments, count: int) -> Arguments:
        """Returns the arguments with `count` rows.

        Raises:
            Skip: the operator refuses another number of rows.
        """
        for by_row in (False, True):
            try:
                self.call(with_rows(args, 3, by_row=by_row))
                if self.op.reference is not None and count:
                    self.call(with_rows(args, count, by_row=by_row), self.reference)
            except (*_REFUSALS, LookupError, RuntimeError) as error:
                if does_not_compile(error):
                    raise
                refusal = first_words(error)
            else:
                return with_rows(args, count, by_row=by_row)
        raise Skip(f"the first dimension cannot have another size: {refusal}")

    @computed_once
    def refusal(self) -> str:
        """Returns the message by which the operator refuses gradients, or an empty string; a refusal is not a fault."""
        args = fresh(self.samples[0])
        wanted = self.wanted(args)
        if self.mutated or not wanted:
            return ""
        leaves = [x.detach().requires_grad_(i in wanted) if isinstance(x, Tensor) else x for i, x in enumerate(args)]
        try:
            with torch.enable_grad():
                ready = [y for y in self.call(leaves) if y.requires_grad]
            torch.autograd.grad(
                ready, [leaves[i] for i in wanted], [torch.zeros_like(y) for y in ready], allow_unused=True
            )
        except RuntimeError as error:
            return first_words(error) if refuses_gradient(error) else ""
        except Exception:
            pass  # the check that meets the error reports it
        return ""

    # Results

    def call(self, args: Sequence[Any], function: Callable[..., Any] | None = None) -> list[Tensor]:
        """Calls the operator; returns its outputs, followed by the arguments that the schema declares as written.

        A result that is None, ``Tensor?``, is left out.
        """
        found = (function or self.op.call)(*args)
        outputs = [] if found is None else [found] if isinstance(found, Tensor) else [y for y in found if y is not None]
        return [*outputs, *(args[i] for i in self.mutated if isinstance(args[i], Tensor))]

    def outputs(self, args: Arguments, function: Callable[..., Any] | None = None) -> dict[str, Tensor]:
        """Calls the operator without gradients; returns the outputs by name."""
        with torch.no_grad():
            return _numbered(self.call(args, function))

    def results(
        self,
        args: Arguments,
        function: Callable[..., Any] | None = None,
        *,
        wanted: Sequence[int] | None = None,
        seeds: Mapping[str, Tensor] | None = None,
        forward: AbstractContextManager[Any] | None = None,
    ) -> dict[str, Tensor]:
        """Calls the operator and its backward; returns outputs and gradients by name.

        Args:
            function: called in place of the operator.
            wanted: positions of the arguments to differentiate by; by default :meth:`wanted`.
            seeds: the incoming gradient by name of the output; by default :meth:`seeds` of all outputs that require
                gradients. An output without an entry is left out of the backward.
            forward: context manager around the forward call.
        """
        wanted = self.wanted(args) if wanted is None else wanted
        if self.mutated or not wanted or self.refusal:
            with forward or contextlib.nullcontext():
                return self.outputs(args, function)
        leaves = [
            x.detach().requires_grad_(i in wanted) if isinstance(x, Tensor) and x.is_floating_point() else x
            for i, x in enumerate(args)
        ]
        with forward or contextlib.nullcontext(), torch.enable_grad():
            outputs = _numbered(self.call(leaves, function))
        ready = {name: y for name, y in outputs.items() if y.requires_grad}
        given = {n: g for n, g in (seeds if seeds is not None else self.seeds(ready)).items() if n in ready}
        by = [leaves[i] for i in wanted]
        gradients: Sequence[Tensor | None] = [None] * len(by)
        if given:
            gradients = torch.autograd.grad([ready[n] for n in given], by, list(given.values()), allow_unused=True)
        named = {
            f"gradient of {self.schema[i].name}": g for i, g in zip(wanted, gradients, strict=True) if g is not None
        }
        return {name: y.detach() for name, y in outputs.items()} | named

    def differentiable(self, args: Arguments) -> dict[str, Tensor]:
        """Returns the outputs that require gradients, by name."""
        wanted = self.wanted(args)
        if self.mutated or not wanted or self.refusal:
            return {}
        leaves = [x.detach().requires_grad_(i in wanted) if isinstance(x, Tensor) else x for i, x in enumerate(args)]
        with torch.enable_grad():
            outputs = _numbered(self.call(leaves))
            # A reference that detaches its result has no gradient. The kernels' results require one all the same, of
            # zeros: the reference decides on every backend.
            asked = _numbered(self.call(leaves, self.reference)) if self.op._by_reference else outputs
        return {name: y.detach() for name, y in outputs.items() if y.requires_grad and asked[name].requires_grad}

    @computed_once
    def taken(self) -> set[str]:
        """Returns the names of the outputs that require gradients, in the first sample."""
        return set(self.differentiable(fresh(self.samples[0])))

    def need_gradients(self, args: Arguments) -> dict[str, Tensor]:
        """Returns the outputs that require gradients, by name.

        Raises:
            Skip: no output requires a gradient.
        """
        if self.mutated:
            raise Skip("the operator writes into its arguments, and has no gradient")
        if self.refusal:
            raise Skip(f"the operator refuses gradients: {self.refusal}")
        found = self.differentiable(fresh(args))
        if not found:
            raise Skip("no output takes a gradient")
        return found

    def seeds(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns a random gradient for each output, which depends only on the output's name, shape and dtype."""

        def random(name: str, y: Tensor) -> Tensor:
            # "output" has no number, "output 1" has 1, and the name of an argument is its position.
            number = name.rpartition(" ")[2]
            generator = torch.Generator().manual_seed(20240229 + (int(number) if number.isdigit() else 0))
            return torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.device, y.dtype)

        return {name: random(name, y) for name, y in outputs.items()}


def _numbered(outputs: Sequence[Tensor]) -> dict[str, Tensor]:
    return {"output": outputs[0]} if len(outputs) == 1 else {f"output {i}": y for i, y in enumerate(outputs)}
