"""``python -m cupyops doctor``: prints the versions of this installation, and the command that fixes each fault.

A check is a generator that yields facts and faults. It does not assume that any package works; an exception in a check
becomes a fault. The checks read PyTorch's version without importing PyTorch.
"""

import argparse
import importlib.metadata
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from cupyops import __version__
from cupyops.compile import toolchain
from cupyops.compile.cache import default_folder
from cupyops.compile.compiler import OPTIONS, compile_text, supported_architectures, target_for
from cupyops.errors import CompileError, MissingDependencyError
from cupyops.installing import pip_install
from cupyops.trust import Refused, open_folder

from .doctor_optional import RUNS, check_optional, check_simulator, check_torch_nvrtc
from .findings import COMPILING, LAUNCHING, Fact, Fault, Finding

__all__ = ["CHECKS", "Fact", "Fault", "add_parser", "examine"]

MEND = ". Mend it with: "  # precedes the command in an error whose remedy does not depend on the installation


# Checks


def check_packages() -> Iterator[Finding]:
    """Reports Python, cupyops, NumPy, and ml_dtypes, which defines bfloat16 for NumPy and CuPy."""
    yield Fact("python", f"{platform.python_version()} ({sys.executable}) on {platform.platform()}")
    yield Fact("cupyops", f"{__version__} in {Path(__file__).parents[1]}")
    yield from required("numpy", "CuPy does not import without it", pip_install("", "numpy"))
    yield from required("ml_dtypes", "there are no bfloat16 arrays outside torch", pip_install("cuda12", "ml_dtypes"))


def check_torch() -> Iterator[Finding]:
    """Reports PyTorch, and whether its build and the driver allow CUDA tensors on this machine's GPUs."""
    torch = toolchain.torch_build()
    if torch is None:
        yield Fact("torch", "not installed")
        yield Fault("torch is not installed: autograd_bridge does not import, cupyops does", pip_install("", "torch"))
        return
    version, cuda = torch
    driver = toolchain.driver_cuda()
    yield Fact("torch", f"{version}, {f'built for CUDA {dotted(cuda)}' if cuda else 'built without CUDA'}")
    if cuda is None and toolchain.gpu_count():
        yield Fault(
            f"torch {version} is built without CUDA, and there is a GPU: no tensor can be put on it",
            "pip uninstall -y torch && pip install torch (on Windows as pytorch.org/get-started says)",
        )
    if cuda and driver and driver[0] < cuda[0]:
        yield Fault(
            f"torch is built for CUDA {dotted(cuda)}, and the driver supports it up to {dotted(driver)}: "
            "torch sees no GPU",
            f"update the NVIDIA driver, or install a torch built for CUDA {driver[0]} "
            "(as pytorch.org/get-started says)",
        )


def check_cupy() -> Iterator[Finding]:
    """Reports CuPy, and whether several CuPy distributions are installed."""
    found = toolchain.cupy_distributions()
    named = ", ".join(f"{name} {version}" for name, version in found.items())
    try:
        cupy = toolchain.cupy()
    except MissingDependencyError as error:
        yield Fact("cupy", f"{named}, does not import" if named else "not installed")
        mend = str(error).partition(MEND)[2] or (toolchain.reinstall_line() if found else toolchain.install_line())
        yield Fault(problem_of(error), mend, COMPILING)
    else:
        folder = Path(cupy.__file__ or "").parent
        yield Fact("cupy", f"{cupy.__version__} ({named or 'from no known distribution'}) in {folder}")
    if len(found) > 1:
        what = f"{named} are installed into one folder: they overwrite each other's files"
        yield Fault(what, toolchain.reinstall_line())


def check_cuda_majors() -> Iterator[Finding]:
    """Reports the CUDA versions of PyTorch and CuPy. A difference is not a fault: the kernels of cupyops run anyway."""
    torch, cupy = toolchain.torch_build(), toolchain.cupy_cuda()
    if torch is None or torch[1] is None or cupy is None:
        return
    verdict = "the majors agree"
    if torch[1][0] != cupy[0]:
        verdict = "the majors differ: kernels run anyway, CuPy's own matrix products may lack their libraries"
    yield Fact("CUDA of torch, cupy", f"{dotted(torch[1])}, {dotted(cupy)}; {verdict}")


