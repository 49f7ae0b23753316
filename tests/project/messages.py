"""The messages of the exceptions that the package raises, read from its source."""

import ast
import builtins
import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = (*sorted((ROOT / "cupyops").rglob("*.py")), ROOT / "autograd_bridge.py")

GAP = "…"  # what differs from call to call
# Exceptions that no caller sees: a function of the package catches each, and puts its words into another message or a report.
INSIDE = {
    "Damaged": "the message of a bundle that is refused",
    "Fault": "a row of check_op's report, which says what to change",
    "OtherResults": "a line of bench_op's report",
    "Refused": "the message of a file or folder that is not used",
    "Skip": "a row of check_op's report",
    "UnreadableError": "a line of OptimizeReport",
}
# Functions that make a message, or a part of one, for an exception that is raised elsewhere.
MAKERS = {
    "compile/compiler.py": ("_explain",),
    "launch/driver.py": ("refusal",),
    "simulator/explain.py": ("explain",),
    "simulator/report.py": ("_sentence",),
}
# Exceptions that carry no words of this package.
WITHOUT_WORDS = {"AssertionError", "AttributeError", "KeyboardInterrupt", "NotImplementedError", "SystemExit"}


@cache
def exceptions() -> frozenset[str]:
    """Returns the names of the exceptions whose messages reach a caller."""
    names = {
        name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)
    }
    names = {name for name in names if not issubclass(getattr(builtins, name), Warning)}
    for path in LIBRARY:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and {ast.unparse(base).rpartition(".")[2] for base in node.bases} & names:
                names.add(node.name)
    names.add("ArgumentTypeError")
    return frozenset({name for name in names if not name.startswith("_")} - set(INSIDE) - WITHOUT_WORDS)


class Words:
    """The strings that an expression of a function may give, with a gap for each part that is known only when it runs."""

    def __init__(self, function: ast.AST) -> None:
        self.assigned: dict[str, list[ast.Assign]] = {}
        self.blocks: dict[ast.AST, tuple[int, ...]] = {}  # the blocks that a node lies in, from the function inwards
        self.place(function, ())

    def place(self, node: ast.AST, blocks: tuple[int, ...]) -> None:
        self.blocks[node] = blocks
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self.assigned.setdefault(node.targets[0].id, []).append(node)
        for _, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self.place(child, (*blocks, id(value)) if isinstance(child, ast.stmt) else blocks)

    def values_at(self, name: ast.Name) -> list[ast.expr]:
        """Returns what the name may have been assigned last, where it is read."""
        before = [a for a in self.assigned.get(name.id, []) if a.lineno < name.lineno]
        here = self.blocks[name]
        # An assignment whose block holds the place of reading replaces every assignment before it.
        sure = [a.lineno for a in before if self.blocks[a] == here[: len(self.blocks[a])]]
        return [a.value for a in before if a.lineno >= max(sure, default=0)]

    def of(self, node: ast.expr | None, depth: int = 0) -> list[str]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return [node.value]
        if isinstance(node, ast.JoinedStr):
            return self.joined(node.values, depth)
        if isinstance(node, ast.FormattedValue):
            return self.of(node.value, depth)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.joined([node.left, node.right], depth)
        if isinstance(node, ast.IfExp):
            return [*self.of(node.body, depth), *self.of(node.orelse, depth)]
        if isinstance(node, ast.Name) and depth < 2:
            found = [words for value in self.values_at(node) for words in self.of(value, depth + 1)]
            return found if found and all(re.search(r"\w", w.replace(GAP, "")) or not w for w in found) else [GAP]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "expected":
                where, argument, wanted, got = node.args
                return self.joined([where, ": `", argument, "` must ", wanted, ", got ", got], depth)
            if node.func.id == "nearest":
                return [""]
        return [GAP]

    def joined(self, parts: list[ast.expr] | list[ast.expr | str], depth: int) -> list[str]:
        each = [[part] if isinstance(part, str) else self.of(part, depth) for part in parts]
        return ["".join(choice) for choice in itertools.product(*each)]


def plain(words: str) -> str:
    """Returns a message in one line, with one gap where several are side by side."""
    words = re.sub(rf"{GAP}(?:[\s:]*{GAP})+", GAP, " ".join(words.split()))
    return words.strip()


def raised(path: Path) -> Iterator[tuple[str, int]]:
    """Yields each message of a file, and its line."""
    names = exceptions()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    seen: set[int] = set()
    for function in [*reversed(functions), tree]:  # a function within another has its own names
        words = Words(function)
        for node in ast.walk(function):
            if not isinstance(node, ast.Call) or id(node) in seen or not node.args:
                continue
            called = ast.unparse(node.func)
            if called.rpartition(".")[2] not in names and called != "warnings.warn":
                continue
            seen.add(id(node))
            for message in words.of(node.args[0]):
                if re.search(r"\w", message.replace(GAP, "")):
                    yield plain(message), node.lineno


def made(path: Path, function: str) -> Iterator[tuple[str, int]]:
    """Yields what a function returns, and the first line of what it joins."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (maker,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    words = Words(maker)
    for node in ast.walk(maker):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.JoinedStr):
            texts = words.of(node.value, depth=2)  # which word stands for a read or a write matters to nobody
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.List) and node.value.elts:
            texts = words.of(node.value.elts[0], depth=2)
        else:
            continue
        yield from ((plain(text), node.lineno) for text in texts if re.search(r"\w", text.replace(GAP, "")))


def of_the_runtime(path: Path) -> Iterator[tuple[str, int]]:
    """Yields the faults that a file of the simulator's runtime or headers, in C++, reports."""
    text = path.read_text(encoding="utf-8")
    begin = r"append\((?:fault|begin_fault\(\w+\)), |const char TOO_\w+\[\] = |refuse\(\w+, \w+\(0\), |cupyops_misuse\("
    for call in re.finditer(rf'\b(?:{begin})"([^"]+)"', text):
        message = re.sub(r"%(?:\d+)?l?[a-z]|0x%08x|0x%lx", GAP, call[1].replace("0x%", "%"))
        if re.search(r"\w", message.replace(GAP, "")):
            yield plain(message), text.count("\n", 0, call.start()) + 1


def all_messages() -> dict[str, list[str]]:
    """Returns each message that a caller may see, and the places that raise it."""
    found: dict[str, list[str]] = {}

    def add(path: Path, messages: Iterator[tuple[str, int]]) -> None:
        for message, line in messages:
            found.setdefault(message, []).append(f"{path.relative_to(ROOT).as_posix()}:{line}")

    for path in LIBRARY:
        add(path, raised(path))
    for name, functions in MAKERS.items():
        for function in functions:
            add(ROOT / "cupyops" / name, made(ROOT / "cupyops" / name, function))
    simulator = ROOT / "cupyops" / "simulator"
    for path in sorted(
        [
            *(simulator / "runtime").glob("*.cpp"),
            *(simulator / "cuda").glob("*.h"),
            *(simulator / "include").rglob("*.h"),
        ]
    ):
        add(path, of_the_runtime(path))
    return found


def listed(page: str) -> list[str]:
    """Returns the messages in the first column of a page's tables."""
    found = []
    for cell in re.findall(r"^\| (`.*?`) \| ", page, re.MULTILINE):
        for span in cell.split("<br>"):
            words = span[3:-3] if span.startswith("`` ") else span[1:-1]
            found.append(words.replace("\\|", "|"))
    return found
