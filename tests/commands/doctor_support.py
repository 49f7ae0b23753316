"""A made-up machine for the doctor to examine: every question it asks of a real one has an answer to set here."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cupyops.__main__ import main
from cupyops.commands import doctor, doctor_optional
from cupyops.compile import compiler, toolchain
from cupyops.compile.cache import Binary
from cupyops.simulator import host

ROOT = Path(__file__).parents[2]
SEARCH_FOR_HEADERS = toolchain.cuda_headers.__wrapped__  # after its cache


class NoDevice(RuntimeError):
    """Stands for CuPy's error."""


def fake_cupy(driver: int = 13000, cuda: int = 12090, capabilities: tuple[int, ...] = (90,), problem: str = "") -> Any:
    """A stand-in for CuPy with the functions that the doctor calls, on a machine with these GPUs."""

    def count() -> int:
        if problem:
            raise NoDevice(problem)
        return len(capabilities)

    def properties(index: int) -> dict[str, Any]:
        major, minor = divmod(capabilities[index], 10)
        return {"name": b"NVIDIA H200", "major": major, "minor": minor, "totalGlobalMem": 139 * 2**30}

    runtime = SimpleNamespace(
        driverGetVersion=lambda: driver,
        runtimeGetVersion=lambda: cuda,
        getDeviceCount=count,
        getDeviceProperties=properties,
    )
    return SimpleNamespace(
        __version__="14.2.0", __file__="/site-packages/cupy/__init__.py", cuda=SimpleNamespace(runtime=runtime)
    )


def gpus(**machine: Any) -> dict[str, Callable[..., Any]]:
    """The parts that a driver and its GPUs are."""
    return {"cupy": lambda: fake_cupy(**machine)}


def raises(error: Exception) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


def compile_anything(text: str, *_: Any) -> Binary:
    """Stands for a compiler that needs headers where a text includes some."""
    if "#include <" in text:
        toolchain.cuda_headers()
    return Binary(b"", "", {}, 0.1)


class Machine:
    """A made-up machine, at first without a fault; a test breaks one thing of it."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.patch, self.capsys = patch, capsys
        for name in [n for n in os.environ if n.startswith(("CUPYOPS_", "CUDA_"))]:
            patch.delenv(name)
        patch.setenv("CUPYOPS_CACHE_DIR", str(folder / "cache"))
        self.has(
            cupy=fake_cupy,
            nvrtc=lambda: None,
            nvrtc_version=lambda: (12, 9),
            cuda_headers=lambda: folder,
            header_version=lambda _: (12, 9),
            loaded_libraries=lambda _: ["/lib/libnvrtc.so.12"],
            cupy_distributions=lambda: {"cupy-cuda12x": "14.2.0"},
            torch_build=lambda: ("2.11.0+cu130", (13, 0)),
            driver_release=lambda: "580.95.05",
            nvidia_hardware=lambda: True,
        )
        self.compiles(compile_anything)
        patch.setattr(doctor, "launches_right", lambda: True)
        patch.setattr(host, "compiler", lambda: host.Compiler(("g++",), "gcc", "g++ 14.2.0"))
        patch.setattr(host, "cuda_include", lambda: folder)
        patch.setattr(doctor_optional, "simulation_problem", lambda: "")
        for module in (compiler, doctor):
            patch.setattr(module, "supported_architectures", lambda: (75, 80, 90, 100))
        patch.setattr(compiler, "nvrtc_version", lambda: (12, 9))

    def has(self, **parts: Callable[..., Any]) -> None:
        """Puts functions in the place of the toolchain's."""
        for name, part in parts.items():
            self.patch.setattr(toolchain, name, part)

    def compiles(self, function: Callable[..., Binary]) -> None:
        self.patch.setattr(doctor, "compile_text", function)

    def report(self) -> tuple[int, list[str], list[tuple[str, str]], str]:
        """Returns the command's exit status, facts, faults with their fixes, and last line."""
        status = main(["doctor"])
        lines = self.capsys.readouterr().out.splitlines()
        first = next((i for i, line in enumerate(lines) if line.startswith("FAULT ")), len(lines) - 1)
        faults = lines[first:-1]
        assert all(line.startswith("FAULT ") for line in faults[::2])
        assert all(line.startswith("  mend: ") for line in faults[1::2])
        pairs = [
            (a.removeprefix("FAULT "), b.removeprefix("  mend: "))
            for a, b in zip(faults[::2], faults[1::2], strict=True)
        ]
        assert all(": " in fact for fact in lines[:first])
        return status, lines[:first], pairs, lines[-1]
