"""Help and wrong arguments are answered before anything that takes long is imported, and importing reads no kernel's text."""

import json
import subprocess
import sys

import pytest

import cupyops  # noqa: F401 - declares them
import kernels_cu
from cupyops.__main__ import main
from cupyops.launch.kernel import all_kernels

# Runs modules as the command line does, each in a fork of a process that has imported only cupyops, and returns the
# modules imported since.
RUN = """
import json, os, runpy, sys
import cupyops
for module, *arguments in json.loads(sys.argv[1]):
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    sys.argv[1:] = arguments
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
    heavy = ("torch", "cupy", "numpy", "triton", "matplotlib", "onnx")
    print("\\nrun", json.dumps([module, *arguments]), "status", status, "loaded", sorted(set(heavy) & set(sys.modules)), flush=True)
    os._exit(0)
"""
HELP = [
    ("cupyops",),
    ("cupyops", "--help"),
    *(
        ("cupyops", command, "--help")
        for command in ("new", "run", "optimize", "compile", "bundle", "cache", "doctor", "ide")
    ),
    ("benchmarks", "--help"),
    ("benchmarks.lltm", "--help"),
    ("tests.mutants.mutate", "--help"),
    ("notebooks", "--help"),
]
WRONG = [
    ("cupyops", "no_such_command"),
    *(
        ("cupyops", command, "--no-such-option")
        for command in ("new", "run", "optimize", "compile", "bundle", "cache", "doctor", "ide")
    ),
    ("cupyops", "compile", "--arch", "sm_1"),
    ("cupyops", "new", "no name"),
    ("benchmarks", "--ops", "no_such_operator"),
    ("benchmarks", "--sizes", "2^99"),
    ("benchmarks", "--from", "file.json"),
    ("benchmarks", "--ops", "lenet5"),
    ("benchmarks.lltm", "--steps", "many"),
    ("tests.mutants.mutate", "--no-such-option"),
    ("notebooks", "--no-such-option"),
]


@pytest.fixture(scope="module")
def told() -> str:
    """Returns the output of a command."""
    asked = json.dumps([*HELP, *WRONG])
    return subprocess.run([sys.executable, "-c", RUN, asked], capture_output=True, text=True, check=True).stdout


@pytest.mark.sample(2)
@pytest.mark.parametrize("argv", HELP, ids=" ".join)
def test_help_imports_nothing_that_takes_long(argv: tuple[str, ...], told: str) -> None:
    assert f"\nrun {json.dumps(argv)} status 0 loaded []\n" in told


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: python -m cupyops ")
    assert "write a starter file for an operator of your own" in shown


@pytest.mark.parametrize("argv", WRONG, ids=" ".join)
def test_wrong_arguments_are_answered_before_anything_that_takes_long_is_imported(
    argv: tuple[str, ...], told: str
) -> None:
    assert f"\nrun {json.dumps(argv)} status 2 loaded []\n" in told


def test_importing_reads_no_text_of_a_kernel() -> None:
    """More than a hundred kernels are declared: to read their texts took most of the import."""
    lines = (
        "import cupyops",
        "from cupyops.compile.cuda_text import scan",
        "from cupyops.launch.kernel import all_kernels",
        "print(scan.cache_info().misses, len(all_kernels()) > 100, scan.cache_info().misses)",
    )
    found = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["0", "True", "0"]


def test_every_declaration_of_this_package_can_be_read() -> None:
    """Imports do not parse declarations, so a test must."""
    shipped = [kernel for kernel in all_kernels() if isinstance(kernel.text, kernels_cu.Text)]
    assert len(shipped) > 100
    for kernel in shipped:
        assert kernel.signature.kernel == kernel.name
