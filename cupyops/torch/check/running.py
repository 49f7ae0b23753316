"""Checks of how an operator runs: under sanitizers, with guard bands, repeatedly, in threads, on side streams, on a
second GPU, and in CUDA graphs."""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cupyops import simulator
from cupyops.commands.compile import ARCHITECTURES, NO_SPILLS, compile_job, jobs_for
from cupyops.compile import toolchain
from cupyops.compile.compiler import first_error, supported_architectures
from cupyops.errors import CompileError, LaunchError, MissingDependencyError
from cupyops.launch import debug
from cupyops.launch import recording as launches

from .compare import assert_close, assert_same_bits
from .failures import MEND_THE_TEXT, first_words
from .inputs import Arguments, fresh, lead_of, misaligned_all, moved_on, to_device, with_rows
from .registry import KERNEL_BACKENDS, Fault, Skip, check
from .subject import Subject

__all__ = [
    *(
        "compiles",
        "determinism",
        "few_rows",
        "graph_replay",
        "guard_bands",
        "sanitizer",
        "second_device",
        "side_stream",
        "threads",
    ),
]

# Samples with more elements lose rows before they run in the simulator, which takes microseconds per element.
SIMULATED_ELEMENTS = 1 << 14
BUSY_CYCLES = 20_000_000  # GPU clock cycles: about 10 ms


@check(
    "The message names the line, the block and the thread, and both lines of a race. If several threads add to one "
    "address, use atomicAdd, or write partial sums and add them after a barrier or in a second launch.",
    backends=KERNEL_BACKENDS,
    ground=True,
    compares="",
)
def sanitizer(subject: Subject) -> str:
    """In the simulator, no access is out of bounds or misaligned, and no accesses race in shared or global memory."""
    cpu = torch.device("cpu")
    try:
        with simulator.simulate(sanitize=True), launches.recorded() as record:
            for _dtype, args in subject.variants:
                cut = few_rows(to_device(args, cpu))
                subject.results(fresh(cut))
                subject.results(misaligned_all(cut))
    except LaunchError as error:
        raise Fault(str(error)) from error
    except MissingDependencyError as error:
        raise Skip(first_words(error)) from None
    except CompileError as error:
        if subject.backend != "cuda" and "NVRTC accepts the text" not in str(error):
            raise
        raise Skip(f"the simulator does not cover the text: {first_words(error)}") from None
    if not record:
        raise Skip("the operator launches no kernel")
    names = dict.fromkeys(launch.kernel.name for launch in record)
    return f"{len(record)} launches of {', '.join(names)}"


@check(
    "`python -m cupyops compile` shows size, registers and spills for every architecture. To avoid spills, shrink the "
    "arrays of a thread, index them with compile-time constants, or use a smaller block.",
    backends=KERNEL_BACKENDS,
    compares="",
)
def compiles(subject: Subject) -> str:
    """The kernels compile for NVRTC's oldest architecture and sm_90 without warnings, and for sm_90 without spills."""
    with launches.recorded() as record:
        for _dtype, args in subject.variants:
            subject.results(fresh(args))
    kernels = list({id(launch.kernel): launch.kernel for launch in record}.values())
    if not kernels:
        raise Skip("the operator launches no kernel")
    if not toolchain.has_nvrtc():
        raise Skip("NVRTC is not installed here")
    architectures = sorted({max(min(supported_architectures()), ARCHITECTURES[0]), NO_SPILLS})
    rows = [compile_job(job) for job in jobs_for(kernels, architectures)]
    for row in rows:
        where = f"{row.what} for sm_{row.architecture}"
        if row.error:
            raise Fault(first_error(row.error), MEND_THE_TEXT)
        if row.warnings:
            raise Fault(f"{where}: {row.warnings[0]}")
        if row.spills_in_vain:
            raise Fault(f"{where} spills {row.spilled} bytes of registers")
    most = max(row.registers for row in rows)
    return f"{len(rows)} compilations of {', '.join(dict.fromkeys(k.name for k in kernels))}; at most {most} registers"


