"""Imports run one way, between rooms and between files; and these checks themselves can fail."""

import ast
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIBRARY = ("kernels_cu", "cupyops", "autograd_bridge.py")

# The rooms, lowest first. A file may import its own room and the rooms in lines above it; rooms of one line do not know each
# other. A room is named by its longest prefix here.
ROOMS = (
    ("kernels_cu",),
    # the ground
    ("cupyops.environment",),
    ("cupyops.errors", "cupyops.trust"),
    (
        "cupyops.codegen",
        "cupyops.dtypes",
        "cupyops.sharing",
        "cupyops.installing",
        "cupyops.interrupts",
    ),
    ("cupyops.compile",),
    ("cupyops.arrays",),
    # from a text to a call
    ("cupyops.launch",),
    ("cupyops.tiling",),
    ("cupyops.programs",),
    ("cupyops.ops", "cupyops.tuning", "cupyops.simulator", "cupyops.extension"),
    ("cupyops.profiling",),
    # what a person meets without PyTorch
    ("cupyops",),
    ("cupyops.commands",),
    ("cupyops.__main__",),
    # with PyTorch
    ("cupyops.torch.compiled", "cupyops.torch.scale"),
    ("cupyops.torch.core",),
    ("cupyops.torch.programs",),
    ("cupyops.torch.ops",),
    ("cupyops.torch.check", "cupyops.torch.onnx", "cupyops.torch.models", "cupyops.torch.fusions"),
    ("cupyops.torch.bench",),
    ("cupyops.torch",),
    ("autograd_bridge", "cupyops.notebook"),
    ("cupyops.examples",),
    ("examples", "benchmarks", "tests"),
)
FLOORS = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}
FIRST_WITH_TORCH = FLOORS["cupyops.torch.compiled"]

# What the package of a room has at its top is the face of what lies below it, so these are said by name: the face loads the part
# that knows tensors at the first tensor, and the notebook's magic at %load_ext, and neither when it is imported. It looks whether
# the program has imported PyTorch and used a GPU. The launch looks whether PyTorch is imported, and keeps torch.compile out.
WHEN_ASKED_FOR = {
    ("cupyops.launch.untraced", "torch"),
    ("cupyops", "cupyops.torch.core.tensors"),
    ("cupyops", "cupyops.notebook"),
    ("cupyops", "torch"),
}

# The rooms ------------------------------------------------------------------------------------------------------------


def room_of(module: str) -> str | None:
    """The room of a module, or None where it is not the project's."""
    inside = [room for room in FLOORS if f"{module}.".startswith(f"{room}.")]
    found = max(inside, key=len, default=None)
    # Nothing is in the room of the face but the face.
    return None if found == "cupyops" and module != "cupyops" and not module.startswith("cupyops.__") else found