def check_nvrtc() -> Iterator[Finding]:
    """Reports NVRTC's version, its file, and the architectures that it supports."""
    try:
        version = toolchain.nvrtc_version()
    except MissingDependencyError as error:
        yield Fact("nvrtc", "not found")
        if toolchain.cupy_cuda():  # otherwise CuPy is missing, and check_cupy has reported it
            yield Fault(problem_of(error), toolchain.install_line(), COMPILING)
        return
    files = toolchain.loaded_libraries("libnvrtc.so")
    yield Fact("nvrtc", f"{dotted(version)}, {', '.join(files) or 'from an unknown file'}")
    yield Fact("nvrtc compiles for", ", ".join(f"sm_{a}" for a in supported_architectures()))


def check_headers() -> Iterator[Finding]:
    """Reports the folder and the version of CUDA's headers."""
    if not toolchain.has_nvrtc():
        yield Fact("headers", "not looked for without NVRTC")
        return
    try:
        folder = toolchain.cuda_headers()
    except MissingDependencyError as error:
        yield Fact("headers", "not found")
        yield Fault(problem_of(error), toolchain.install_line())
    else:
        version = toolchain.header_version(folder)
        yield Fact("headers", f"{dotted(version) if version else 'of unknown version'}, {folder}")


def check_compiling() -> Iterator[Finding]:
    """Compiles a kernel that includes no header of CUDA, and a kernel that includes some."""
    from cupyops.ops.gelu import FORWARD

    if not toolchain.has_nvrtc():
        yield Fact("compile", "not tried without NVRTC")
        return
    kernel, architecture = FORWARD["none"], max(a for a in supported_architectures() if a <= 90)
    for dtype, stops in (("float32", COMPILING), ("float16", "")):
        types = {"scalar_t": dtype}
        what = f"{kernel.describe(types)} for sm_{architecture}"
        try:
            binary = compile_text(kernel.final_text(types), kernel.describe(types), f"sm_{architecture}", OPTIONS)
        except CompileError:
            yield Fact("compile", f"{what} fails")
            yield Fault(
                f"{what} does not compile: files of NVRTC or of CUDA's headers are missing or do not belong together",
                f"{toolchain.install_line()}; see the compiler's errors with "
                f"python -m cupyops compile --arch {architecture} --kernels {kernel.name} --dtypes {dtype}",
                stops,
            )
        except MissingDependencyError:
            continue  # check_headers has reported the missing headers
        else:
            yield Fact("compile", f"{what} in {binary.seconds * 1000:.0f} ms")


def check_cache() -> Iterator[Finding]:
    """Reports the folder of the compile cache, and whether it is writable; does not create the folder."""
    folder = default_folder()
    sizes = [p.stat().st_size for p in folder.glob("*.cubin")]
    if refused := refusal(folder):
        yield Fact("cache", f"{folder} (refused)")
        yield Fault(
            f"the cache folder is not used, since another user can change it: {refused}",
            "correct the owner or the mode, or choose another folder: export CUPYOPS_CACHE_DIR=FOLDER",
        )
        return
    problem = unwritable(folder)
    state = f"not writable: {problem}" if problem else "writable" if folder.is_dir() else "to be made when first needed"
    yield Fact("cache", f"{folder} ({state}), {len(sizes)} kernels, {sum(sizes) / 2**20:.1f} MiB")
    if problem:
        yield Fault(
            f"the cache folder {folder} cannot be written ({problem}): every process compiles all kernels again",
            "export CUPYOPS_CACHE_DIR=FOLDER, naming a folder that you may write",
        )


def check_driver() -> Iterator[Finding]:
    """Reports the driver's release, from NVML, and the newest CUDA that it supports, from the CUDA runtime."""
    release, cuda = toolchain.driver_release(), toolchain.driver_cuda()
    told = [release] if release else []
    if toolchain.cupy_cuda():
        told.append(f"supports CUDA up to {dotted(cuda)}" if cuda else "none that CUDA can load")
    yield Fact("driver", ", ".join(told) or "not known without CuPy")


