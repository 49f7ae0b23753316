"""Small things that several test files use."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from torch import Tensor

from cupyops.simulator import build
from tests import preloaded

ROOT = Path(__file__).parents[1]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Seconds after which a test takes what it waits for to hang. A loaded machine makes everything slow, and does not come near.
HANG = 1800
# What :func:`fork_ranks` imports.
OF_RANKS = ("torch.distributed.tensor.parallel", "torch.distributed.tensor.debug", "torch._dynamo")
# As parameters of a test: see with_floats.
BY_DEFAULT = (torch.float32, torch.bfloat16)
EACH_FLOAT = [
    pytest.param(d, id=str(d).removeprefix("torch."), marks=[] if d in BY_DEFAULT else pytest.mark.thorough)
    for d in FLOATS
]
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def without_python_file(message: str) -> str:
    """A message of the simulator with the lines of the text alone: ``at ops.py:31 (scale.cu:7)`` becomes ``at scale.cu:7``."""
    return re.sub(r"\S+\.py:\d+ \((\S+:\d+)\)", r"\1", message)


def alike(a: Tensor, b: Tensor) -> bool:
    """Returns whether two tensors have the same shape, dtype and bits (NaN equals NaN, -0 does not equal 0)."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    kind = _BITS[a.element_size()]
    return torch.equal(a.detach().contiguous().view(kind), b.detach().contiguous().view(kind))


def printed_by(module: str, cache: Path) -> Any:
    """Returns the JSON that ``python -m module`` prints, with an empty cache and without the variables of cupyops."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith("CUPYOPS_")}
    environment |= {"PYTHONPATH": str(ROOT), "CUPYOPS_CACHE_DIR": str(cache)}
    done = preloaded.run(["-m", module], cwd=ROOT, env=environment)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def fork_ranks(run: Callable[..., object], arguments: tuple[Any, ...], count: int) -> None:
    """Runs a function in processes of gloo, with the rank and the arguments. What ranks import, this process imports for all of them."""
    for name in OF_RANKS:
        importlib.import_module(name)
    torch.multiprocessing.start_processes(run, arguments, nprocs=count, start_method="fork")


def install(folder: Path, *requirements: str) -> None:
    """Installs packages alone, without those that they depend on, into a folder."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target", str(folder)]
    subprocess.run([*command, *requirements], check=True)


def with_floats(cases: Iterable[Any], each: int = 2) -> list[Any]:
    """Returns parameters for a test that takes a case and a floating dtype. A case is a value or a ``pytest.param``.

    By default, a case has float32 and bfloat16: a text has one path for both of 16 bits, the dtypes of the others differ in the
    width of a vector, and the simulator would compile the text for each. The other dtypes are thorough. With ``each=1``, a
    case has one of the two in turn. If cases come in pairs, the pairs take turns.
    """
    found = []
    for number, case in enumerate(cases):
        values = case.values if hasattr(case, "values") else (case,)
        name = getattr(case, "id", None) or "-".join(map(str, values))
        for dtype in FLOATS:
            chosen = dtype in (BY_DEFAULT if each == 2 else (BY_DEFAULT[(number + number // 2) % 2],))
            marks = [] if chosen else [pytest.mark.thorough]
            found.append(pytest.param(*values, dtype, id=f"{name}-{str(dtype).removeprefix('torch.')}", marks=marks))
    return found


def give_runtime(root: Path) -> None:
    """Copies the simulator's runtime into an empty cache of the simulator, which takes seconds to compile it."""
    entry = build.runtime_path().parent
    shutil.copytree(entry, root / entry.name)
