"""One published program compared with its reference in PyTorch: sizes, runs in the simulator, and what they say together.

:mod:`benchmarks.checked_kernels` checks whole collections, each program in a process of its own.
"""

import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .checked_sizes import LARGE, SMALL, Sizes, cut, feasible

__all__ = ["KINDS", "Run", "Verdict", "check", "kind_of", "place", "run", "verdict"]

# A value differs if it is further from the reference than this part of the reference's largest value.
TOLERANCE = 1e-3
SECONDS_OF_A_RUN = 60.0


@dataclass
class Run:
    """The findings of one run of a program at some sizes.

    Attributes:
        sizes: the sizes, in words.
        full: whether they are those of the problem.
        state: "ran", "raised", "slow", or "no reference".
        why: the error of a run that has not ended.
        found: what was found: "bounds", "race" and others of KINDS, each with a line about it.
        difference: the largest difference, as a part of the reference's largest value, or None if there is no result.
        constant: whether the reference gives the same result for other inputs.
        overwrites: whether the call has changed an input that the reference does not change.
        seconds: the time of the program.
    """

    sizes: str
    full: bool
    state: str
    why: str = ""
    found: dict[str, str] = field(default_factory=dict)
    difference: float | None = None
    constant: bool = False
    overwrites: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """The verdict of all runs of a program.

    Attributes:
        word: "right", "wrong" or "not judged".
        why: the reason of "not judged", or what holds at other sizes only.
        found: what is wrong, as in :class:`Run`.
        sizes: the sizes of the run that decides.
    """

    word: str
    why: str = ""
    found: dict[str, str] = field(default_factory=dict)
    sizes: str = ""


KINDS = {
    "bounds": "a read or a write out of bounds",
    "race": "a data race",
    "same race": "a data race whose writes have the same value",
    "barrier": "a barrier that not all threads of a block reach",
    "shared": "a read of shared memory that no thread has written",
    "fault": "another fault that the simulator names",
    "unwritten": "elements of the result that are not written",
    "reads unwritten": "values that depend on memory that nothing has written",
    "another": "another function than the reference",
}


def verdict(small: Run | None, large: Run | None) -> Verdict:
    """Returns the verdict of the run at reduced sizes and the run at the largest feasible sizes."""
    ended = [run for run in (large, small) if run is not None and run.state in ("ran", "raised")]
    if not ended:
        why = small.why if small is not None else "the reference runs at none of the sizes"
        return Verdict("not judged", why)
    first = ended[0]
    if first.state == "raised":
        return Verdict("not judged", first.why, sizes=first.sizes)
    if first.constant and not first.found:
        return Verdict("not judged", "the reference gives the same result for other inputs", sizes=first.sizes)
    if not first.found:
        elsewhere = ""
        if large is first and small is not None and (small.found or small.state == "raised"):
            kinds = ", ".join(KINDS[kind] for kind in small.found) or "an error"
            elsewhere = f"at other sizes ({small.sizes}): {kinds}"
        return Verdict("right", elsewhere, sizes=first.sizes)
    if large is None and not first.full:
        return Verdict("not judged", f"found at cut sizes only: {'; '.join(first.found.values())}", sizes=first.sizes)
    return Verdict("wrong", found=first.found, sizes=first.sizes)


class _SlowError(BaseException):
    """A run has taken too long. Programs catch exceptions; this is none of theirs."""


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise _SlowError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _filled(byte: int) -> Iterator[None]:
    """Fills new memory, such as that of ``torch.empty``, with a byte: 255 gives NaN in floats."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    aten = torch.ops.aten
    unwritten = {
        aten.empty.memory_format,
        aten.empty_strided.default,
        aten.empty_like.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }

    class Filled(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func in unwritten and result.device.type == "cpu" and result.dtype is not torch.bool:
                result.untyped_storage().fill_(byte)
            return result

    with Filled():
        yield


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value.detach()]
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else [torch.as_tensor(value)]


def _copies(values: Sequence[Any]) -> list[Any]:
    import torch

    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def _difference(got: Any, wanted: Any) -> tuple[int, float]:
    """Returns how many values differ, and the largest difference as a part of the largest value of `wanted`."""
    import torch

    got, wanted = got.double(), wanted.double()
    finite = wanted.isfinite()
    scale = float(wanted[finite].abs().max()) if finite.any() else 0.0
    apart = (got - wanted).abs()
    apart[got == wanted] = 0  # infinities
    apart[got.isnan() & wanted.isnan()] = 0
    apart = apart.nan_to_num(torch.inf, posinf=torch.inf)
    largest = float(apart.max()) if apart.numel() else 0.0
    return int((apart > TOLERANCE * scale).sum()), largest / scale if scale else largest


def kind_of(message: str) -> str:
    """Returns the kind of a fault by the simulator's message."""
    if "a race in" in message:
        return "same race" if "both write the same value" in message else "race"
    if "reads shared memory that nobody has written" in message:
        return "shared"
    if "out of bounds" in message or "is const" in message:
        return "bounds"
    if "barrier" in message or "__sync" in message:
        return "barrier"
    return "fault"


