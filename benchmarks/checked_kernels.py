"""Published programs with kernels, checked in the simulator beside their references in PyTorch::

    git clone https://github.com/ScalingIntelligence/KernelBenchLeaderboard board
    python -m benchmarks.checked_kernels board --out checked.json                    # goes on where it stopped
    python -m benchmarks.checked_kernels board --out checked.json --only l2_p44 --again
    python -m benchmarks.checked_kernels board --out checked.json --page docs/checked_kernels.md

The folder has ``docs/assets/solutions/*.py``, each with a class ``ModelNew``; ``docs/assets/problems/*.py``, each with a class
``Model`` and its inputs; and ``docs/assets/raw_data.json``. Each program runs in a process of its own, with the rights of the
user: run nothing that you would not run as a program.

A program runs at cut sizes first: module-level integers of the reference above the cut are halved. If something is found
there, a second run at the largest sizes that are feasible decides, because a program may rely on its sizes.
"""

import argparse
import ast
import collections
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Run", "Sizes", "Verdict", "check", "cut", "main", "table", "verdict"]

RESULTS = Path(__file__).resolve().parent / "results" / "checked_kernels.json"
# A value differs if it is further from the reference than this part of the reference's largest value.
TOLERANCE = 1e-3
# What a run at larger sizes may cost: operations of the reference's products, and elements of its largest tensor.
MOST_OPERATIONS, MOST_ELEMENTS = 5e10, 2**25
SECONDS_OF_A_RUN, SECONDS_OF_A_PROGRAM = 60.0, 400.0


@dataclass(frozen=True)
class Sizes:
    """How far the integers of a reference are cut.

    Attributes:
        most: the largest integer that stays, or None for all.
        batch: the same for names with "batch".
    """

    most: int | None
    batch: int | None

    def __str__(self) -> str:
        if self.most is None:
            return (
                "the sizes of the problem" if self.batch is None else f"those of the problem, {self.batch} in a batch"
            )
        return f"at most {self.most}, {self.batch} in a batch"

    def of(self, value: int, name: str) -> int:
        """Returns an integer of the reference, cut: halved while that is even, else the cut itself."""
        most = self.batch if "batch" in name.lower() else self.most
        if most is None or value <= most:
            return value
        while value > most and value % 2 == 0:
            value //= 2
        return min(value, most)


# The last is for networks that take images of 224 only.
SMALL = (Sizes(64, 4), Sizes(32, 4), Sizes(16, 4), Sizes(256, 1))
LARGE = (Sizes(None, None), Sizes(None, 2), Sizes(1024, 2), Sizes(512, 2), Sizes(256, 2), Sizes(128, 2), Sizes(64, 4))


@dataclass
class Run:
    """What one run of a program at some sizes has shown.

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
    """What the runs of a program say together.

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
    """Returns what the run at cut sizes and the run at the largest feasible sizes say."""
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


# The reference