def check_gpus() -> Iterator[Finding]:
    """Reports the GPUs, and whether the installed NVRTC compiles for them."""
    if not toolchain.cupy_cuda():
        yield Fact("GPUs", "not known without CuPy")
        return
    runtime, count = toolchain.cupy().cuda.runtime, toolchain.gpu_count()
    if not count:
        yield Fact("GPUs", "none")
        if toolchain.driver_cuda() or toolchain.nvidia_hardware():  # otherwise there is nothing to fix
            yield no_gpu()
    for index in range(count):
        properties = runtime.getDeviceProperties(index)
        capability = properties["major"] * 10 + properties["minor"]
        about = f"{properties['name'].decode()}, sm_{capability}, {properties['totalGlobalMem'] / 2**30:.1f} GiB"
        if not toolchain.has_nvrtc():
            yield Fact(f"GPU {index}", about)
            continue
        try:
            target = target_for(capability)
        except CompileError as error:
            yield Fact(f"GPU {index}", f"{about}, too old for this NVRTC")
            what = str(error).partition(". Use the CuPy of an older CUDA")[0]
            newest = toolchain.nvrtc_version() >= (13, 0)
            mend = toolchain.reinstall_line(12) if newest else "use a newer GPU: no CUDA 12 compiles for this one"
            yield Fault(f"GPU {index}: {what}", mend, LAUNCHING if count == 1 else "")
        else:
            newer = ", newer than NVRTC: the driver compiles its PTX" if target.startswith("compute_") else ""
            yield Fact(f"GPU {index}", f"{about}, compiled for as {target}{newer}")


def check_launch() -> Iterator[Finding]:
    """Launches a kernel on CuPy's current GPU, through the compile cache, and checks its results."""
    if not (toolchain.has_nvrtc() and toolchain.gpu_count()):
        yield Fact("launch", f"not tried without {'a GPU' if toolchain.has_nvrtc() else 'NVRTC'}")
        return
    try:
        right = launches_right()
    except Exception as error:
        yield Fact("launch", "fails")
        mend = "mend the other faults first; then see the state of the GPU with `nvidia-smi`"
        yield Fault(f"a launch of add2 fails: {error}", mend, LAUNCHING)
        return
    yield Fact("launch", f"add2 of 1000 float32, {'every one right' if right else 'with wrong results'}")
    if not right:
        mend = "CUPYOPS_DEBUG=1 python -m cupyops doctor, and report what it says"
        yield Fault("a launch of add2 gives wrong results", mend, LAUNCHING)


def check_environment() -> Iterator[Finding]:
    """Reports the environment variables that cupyops and CUDA read."""
    for name, value in sorted(os.environ.items()):
        if name.startswith("CUPYOPS_") or name in ("CUDA_VISIBLE_DEVICES", "CUDA_PATH", "CUDA_HOME"):
            yield Fact(f"environment {name}", repr(value))


Check = Callable[[], Iterable[Finding]]
CHECKS: tuple[Check, ...] = (
    check_packages,
    check_torch,
    check_cupy,
    check_cuda_majors,
    check_nvrtc,
    check_torch_nvrtc,
    check_headers,
    check_compiling,
    check_cache,
    check_driver,
    check_gpus,
    check_launch,
    check_simulator,
    check_optional,
    check_environment,
)


# Helpers of the checks