def place(error: BaseException) -> str:
    """Returns an error in a line, with the innermost places that raised it."""
    frames = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-3:]]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:600]} [{' < '.join(reversed(frames))}]"


def run(program: dict[str, Any], own: set[str], text: str, sizes: Sizes, feasible_only: bool = False) -> Run:
    """Runs a program compared with its reference.

    Args:
        program: the names of the program. The board runs it with the names of its reference, which it may use.
        own: the names that the program defines.
        text: the text of the reference.
        sizes: the limit that its sizes are reduced to.
        feasible_only: do not run a reference that is too large.
    """
    import torch

    try:
        reference, changed = cut(text, sizes)
        found = Run(str(sizes), not changed, "no reference")
        if feasible_only and not feasible(reference):
            found.why = "too large for the simulator"
            return found
        with _at_most(SECONDS_OF_A_RUN), torch.no_grad():
            torch.manual_seed(42)
            init = reference["get_init_inputs"]()
            torch.manual_seed(42)
            model = reference["Model"](*_copies(init))
            # Buffers, such as running statistics, are those before the reference's call.
            state = {key: value.clone() for key, value in model.state_dict().items()}
            torch.manual_seed(7)
            inputs = reference["get_inputs"]()
            torch.manual_seed(5)
            given = _copies(inputs)
            wanted = _tensors(model(*given))
            kept = _tensors([x for x in given if isinstance(x, torch.Tensor)])
            torch.manual_seed(8)
            others = reference["get_inputs"]()
            torch.manual_seed(5)
            pairs = zip(wanted, _tensors(model(*others)), strict=True)
            found.constant = all(torch.allclose(w, other, rtol=1e-6, atol=1e-7, equal_nan=True) for w, other in pairs)
    except _SlowError:
        return Run(str(sizes), False, "slow", "the reference is slow")
    except Exception as error:
        return Run(str(sizes), False, "no reference", place(error))

    program.update({key: value for key, value in reference.items() if key not in own})

    def result(sanitize: bool | None, byte: int) -> tuple[list[Any], list[Any]]:
        from cupyops import cpp_extension

        with ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            stack.enter_context(cpp_extension.replaced())
            stack.enter_context(cpp_extension.simulated(sanitize=sanitize))
            torch.manual_seed(42)
            new = program["ModelNew"](*_copies(init))
            own = new.state_dict()
            if own.keys() == state.keys() and all(own[key].shape == state[key].shape for key in own):
                new.load_state_dict(state)
            new, given = new.cuda(), [x.cuda() if isinstance(x, torch.Tensor) else x for x in _copies(inputs)]
            stack.enter_context(_filled(byte))
            torch.manual_seed(5)
            return _tensors(new(*given)), _tensors([x for x in given if isinstance(x, torch.Tensor)])

    try:
        with _at_most(SECONDS_OF_A_RUN):
            _judge(found, result, wanted, kept)
    except _SlowError:
        # Earlier findings remain.
        found.state, found.why = ("ran" if found.found else "slow"), f"takes more than {SECONDS_OF_A_RUN:.0f} s"
    return found


