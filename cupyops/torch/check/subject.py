"""Defines :class:`Subject`: an operator on one backend, its samples in every dtype, and its results and gradients."""

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from cupyops import simulator
from cupyops.compile.compiler import first_error
from cupyops.dtypes import FLOATS
from cupyops.errors import CompileError, LaunchError
from cupyops.sharing import computed_once
from cupyops.torch.core.operator import Operator

from .inputs import Arguments, converted, fresh, lead_of, tensors_in, to_device, with_rows
from .registry import Skip

__all__ = [
    *("MEND_THE_TEXT", "Subject", "Variant", "does_not_compile", "first_cause", "first_words", "quiet"),
    "refuses_gradient",
]

# The advice of every check for an operator with a kernel that does not compile.
MEND_THE_TEXT = "Mend the kernel's text at the first error. Later errors are often consequences of the first."

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
                others = ((*first[:i], other, *first[i + 1 :]) for other in _near(value))
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
        found += self._words(place) if kind.kind() == "StringType" else _others(like)
        chosen: list[Any] = []
        for v in found:
            # 1, 1.0 and True are equal, and so are 0.0 and -0.0: these are not other values.
            if not (v is value or (type(v) is type(value) and v == value) or any(v is c or v == c for c in chosen)):
                chosen.append(v)
        return chosen

    def _words(self, place: int) -> list[str]:
        """Returns words that may be choices of a text: constants of the reference's code, and of its message for no word."""
        found = _words_of(self.op.reference)
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


def _near(value: float) -> list[Any]:
    """Returns other numbers of the same type, of which an operator may accept one."""
    if isinstance(value, bool):
        return [not value]
    return [value + 1, value - 1] if isinstance(value, int) else [2 * value or 0.5, value / 2 or -0.5]


def _others(value: Any) -> list[Any]:
    """Returns other values for a number or a list of numbers: of the other sign, 0, below 1, above 1, and close to
    it."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1, -value, 0, 1, 2 * value]
    if isinstance(value, float):
        return [-value, 2 * value, value * (1 + 2.0**-6), 0.0, 0.375, 1.0, 2.5, -1.25, 100.0, 1e-3]
    if isinstance(value, (list, tuple)) and value and all(isinstance(x, (int, float)) for x in value):
        first, last = _others(value[0])[:1], _others(value[-1])[:1]
        return [[*value[::-1]], [*first, *value[1:]], [*value[:-1], *last], [type(x)(0) for x in value], [*value[:-1]]]
    return []


def _words_of(function: Any) -> list[str]:
    """Returns the string constants in the code of a reference: one of them may be a value of an argument that is a string.

    Names of arguments are left out, and so are strings that are not identifiers, such as docstrings and messages.
    """
    found, met = list[Any](getattr(getattr(function, "__code__", None), "co_consts", ())), list[str]()
    while found:
        one = found.pop(0)
        if isinstance(one, (tuple, frozenset)):
            found += sorted(one, key=repr)
        elif isinstance(one, CodeType):
            found += one.co_consts
        elif isinstance(one, str) and one.isidentifier():
            met.append(one)
    return [*dict.fromkeys(met)]


def _numbered(outputs: Sequence[Tensor]) -> dict[str, Tensor]:
    return {"output": outputs[0]} if len(outputs) == 1 else {f"output {i}": y for i, y in enumerate(outputs)}


def refuses_gradient(error: BaseException) -> bool:
    """Returns whether an error is a deliberate refusal of a (further) derivative, by an operator or by PyTorch."""
    return any(words in str(error) for words in ("has no gradient", "once_differentiable"))


def first_words(error: BaseException) -> str:
    """Returns type and first line of the error's first cause.

    For a compile error, returns the compiler's first error with the source lines around it.
    """
    cause = first_cause(error)
    if isinstance(cause, CompileError):
        return f"{type(cause).__name__}: {first_error(str(cause))}"
    words = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {words[0] if words else ''}"


def first_cause(error: BaseException) -> BaseException:
    """Returns the error in which a chain of exceptions began.

    This is the error that this package or the operator's author raised, without the exceptions that PyTorch and the
    author's handlers raised from it.
    """
    met = [error]
    while (below := met[-1].__cause__ or met[-1].__context__) is not None and below not in met:
        met.append(below)
    if compiled := next((e for e in met if isinstance(e, CompileError)), None):
        return compiled
    told = [error]
    for wrapped in met[1:]:
        # Dynamo raises its exceptions from None: the exception that it caught is the context. In an author's code, a
        # context that is not a cause is unrelated: the handler of one error failed with another error.
        if _is_ours(told[-1]) or not (_of_pytorch(told[-1]) or wrapped is told[-1].__cause__):
            break
        told.append(wrapped)
    # An exception raised inside PyTorch explains less than the exception that PyTorch raises from it.
    return next((e for e in reversed(told) if not _of_pytorch(e) and _raised_in(e) != "torch"), error)


def does_not_compile(error: BaseException) -> bool:
    """Returns whether the first cause of an error is a compile error."""
    return isinstance(first_cause(error), CompileError)


def _is_ours(error: BaseException) -> bool:
    return not _of_pytorch(error) and _raised_in(error) == "cupyops"


def _of_pytorch(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "torch"


def _raised_in(error: BaseException) -> str:
    """Returns the top-level package whose code raised the error."""
    frames = list(traceback.walk_tb(error.__traceback__))
    return str(frames[-1][0].f_globals.get("__name__", "")).partition(".")[0] if frames else ""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses warnings, which come from PyTorch and not from the operator."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