def few_rows(args: Arguments) -> Arguments:
    """Returns the sample with at most `SIMULATED_ELEMENTS` elements in its lead, and at least one row."""
    lead = lead_of(args)
    if lead.numel() <= SIMULATED_ELEMENTS or not lead.dim():
        return args
    per_row = lead.numel() // lead.shape[0]
    return with_rows(args, max(1, SIMULATED_ELEMENTS // per_row))


@check(
    "The message names the kernel, the output and the element.",
    backends=("cuda",),
    ground=True,
    compares="",
)
def guard_bands(subject: Subject) -> str:
    """In debug mode, no launch writes outside its outputs."""
    tried = 0
    for dtype, args in subject.variants:
        for what, changed in (("as given", args), ("not aligned", misaligned_all(args))):
            wanted = subject.results(fresh(changed) if changed is args else changed)
            try:
                with debug.debug_mode():
                    got = subject.results(fresh(changed) if changed is args else changed)
            except LaunchError as error:
                raise Fault(f"{dtype}, {what}: {error}") from error
            assert_close(f"{dtype}, {what}, in debug mode", got, wanted, than="a call without debug mode gives")
            tried += 1
    return subject.told(tried, "samples")


@check(
    "Sum in a fixed order, without atomics. Read no memory that the call has not written. Keep no state between calls, and set no seed.",
    backends=KERNEL_BACKENDS,
    ground=True,
)
def determinism(subject: Subject) -> str:
    """Repeated calls with the same arguments give bit-identical outputs and gradients."""
    runs = 100 if subject.backend == "cuda" else 10
    for dtype, args in subject.each:
        if subject.op.reference is not None and _draws(subject, args) and not _draws(subject, args, subject.reference):
            raise Fault(
                f"{dtype}: the body changes the state of PyTorch's random generator, and the reference does not"
            )
        first = subject.results(fresh(args))
        for run in range(1, runs):
            assert_same_bits(f"{dtype}, run {run + 1}", subject.results(fresh(args)), first, "the first run gives")
    return f"{runs} runs of {subject.told(len(subject.each), 'samples')}"


def _draws(subject: Subject, args: Arguments, function: Callable[..., Any] | None = None) -> bool:
    """Returns whether a call of the operator, or of another function, changes the state of PyTorch's random generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0x5EED)
        before = torch.get_rng_state()
        subject.outputs(fresh(args), function)
        return not torch.equal(before, torch.get_rng_state())


def _two_data(args: Arguments) -> Iterator[Arguments]:
    for by in (1, 7):
        yield moved_on(args, by)


@check(
    "Keep no buffers, arrays or counters between calls: allocate them in the body and in the backward.",
    needs=("side_stream",),
)
def threads(subject: Subject) -> str:
    """Concurrent threads, each with its own data, get the results that the same calls give in one thread."""
    count, rounds = (8, 25) if subject.backend == "cuda" else (4, 8)
    dtype, args = subject.one_each[0]
    given = [moved_on(args, i) for i in range(count)]
    wanted: list[Mapping[str, Tensor]] = []
    failures: list[BaseException] = []

    def alone() -> None:
        try:
            wanted.extend(subject.results(fresh(mine)) for mine in given)
            _synchronize(subject)
        except BaseException as error:
            failures.append(error)

    # In a thread, as the calls below: torch.set_num_threads holds for the thread that calls it, and the bits of a product
    # on a CPU depend on the number of threads.
    first = threading.Thread(target=alone)
    first.start()
    first.join()
    if failures:
        raise failures[0]
    # Every round begins in all threads at once. On a busy machine, threads that only start together run one after
    # another, and calls that share a buffer never meet.
    together = threading.Barrier(count)

    def work(mine: Arguments, right: Mapping[str, Tensor]) -> None:
        try:
            with _own_stream(subject):
                for _ in range(rounds):
                    copy = fresh(mine)
                    together.wait()
                    got = subject.results(copy)
                    _synchronize_stream(subject)
                    _same(subject, f"{dtype}, in one of {count} threads", got, right, "one thread alone gives")
        except threading.BrokenBarrierError:
            pass  # another thread has failed and reported why
        except BaseException as error:
            failures.append(error)
            together.abort()

    workers = [threading.Thread(target=work, args=pair) for pair in zip(given, wanted, strict=True)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # Python switches threads more often than by default
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    if failures:
        raise failures[0]
    return f"{count} threads, {rounds} calls of {dtype} each"


def _same(subject: Subject, what: str, got: Mapping[str, Tensor], wanted: Mapping[str, Tensor], than: str) -> None:
    """Compares bits of kernels' results; compares the reference's results, whose bits may vary, by their error."""
    if subject.kernels:
        assert_same_bits(what, got, wanted, than)
    else:
        assert_close(what, got, wanted, than=than)


@contextmanager
def _own_stream(subject: Subject) -> Iterator[None]:
    if subject.backend != "cuda":
        yield
        return
    with torch.cuda.device(subject.device), torch.cuda.stream(torch.cuda.Stream(subject.device)):
        yield


def _synchronize(subject: Subject) -> None:
    if subject.backend == "cuda":
        torch.cuda.synchronize(subject.device)


def _synchronize_stream(subject: Subject) -> None:
    if subject.backend == "cuda":
        torch.cuda.current_stream(subject.device).synchronize()


def _poison(like: Mapping[str, Tensor]) -> None:
    """Fills memory of these sizes with 77 and frees it: the caching allocator most likely returns it next."""
    held = [torch.full_like(x, 77) for x in like.values()]
    del held


@check(
    "Launch on PyTorch's current stream, as a Kernel does by default: no stream of your own, and no default stream. "
    "Call CuPy functions inside `Stream.from_external(torch.cuda.current_stream())`.",
    backends=("cuda",),
)
def side_stream(subject: Subject) -> str:
    """On a side stream, while the default stream is busy, the results are right once the side stream has finished."""
    dtype, args = subject.one_each[0]
    rounds = 5
    for by in range(rounds):
        data = moved_on(args, by)
        wanted = subject.results(fresh(data))
        _synchronize(subject)
        side = torch.cuda.Stream(subject.device)
        torch.cuda._sleep(BUSY_CYCLES)  # a kernel wrongly on the default stream finishes after the side stream's reader
        with torch.cuda.stream(side):
            torch.cuda._sleep(BUSY_CYCLES // 10)
            _poison(wanted)
            got = subject.results(fresh(data))
            copies = {name: x.clone() for name, x in got.items()}
        side.synchronize()
        assert_same_bits(f"{dtype}, on a side stream", copies, wanted, "the default stream gives")
        _synchronize(subject)
    return f"{rounds} rounds of {dtype}"


@check(
    "Allocate on the tensors' device (`torch.empty_like(x)`, `x.new_empty`). Keep no memory or handles of one GPU "
    "between calls.",
    backends=("cuda",),
)
def second_device(subject: Subject) -> str:
    """Tensors on a GPU that is not current give results on that GPU, with the same bits as on the current GPU."""
    if torch.cuda.device_count() < 2:
        raise Skip("there is one GPU")
    other = torch.device("cuda", 1 - subject.device.index if subject.device.index < 2 else 0)
    for dtype, args in subject.each:
        with torch.cuda.device(subject.device):
            wanted = subject.results(fresh(args))
            got = subject.results(fresh(to_device(args, other)))
            if torch.cuda.current_device() != subject.device.index:
                raise Fault(f"{dtype}: the call made another device current")
        for name, x in got.items():
            if x.device != other:
                raise Fault(f"{dtype}: {name} is on {x.device}, and the inputs are on {other}")
        assert_same_bits(f"{dtype}, on {other}", got, wanted, f"{subject.device} gives")
    return subject.told(len(subject.each), "samples")


@check(
    "A replay repeats the launches on the same addresses and runs no Python. Read no values on the host, allocate only "
    "through PyTorch, and choose no kernel or grid by the data.",
    backends=("cuda",),
    needs=("side_stream",),
)
def graph_replay(subject: Subject) -> str:
    """A CUDA graph of a call and its gradient, replayed with new data, gives the results of a call on that data."""
    dtype, args = subject.one_each[0]
    static = fresh(args)
    seeds = subject.seeds(subject.differentiable(static))  # copies from the host, which a capture forbids
    with torch.cuda.stream(torch.cuda.Stream(subject.device)):
        subject.results(static, seeds=seeds)  # compiles kernels and makes one-time allocations before the capture
    _synchronize(subject)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
            got = subject.results(static, seeds=seeds)
    except Exception as error:
        raise Fault(f"{dtype}: the capture failed: {first_words(error)}") from error
    replays = 0
    for data in _two_data(args):
        with torch.no_grad():
            for held, new in zip(static, data, strict=True):
                if isinstance(held, Tensor):
                    held.copy_(new)
        graph.replay()
        _synchronize(subject)
        assert_same_bits(f"{dtype}, replayed with new data", got, subject.results(fresh(data)), "a call gives")
        replays += 1
    return f"{replays} replays of {dtype}"