def _judge(found: Run, result: Any, wanted: list[Any], kept: list[Any]) -> None:
    """Runs a program once or several times, and records the findings.

    Args:
        result: gives its result, and its inputs after the call.
        wanted: the result of the reference.
        kept: the inputs after the call of the reference.
    """
    import torch

    from cupyops import LaunchError

    begin, got = time.perf_counter(), None
    # Without its checks for races, a launch that has one goes on to its result.
    for sanitize in (True, None):
        try:
            got, given = result(sanitize, 255)
        except LaunchError as error:
            message = " ".join(str(error).split()).partition(". `cupyops.simulate(")[0]
            found.found.setdefault(kind_of(message), message)
        except Exception as error:
            found.state, found.why = "raised", place(error)
            return
        else:
            break
        finally:
            found.seconds = round(time.perf_counter() - begin, 2)
    found.state = "ran"
    if got is None:
        return
    if [g.shape for g in got] != [w.shape for w in wanted]:
        shapes = f"{[tuple(g.shape) for g in got]} for {[tuple(w.shape) for w in wanted]}"
        found.found["another"] = f"the result has the shape {shapes}"
        return
    found.overwrites = any(not torch.equal(g, k) for g, k in zip(given, kept, strict=True))
    again = result(sanitize, 0x5A)[0]
    for g, a, w in zip(got, again, wanted, strict=True):
        many, largest = _difference(a if g.isnan().any() else g, w)
        found.difference = max(found.difference or 0.0, largest)
        depends = (g != a) & ~(g.isnan() & a.isnan())
        fill = torch.full((g.element_size(),), 0x5A, dtype=torch.uint8).view(g.dtype)[0]
        if g.dtype is not torch.bool and (unwritten := int((depends & (a == fill)).sum())):
            found.found["unwritten"] = f"{unwritten} of {g.numel()} values are not written"
        elif depends.any():
            found.found["reads unwritten"] = (
                f"{int(depends.sum())} of {g.numel()} values depend on what newly allocated memory contains"
            )
        elif many and not found.constant and not {"race", "barrier", "shared"} & found.found.keys():
            found.found["another"] = (
                f"{many} of {w.numel()} values differ, by up to {largest:.2g} of the largest value of the reference"
            )


def check(path: Path, text: str, report: Any = lambda row: None) -> dict[str, Any]:
    """Checks one program in this process.

    Args:
        path: the program.
        text: the text of its reference.
        report: is called with what is known after each run.

    Returns:
        Its row in the results: empty, whether it loads no text; whole, whether all its texts are translated; untranslated,
        what is not; verdict; difference and overwrites of the run that decides; and the runs, unless the program is right.
    """
    from cupyops import cpp_extension

    made: list[Any] = []
    translate = cpp_extension.program

    def recording(*args: Any, **kwargs: Any) -> Any:
        made.append(translate(*args, **kwargs))
        return made[-1]

    lent = cut(text, SMALL[0])[0]
    program: dict[str, Any] = {**lent, "__name__": "solution", "__file__": str(path)}
    row: dict[str, Any] = {}
    cpp_extension.program = recording
    try:
        with cpp_extension.replaced(), cpp_extension.simulated():
            exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), program)
    except Exception as error:
        row["verdict"] = asdict(Verdict("not judged", f"does not load: {place(error)}"))
        return row
    finally:
        cpp_extension.program = translate
        missing = [" ".join(f"{at}: {why}".split()) for one in made for _, at, why in one.untranslated]
        row |= {"empty": not made, "whole": bool(made) and not missing, "untranslated": missing}
    own = {key for key, value in program.items() if key not in lent or value is not lent[key]}
    small: Run | None = None
    large: Run | None = None

    def known() -> dict[str, Any]:
        said, last = verdict(small, large), large or small
        shown: dict[str, Any] = {"verdict": asdict(said)}
        if last is not None:
            shown |= {"difference": last.difference, "overwrites": last.overwrites}
        if said != Verdict("right", sizes=said.sizes):
            shown["runs"] = [asdict(tried) for tried in (small, large) if tried is not None]
        return {**row, **shown}

    for sizes in SMALL:
        tried = run(program, own, text, sizes)
        if small is None or tried.state != "no reference":
            small = tried
        report(known())
        if tried.state == "ran" or (tried.state == "raised" and tried.full):
            break
    settled = small is None or (small.state == "ran" and (small.full or not (small.found or small.constant)))
    if not settled:
        tried_sizes = []
        for sizes in LARGE:
            if (changed := cut(text, sizes)[1]) in tried_sizes:
                continue
            tried_sizes.append(changed)
            tried = run(program, own, text, sizes, feasible_only=True)
            if tried.state in ("ran", "raised"):
                large = tried
                break
    return known()