def module_of(path: Path, root: Path) -> str:
    """The name that a file is imported by."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(path: Path, module: str, files: Container[str]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import in a file, wherever it stands in it: statements, within functions and for types alone, too,
    calls of ``import_module`` and ``__import__`` with a name, and names looked up in ``sys.modules``; relative names are made
    absolute.

    ``from a import b`` is an import of ``a.b`` where that is among the files, and of ``a`` for every other name.
    """
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    looked_up = set(map(id, names_of_modules(tree)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute("." * node.level + (node.module or ""), package)
            inside = {f"{base}.{alias.name}" for alias in node.names}
            for name in {name if name in files else base for name in inside}:
                yield node.lineno, name
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            named = [a.value for a in node.args[:1] if isinstance(a, ast.Constant)]
            yield from ((node.lineno, absolute(str(name), package)) for name in named)
        elif isinstance(node, ast.Constant) and id(node) in looked_up:
            yield node.lineno, str(node.value)


def names_of_modules(tree: ast.AST) -> Iterator[ast.Constant]:
    """The names in ``sys.modules["a"]``, ``sys.modules.get("a")`` and ``"a" in sys.modules``."""
    for node in ast.walk(tree):
        found: list[ast.expr] = []
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("sys.modules"):
            found = [node.slice]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("sys.modules.get"):
            found = node.args[:1]
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[-1]).endswith("sys.modules"):
            found = [node.left]
        yield from (x for x in found if isinstance(x, ast.Constant))


def absolute(name: str, package: str) -> str:
    """A name with dots before it, as the package means it."""
    level = len(name) - len(name.lstrip("."))
    above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
    return ".".join([*above, *([name[level:]] if name[level:] else [])])


def files_of(root: Path) -> dict[str, Path]:
    """The library's files by module."""
    paths = (p for name in LIBRARY for p in ([root / name] if name.endswith(".py") else (root / name).rglob("*.py")))
    return {module_of(p, root): p for p in sorted(paths)}


def edges(files: Mapping[str, Path]) -> Iterator[tuple[str, int, str]]:
    """(module, line, module that it imports), of the library's own."""
    for module, path in files.items():
        for line, name in imported_modules(path, module, files):
            if name in files and name != module:
                yield module, line, name


def climbs(root: Path) -> list[str]:
    """What runs against the order of the rooms in the library under a folder, ``cupyops/ops/gelu.py:3 imports torch``."""
    files, found = files_of(root), {}
    for module, path in files.items():
        room = room_of(module)
        assert room is not None, f"{module} lies in no room: add it to ROOMS, or lay it into one"
        for line, name in imported_modules(path, module, files):
            other = room_of(name)
            if name.partition(".")[0] == "torch":
                against = FLOORS[room] < FIRST_WITH_TORCH
            else:
                against = other is not None and other != room and FLOORS[other] >= FLOORS[room]
            if against and (module, name) not in WHEN_ASKED_FOR:
                found[f"{path.relative_to(root).as_posix()}:{line} imports {name}"] = None
    return list(found)


def circles(root: Path) -> list[list[str]]:
    """Files that import each other, by whatever way round."""
    files = files_of(root)
    graph: dict[str, set[str]] = {module: set() for module in files}
    for module, _, name in edges(files):
        # The part that knows tensors is loaded by a finder, when all files have been read.
        if (module, name) not in WHEN_ASKED_FOR:
            graph[module].add(name)
    reached = {module: reach(graph, module) for module in graph}
    rings = {
        frozenset(m for m in reached[module] if module in reached[m]) for module in graph if module in reached[module]
    }
    return sorted(map(sorted, rings))


def reach(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """What can be reached from a file by imports."""
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph[module]
    return seen


def test_imports_run_one_way() -> None:
    assert climbs(ROOT) == []


def test_no_files_import_each_other() -> None:
    assert circles(ROOT) == []


def test_every_room_is_there() -> None:
    for room in FLOORS:
        path = ROOT / room.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), f"there is no {room}"


def test_the_check_sees_the_whole_library() -> None:
    found = {(module, name) for module, _, name in edges(files_of(ROOT))}
    assert {
        ("cupyops.compile.source", "kernels_cu"),
        ("cupyops.ops.gelu", "cupyops.launch.kernel"),  # by an absolute name
        ("cupyops.launch.kernel", "cupyops.launch.driver"),  # by a relative one
        ("cupyops.simulator", "cupyops.simulator.simulated"),  # within a function
        ("cupyops", "cupyops.torch.core.tensors"),  # by import_module
        ("autograd_bridge", "cupyops.torch.ops.gelu"),
    } <= found


CLEAN = {
    "kernels_cu/__init__.py": "import re",
    "cupyops/__init__.py": "from .ops.gelu import gelu",
    "cupyops/errors.py": "",
    "cupyops/arrays.py": "from .errors import x",
    "cupyops/launch/__init__.py": "",
    "cupyops/launch/driver.py": "from ..arrays import x",
    "cupyops/launch/kernel.py": "from . import driver\nfrom cupyops import arrays",
    "cupyops/ops/__init__.py": "",
    "cupyops/ops/gelu.py": "import kernels_cu\nfrom .torchlike import x\nimport torchvision\nfrom cupyops.launch.kernel import K",
    "cupyops/simulator/__init__.py": "from cupyops.launch import kernel",
    "cupyops/torch/__init__.py": "from .core.operator import Operator",
    "cupyops/torch/core/__init__.py": "",
    "cupyops/torch/core/operator.py": "import torch\nfrom ...ops.gelu import gelu",
    "autograd_bridge.py": "import torch\nfrom cupyops import torch as mechanism",
}


def plant(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("kernels_cu/__init__.py", "import cupyops.errors", "kernels_cu/__init__.py:1 imports cupyops.errors"),
        ("kernels_cu/__init__.py", "import torch", "kernels_cu/__init__.py:1 imports torch"),
        ("cupyops/ops/gelu.py", "import torch", "cupyops/ops/gelu.py:1 imports torch"),
        ("cupyops/ops/gelu.py", "def f():\n    import torch.nn as nn", "cupyops/ops/gelu.py:2 imports torch.nn"),
        ("cupyops/ops/gelu.py", "from torch.nn import functional", "cupyops/ops/gelu.py:1 imports torch.nn"),
        ("cupyops/ops/gelu.py", "from ..torch import Operator", "cupyops/ops/gelu.py:1 imports cupyops.torch"),
        ("cupyops/ops/gelu.py", "from .. import torch", "cupyops/ops/gelu.py:1 imports cupyops.torch"),
        ("cupyops/__init__.py", "from . import torch", "cupyops/__init__.py:1 imports cupyops.torch"),
        ("cupyops/ops/gelu.py", "from cupyops import torch", "cupyops/ops/gelu.py:1 imports cupyops.torch"),
        ("cupyops/ops/gelu.py", "import autograd_bridge", "cupyops/ops/gelu.py:1 imports autograd_bridge"),
        ("cupyops/ops/gelu.py", "import_module('torch')", "cupyops/ops/gelu.py:1 imports torch"),
        ("cupyops/ops/gelu.py", "sys.modules.get('torch')", "cupyops/ops/gelu.py:1 imports torch"),
        ("cupyops/ops/gelu.py", "sys.modules['torch'].cuda", "cupyops/ops/gelu.py:1 imports torch"),
        ("cupyops/ops/gelu.py", "x = 'torch.fx' in sys.modules", "cupyops/ops/gelu.py:1 imports torch.fx"),
        # A relative name in a call is one, too.
        (
            "cupyops/arrays.py",
            "import_module('.torch.core.operator', __package__)",
            "cupyops/arrays.py:1 imports cupyops.torch.core.operator",
        ),
        # Rooms below torch have floors of their own.
        ("cupyops/arrays.py", "from .launch import kernel", "cupyops/arrays.py:1 imports cupyops.launch.kernel"),
        (
            "cupyops/launch/kernel.py",
            "def f():\n    from .. import simulator",
            "cupyops/launch/kernel.py:2 imports cupyops.simulator",
        ),
        (
            "cupyops/launch/driver.py",
            "if TYPE_CHECKING:\n    from cupyops.ops.gelu import gelu",
            "cupyops/launch/driver.py:2 imports cupyops.ops.gelu",
        ),
        ("cupyops/ops/gelu.py", "import cupyops.simulator", "cupyops/ops/gelu.py:1 imports cupyops.simulator"),
        (
            "cupyops/simulator/__init__.py",
            "import cupyops.ops.gelu",
            "cupyops/simulator/__init__.py:1 imports cupyops.ops.gelu",
        ),
        (
            "cupyops/torch/core/operator.py",
            "from autograd_bridge import gelu",
            "cupyops/torch/core/operator.py:1 imports autograd_bridge",
        ),
        (
            "cupyops/torch/core/operator.py",
            "from tests import conftest",
            "cupyops/torch/core/operator.py:1 imports tests",
        ),
        ("autograd_bridge.py", "from benchmarks import timing", "autograd_bridge.py:1 imports benchmarks"),
    ],
)
def test_the_check_tells_a_planted_climb(file: str, text: str, told: str, tmp_path: Path) -> None:
    plant(tmp_path, CLEAN)
    assert climbs(tmp_path) == []
    plant(tmp_path, {file: text})
    found = climbs(tmp_path)
    assert told in found
    assert all(line.startswith(f"{file}:") for line in found)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("cupyops/launch/driver.py", "from .kernel import Kernel"),
        ("cupyops/launch/driver.py", "if TYPE_CHECKING:\n    from .kernel import Kernel"),
        ("cupyops/launch/driver.py", "def f():\n    from cupyops.launch.kernel import Kernel"),
        ("cupyops/launch/driver.py", "import_module('.kernel', __package__)"),
        ("cupyops/arrays.py", "import cupyops.launch.kernel"),  # round two rooms
    ],
)
def test_the_check_tells_a_planted_circle(file: str, text: str, tmp_path: Path) -> None:
    plant(tmp_path, CLEAN)
    assert circles(tmp_path) == []
    plant(tmp_path, {file: text})
    (circle,) = circles(tmp_path)
    assert {"cupyops.launch.kernel", file.removesuffix(".py").replace("/", ".")} <= set(circle)