def required(distribution: str, without: str, mend: str) -> Iterator[Finding]:
    """Reports a distribution's version, or a fault if the distribution is not installed."""
    try:
        yield Fact(distribution, importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        yield Fact(distribution, "not installed")
        yield Fault(f"{distribution} is not installed: {without}", mend)


def problem_of(error: MissingDependencyError) -> str:
    """Returns the error's message without its install command; the right command depends on what is installed."""
    return re.split(r"\. (?:Install|Mend) (?:it|them) with: ", str(error), maxsplit=1)[0]


def no_gpu() -> Fault:
    """Returns the fault of a machine on which CUDA sees no GPU: no driver, an old driver, or hidden GPUs."""
    driver, cupy = toolchain.driver_cuda(), toolchain.cupy_cuda()
    container = "for a container, start it with --gpus all"
    if driver is None or cupy is None:
        return Fault(
            "no driver: there is an NVIDIA GPU, and no kernel runs on it; CPU tensors work, through the operators' "
            "references in plain PyTorch",
            f"install the GPU's driver, until `nvidia-smi` lists the GPU; {container}",
            LAUNCHING,
        )
    if driver[0] < cupy[0]:
        other = f", or {toolchain.reinstall_line(driver[0])}" if driver[0] >= 12 else ""
        return Fault(
            f"the driver is too old: it supports CUDA up to {dotted(driver)}, and CuPy is built for CUDA {cupy[0]}",
            f"update the NVIDIA driver{other}",
            LAUNCHING,
        )
    reason = "the driver counts none"
    try:
        toolchain.cupy().cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy raises its own exception types
        reason = str(error)
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and "NoDevice" in reason:
        what = f"no GPU: CUDA_VISIBLE_DEVICES is {hidden!r}, which names none"
        return Fault(what, "unset CUDA_VISIBLE_DEVICES", LAUNCHING)
    return Fault(f"no GPU: {reason}", f"check whether `nvidia-smi` lists a healthy GPU; {container}", LAUNCHING)


def launches_right() -> bool:
    """Launches add2 on a thousand numbers; returns whether the results are right. CuPy itself only copies."""
    import numpy

    from cupyops.ops.add2 import add2

    numbers = numpy.arange(1000, dtype=numpy.float32)
    x = toolchain.cupy().asarray(numbers)
    return bool((add2(x, x, alpha=2).get() == 3 * numbers).all())


def refusal(folder: Path) -> str:
    """Returns why a folder, or its simulator's folder, is refused; an empty string if the folders can be trusted."""
    for each in (folder, folder / "simulator"):
        try:
            with open_folder(each):
                pass
        except Refused as refused:
            return str(refused)
        except OSError:
            pass
    return ""


def unwritable(folder: Path) -> str:
    """Returns why a folder is not writable, or an empty string. For a missing folder, tests its nearest parent."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is not a folder"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or type(error).__name__


def dotted(version: tuple[int, int]) -> str:
    """Formats (12, 9) as "12.9"."""
    return ".".join(map(str, version))


# The command


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the command ``doctor`` to the command line."""
    parser = commands.add_parser(
        "doctor",
        help="report the installation and its faults",
        description="Reports versions, GPUs, driver, compiler, headers and compile cache; compiles and launches a "
        "kernel; and prints the command that fixes each fault.",
        epilog="Exit status: 0 if kernels run here: on the GPUs or, on a machine without an NVIDIA GPU, in the simulator; "
        "else 1.",
    )
    parser.set_defaults(run=run, parser=parser)


def run(options: argparse.Namespace) -> int:
    """Runs the command; returns 0 if all kernels run that can run on this machine, else 1."""
    findings = examine()
    faults = [f for f in findings if isinstance(f, Fault)]
    for fact in findings:
        if isinstance(fact, Fact):
            print(one_line(f"{fact.name}: {fact.value}"))
    for fault in faults:
        print(one_line(f"FAULT {fault.what}"))
        print(f"  mend: {one_line(fault.mend)}")
    status, last = verdict(findings)
    print(last)
    return status


def examine(checks: Iterable[Check] = CHECKS) -> list[Finding]:
    """Returns the findings of all checks; an exception in a check becomes a fault after the check's findings."""
    findings: list[Finding] = []
    for check in checks:
        try:
            for finding in check():
                findings.append(finding)  # noqa: PERF402 (findings before an exception are kept)
        except Exception as error:
            what = f"{getattr(check, '__name__', check)} broke: {type(error).__name__}: {error}"
            findings.append(Fault(what, "report this output as a bug"))
    return findings


def verdict(findings: Iterable[Finding]) -> tuple[int, str]:
    """Returns the exit status, and the last line of the report: whether kernels compile, and where they run."""
    found = list(findings)
    stopped = {f.stops for f in found if isinstance(f, Fault)}
    # Where the simulator is not tried, there is no fault, and no kernel has run.
    simulated = any(isinstance(f, Fact) and f.name == "simulator" and f.value.startswith(RUNS) for f in found)
    if COMPILING in stopped:
        words = "CUDA kernels can be neither compiled nor launched here"
        if not simulated:
            return 1, f"{words}."
        # A machine without a GPU needs NVRTC only to compile for other machines.
        gpu = toolchain.gpu_count() > 0 or toolchain.nvidia_hardware()
        return int(gpu), f"{words}. Kernels on CPU tensors run, in the simulator."
    if LAUNCHING in stopped:
        return 1, "Everything but launching works here: CUDA kernels compile, for any architecture that NVRTC knows."
    if Fact("GPUs", "none") not in found:
        return 0, "CUDA kernels compile and run here."
    compile_ = "CUDA kernels compile here, for any architecture that NVRTC knows. There is no NVIDIA GPU:"
    if not simulated:
        return 1, f"{compile_} CPU tensors work through the operators' references in plain PyTorch."
    return 0, f"{compile_} kernels run in the simulator, and CPU tensors work."


def one_line(text: str) -> str:
    """Returns the text in one line, without the lines of `=` that CuPy prints around a message."""
    return " ".join(word for word in text.split() if word.strip("="))
