"""Imports run one way, between rooms and between files. `make lint` checks it (:mod:`tests.project.forms`)."""

import ast
from collections.abc import Container, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

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
        "cupyops.sizes",
    ),
    ("cupyops.compile",),
    ("cupyops.arrays",),
    # from a text to a call
    ("cupyops.launch",),
    ("cupyops.tiling",),
    ("cupyops.programs",),
    ("cupyops.ops", "cupyops.tuning", "cupyops.simulator"),
    ("cupyops.profiling", "cupyops.proving"),
    # the parts that work without PyTorch
    ("cupyops",),
    ("cupyops.commands",),
    ("cupyops.__main__",),
    # with PyTorch
    ("cupyops.torch.compiled", "cupyops.torch.scale"),
    ("cupyops.torch.core",),
    ("cupyops.importer",),
    ("cupyops.cpp_extension",),
    ("cupyops.torch.programs",),
    ("cupyops.torch.ops",),
    (
        "cupyops.torch.check",
        "cupyops.torch.onnx",
        "cupyops.torch.serving",
    ),
    ("cupyops.torch.bench",),
    ("cupyops.torch.models", "cupyops.torch.fusions"),
    ("cupyops.torch",),
    ("cupyops.testing",),
    ("autograd_bridge", "cupyops.notebook"),
    ("cupyops.integrations",),
    ("cupyops.examples",),
    ("examples", "benchmarks", "tests"),
)
FLOORS = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}
FIRST_WITH_TORCH = FLOORS["cupyops.torch.compiled"]

# What the package of a room has at its top is the face of what lies below it, so these are said by name: the face loads the part
# that knows tensors at the first tensor, the reader of extensions at its first use, and the notebook's magic at %load_ext, and none
# when it is imported. It looks whether the program has imported PyTorch and used a GPU. Clang's tree is read only for a text
# with host code whose device code is not on disk.
WHEN_ASKED_FOR = {
    ("cupyops", "cupyops.torch.core.tensors"),
    ("cupyops", "cupyops.importer.starting_file"),
    ("cupyops.commands.run", "cupyops.cpp_extension"),
    ("cupyops.commands.optimize", "cupyops.integrations.scripts"),
    ("cupyops.compile.device_half", "cupyops.importer.slice"),
    ("cupyops", "cupyops.notebook"),
    ("cupyops", "torch"),
}


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


def findings(root: Path) -> Iterator[tuple[Path, int, str]]:
    """(file, line, what is wrong) of imports that run against the order of the rooms, and of files that import each other."""
    for room in FLOORS:
        path = root / room.replace(".", "/")
        if not (path.is_dir() or path.with_suffix(".py").exists()):
            yield Path(__file__), 1, f"ROOMS has {room}, which is not there"
    files = files_of(root)
    graph: dict[str, set[str]] = {module: set() for module in files}
    for module, path in files.items():
        room = room_of(module)
        if room is None:
            yield path, 1, f"{module} lies in no room: add it to ROOMS of {__name__}, or lay it into one"
            continue
        for line, name in imported_modules(path, module, files):
            if (module, name) in WHEN_ASKED_FOR:
                continue
            other = room_of(name)
            if name.partition(".")[0] == "torch":
                against = FLOORS[room] < FIRST_WITH_TORCH
            else:
                against = other is not None and other != room and FLOORS[other] >= FLOORS[room]
            if against:
                yield path, line, f"imports {name}, which lies above {room}"
            if name in files and name != module:
                graph[module].add(name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle = error.args[1]
        yield files[circle[0]], 1, f"files import each other: {' <- '.join(circle)}"