class _Cutting(ast.NodeTransformer):
    """Cuts the integers of module-level assignments, and those of the two functions that give inputs."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, self.name = sizes, ""
        self.changed: dict[tuple[str, int], int] = {}

    def visit_Module(self, node: ast.Module) -> ast.Module:
        for statement in node.body:
            if isinstance(statement, ast.Assign):
                target, value = statement.targets[0], statement.value
                pairs: list[tuple[ast.expr, ast.expr]] = [(target, value)]
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    pairs = [*zip(target.elts, value.elts, strict=True)]
                for name, given in pairs:
                    self.name = getattr(name, "id", "")
                    self.visit(given)
            elif isinstance(statement, ast.FunctionDef) and statement.name in ("get_inputs", "get_init_inputs"):
                self.name = ""
                for inner in statement.body:
                    self.visit(inner)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if type(node.value) is int:
            new = self.sizes.of(node.value, self.name)
            if new != node.value:
                self.changed[self.name, node.value] = new
            node.value = new
        return node


def cut(text: str, sizes: Sizes) -> tuple[dict[str, Any], dict[tuple[str, int], int]]:
    """Runs the text of a reference with its sizes cut.

    Returns:
        Its names, and the integers that were cut: by name and value.
    """
    cutting = _Cutting(sizes)
    tree = ast.fix_missing_locations(cutting.visit(ast.parse(text)))
    scope: dict[str, Any] = {"__name__": "reference"}
    exec(compile(tree, "reference.py", "exec"), scope)
    return scope, cutting.changed


def _feasible(scope: dict[str, Any]) -> bool:
    """Returns whether a reference is small enough for a run, from its shapes alone; True if they are not known."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import FlopCounterMode

    class Largest(TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                self.elements = max(self.elements, result.numel())
            return result

    largest, operations = Largest(), FlopCounterMode(display=False)
    try:
        with torch.no_grad(), torch.device("meta"), largest, operations:
            scope["Model"](*scope["get_init_inputs"]())(*scope["get_inputs"]())
    except Exception:
        return largest.elements <= MOST_ELEMENTS
    return largest.elements <= MOST_ELEMENTS and operations.get_total_flops() <= MOST_OPERATIONS


# One program, in a process of its own


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
    """Runs a program beside its reference.

    Args:
        program: the names of the program. The board runs it with the names of its reference, which it may use.
        own: the names that the program defines.
        text: the text of the reference.
        sizes: how far its sizes are cut.
        feasible_only: do not run a reference that is too large.
    """
    import torch

    try:
        reference, changed = cut(text, sizes)
        found = Run(str(sizes), not changed, "no reference")
        if feasible_only and not _feasible(reference):
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
        # What was found before is so.
        found.state, found.why = ("ran" if found.found else "slow"), f"takes more than {SECONDS_OF_A_RUN:.0f} s"
    return found


def _judge(found: Run, result: Any, wanted: list[Any], kept: list[Any]) -> None:
    """Runs a program once or several times, and records what that shows.

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


# All programs


def entries(board: Path) -> dict[str, dict[str, Any]]:
    """Returns the board's entries by the name of the file: problem, model, speedup."""
    rows = json.loads((board / "docs/assets/raw_data.json").read_text(encoding="utf-8"))
    return {
        row["file"]: {
            "problem": f"l{row['level']}_p{int(row['problem_id']) + 1}",
            "model": row["display_name"],
            "speedup": round(float(row["torch_speedup"]), 2),
        }
        for row in rows
    }


def _in_a_process(board: Path, name: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Checks a program in a process of its own, and returns its row."""
    begin = time.time()
    path = (board / "docs/assets/solutions" / f"{name}.py").resolve()
    problem = (board / "docs/assets/problems" / f"{entry['problem']}.py").resolve()
    root = str(Path(__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        command = [sys.executable, "-m", "benchmarks.checked_kernels", "--one", str(path), str(problem), str(out)]
        with open(Path(folder) / "said", "w+b") as said:
            process = subprocess.Popen(
                command, stdout=said, stderr=said, cwd=folder, env=environment, start_new_session=True
            )
            try:
                status = f"ends with the status {process.wait(SECONDS_OF_A_PROGRAM)}"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                status = f"takes more than {SECONDS_OF_A_PROGRAM:.0f} s"
            said.seek(0)
            last = said.read()[-300:].decode(errors="replace")
        if out.exists():
            row = json.loads(out.read_text(encoding="utf-8"))
        else:
            row = {"verdict": asdict(Verdict("not judged", " ".join(f"the process {status}: {last}".split())))}
    return {**entry, **row, "seconds": round(time.time() - begin, 1)}


def _versions(board: Path) -> dict[str, str]:
    from importlib import metadata

    import torch

    import cupyops
    from cupyops.simulator import host

    tool = host.compiler()
    head = subprocess.run(["git", "-C", str(board), "rev-parse", "HEAD"], capture_output=True, text=True)
    return {
        "cupyops": cupyops.__version__,
        "libclang": metadata.version("libclang"),
        "board": head.stdout.strip() if head.returncode == 0 else "",
        "torch": torch.__version__,
        "compiler": f"{Path(tool.command[0]).name} {tool.major}",
    }


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.checked_kernels", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("board", type=Path, nargs="?", help="a copy of the repository of the board")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at a time; default: 2")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, metavar="FILE", help=f"the results; default: {RESULTS.name}"
    )
    parser.add_argument("--page", type=Path, help="write the results into this Markdown page")
    parser.add_argument("--only", nargs="+", metavar="ID", help="starts of file names, or problems such as l2_p44")
    parser.add_argument("--sample", type=int, metavar="N", help="about N programs, evenly spread")
    parser.add_argument("--again", action="store_true", help="run those that the results have, too")
    parser.add_argument("--one", nargs=3, metavar=("PROGRAM", "REFERENCE", "ROW"), help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0, or 2 without a compiler."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.one:
        return _one(*map(Path, options.one))
    if options.board is None:
        parser.error("the folder of the board is missing")
    from cupyops.simulator import host

    from .table import between

    if missing := host.missing():
        print(missing, file=sys.stderr)
        return 2
    results: dict[str, Any] = {"versions": {}, "programs": {}, "readings": {}}
    if options.out.exists():
        results |= json.loads(options.out.read_text(encoding="utf-8"))
    listed = entries(options.board)
    wanted = sorted(p.stem for p in (options.board / "docs/assets/solutions").glob("*.py") if p.stem in listed)
    if options.only:
        wanted = [n for n in wanted if n.startswith(tuple(options.only)) or listed[n]["problem"] in options.only]
    if options.sample:
        wanted = wanted[:: max(1, len(wanted) // options.sample)]
    todo = [name for name in wanted if options.again or name not in results["programs"]]
    if todo:
        results["versions"] |= {key: value for key, value in _versions(options.board).items() if value}
    with ThreadPoolExecutor(options.jobs) as pool:
        futures = {pool.submit(_in_a_process, options.board, name, listed[name]): name for name in todo}
        try:
            for i, future in enumerate(as_completed(futures), 1):
                name, row = futures[future], future.result()
                results["programs"][name] = row
                found = row["verdict"]
                line = "; ".join(found["found"].values()) or found["why"]
                print(
                    f"{i}/{len(todo)} {name[:8]} {row['problem']} {found['word']}, {row['seconds']} s {line[:160]}",
                    flush=True,
                )
                _save(options.out, results)
        except KeyboardInterrupt:
            for future in futures:
                future.cancel()
            raise
    counted = counts(results)
    print(", ".join(f"{count} {what}" for what, count in counted.items()))
    if options.page is not None:
        options.page.write_text(between(options.page.read_text(encoding="utf-8"), table(results)), encoding="utf-8")
    return 0


def _save(path: Path, results: dict[str, Any]) -> None:
    """Writes the results, a program in a line."""
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in results.items() if key != "programs"]
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(results["programs"].items())]
    new = path.with_suffix(".new")
    new.write_text("{" + ",\n".join([*parts, '"programs": {\n' + ",\n".join(lines) + "}"]) + "}\n", encoding="utf-8")
    new.replace(path)


def _one(program: Path, reference: Path, out: Path) -> int:
    import warnings

    import torch

    from cupyops import cpp_extension

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cpp_extension.fallback = False  # PyTorch's builder would need a compiler, and a GPU

    def report(row: dict[str, Any]) -> None:
        out.write_text(json.dumps(row), encoding="utf-8")

    report(check(program, reference.read_text(encoding="utf-8"), report))
    # What a program leaves behind, such as threads, does not matter any more.
    sys.stdout.flush()
    os._exit(0)


# The page


def effective(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the rows by the name of the file, each with its verdict, or the verdict of somebody who has read the program.

    ``readings`` of the results has, by the name of a file, ``word`` as in :class:`Verdict`, and ``why``.
    """
    rows: dict[str, dict[str, Any]] = {}
    for name, row in results["programs"].items():
        found = dict(row["verdict"])
        if reading := results.get("readings", {}).get(name):
            found |= {"word": reading["word"], "why": reading["why"], "read": True}
        rows[name] = {**row, "verdict": found}
    return rows


def counts(results: dict[str, Any]) -> dict[str, int]:
    """Returns the counts of the page by what they count."""
    rows = effective(results).values()
    words = collections.Counter(row["verdict"]["word"] for row in rows)
    kinds = collections.Counter(
        kind for row in rows if row["verdict"]["word"] == "wrong" for kind in row["verdict"]["found"]
    )
    return {
        "programs": len(rows),
        "are translated whole": sum(bool(row.get("whole")) for row in rows),
        "contain no CUDA text": sum(bool(row.get("empty")) for row in rows),
        "give the values of their reference, and nothing is found": words["right"],
        "are wrong": words["wrong"],
        **{f"wrong: {text}": kinds[kind] for kind, text in KINDS.items() if kinds[kind]},
        "are not judged": words["not judged"],
    }


def _number(problem: str) -> tuple[int, int]:
    level, number = re.findall(r"\d+", problem)
    return int(level), int(number)


def table(results: dict[str, Any]) -> str:
    """Returns the part of the page between its markers: versions, counts and tables."""
    rows = sorted(effective(results).items(), key=lambda item: (_number(item[1]["problem"]), item[0]))
    versions = results["versions"]

    def which(name: str, row: dict[str, Any]) -> str:
        level, number = _number(row["problem"])
        return f"level {level} no. {number} | `{name[:8]}`"

    def line(text: str, most: int = 1000) -> str:
        short = " ".join(text.split())
        short = short if len(short) <= most else f"{short[:most]} ..."
        return re.sub(r"([|*_`<\[\]])", r"\\\1", short)

    def listed(head: str, lines: list[str]) -> str:
        return "\n".join([head, re.sub(r"[^|]+", "---", head), *lines])

    sections = [
        f"The board at the commit {versions.get('board', '')[:8] or 'unknown'}; cupyops {versions.get('cupyops')}, "
        f"PyTorch {versions.get('torch')}, libclang {versions.get('libclang')}, {versions.get('compiler')}.",
        listed("| programs | |", [f"| {count} | {what} |" for what, count in counts(results).items()]),
    ]
    wrong, sized, changing, unjudged = [], [], [], collections.Counter[str]()
    for name, row in rows:
        found, label = row["verdict"], which(name, row)
        if found["word"] == "wrong":
            what = "; ".join(KINDS[kind] for kind in found["found"]) + (
                f": {found['why']}" if found.get("read") else ""
            )
            wrong.append(f"| {label} | {line(what)} | {found['sizes']} | {row['speedup']:.2f} |")
        elif found["word"] == "not judged":
            unjudged[line(found["why"], 300)] += 1
        elif found["why"]:
            sized.append(f"| {label} | {line(found['why'], 300)} |")
        if row.get("overwrites"):
            changing.append(f"level {which(name, row).removeprefix('level ').replace(' | ', ' ')}")
    if wrong:
        head = "| problem | file | what is wrong | at which sizes | speedup that the board lists |"
        sections += ["## Wrong programs", listed(head, wrong)]
    if sized:
        sections += ["## Right, with a reservation", listed("| problem | file | reservation |", sized)]
    if changing:
        sections += ["## Programs that overwrite their input", f"Their reference does not: {', '.join(changing)}."]
    if unjudged:
        reasons = [f"| {count} | {why} |" for why, count in unjudged.items()]
        sections += ["## Not judged", listed("| programs | why |", reasons)]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    sys.exit(main())
