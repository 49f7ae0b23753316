"""Reads PTX, the assembly that NVRTC makes, into functions of instructions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

__all__ = ["Function", "Instruction", "Program", "parse"]


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction.

    Attributes:
        opcode: its parts, ``("ld", "global", "f32")``.
        operands: registers, numbers, symbols, ``[address]`` and ``{vectors}``.
        guard: the predicate register, or ``""``.
        inverse: the instruction runs where the predicate is false.
        line: the place in the source, ``scale.cu:7``.
    """

    opcode: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str
    inverse: bool
    line: str


@dataclass
class Function:
    """A kernel or a device function.

    Attributes:
        name: the name in PTX.
        results, parameters: the names of its values.
        blocks: basic blocks; the first one is the entry. A block that ends without a branch continues with the next.
        labels: the block of each label.
        types: of each register, ``b32``.
        cluster: the blocks of a cluster in x, y, z.
    """

    name: str
    results: list[str]
    parameters: list[str]
    blocks: list[list[Instruction]] = field(default_factory=lambda: [[]])
    labels: dict[str, int] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    cluster: tuple[int, int, int] = (1, 1, 1)


@dataclass
class Program:
    """The functions by name, and the variables: (bytes, state space, alignment) by name; None bytes for dynamic memory."""

    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, tuple[int | None, str, int]] = field(default_factory=dict)


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_FUNCTION = re.compile(
    r"(?P<kind>\.entry|\.func)\s*(?:\((?P<results>[^)]*)\)\s*)?(?P<name>[\w$.]+)\s*\((?P<parameters>[^)]*)\)(?P<rest>[^;{]*)(?P<end>[;{])"
)
_VARIABLE = re.compile(
    r"\.(?P<space>global|const|shared|local)\b(?P<kind>(?:\s*\.(?:align\s+\d+|v[248]|[a-z]\w*))*)\s+(?P<name>[\w$]+)(?P<extents>(?:\[\d*\])*)"
)
_CLUSTER = re.compile(r"\.reqnctapercluster\s+(\d+)\s*,\s*(\d+)\s*,\s*(\d+)")
_FILE = re.compile(r'\.file\s+(\d+)\s+"([^"]*)"')
_TOKEN = re.compile(r"[{}]|[$\w]+:(?!:)|\.loc\b[^\n]*|[^\s;][^;]*;")
_BRANCHES = {"bra", "ret", "exit", "brx", "trap"}


def width_of(kind: str) -> int:
    """Returns the bits of a type, ``b32``; 1 for a predicate."""
    found = re.search(r"(\d+)(?:x(\d+))?$", kind)
    return int(found[1]) * int(found[2] or 1) if found else 1


def parse(text: str) -> Program:
    """Returns the program of a PTX text.

    Raises:
        ValueError: the text is not PTX as NVRTC writes it.
    """
    files = {number: name.replace("\\", "/").rpartition("/")[2] for number, name in _FILE.findall(text)}
    text = _COMMENT.sub("", text)
    program = Program()
    at = 0
    while found := _FUNCTION.search(text, at):
        _variables(text[at : found.start()], program)
        at = found.end()
        if found["end"] == ";":
            continue
        depth, end = 1, at
        while depth:
            brace = re.compile(r"[{}]").search(text, end)
            if brace is None:
                raise ValueError("a function without an end")
            depth += 1 if brace[0] == "{" else -1
            end = brace.end()
        names = [
            [one.split()[-1].partition("[")[0] for one in (found[k] or "").split(",") if one.strip()]
            for k in ("results", "parameters")
        ]
        function = Function(found["name"], names[0], names[1])
        if cluster := _CLUSTER.search(found["rest"]):
            function.cluster = tuple(map(int, cluster.groups()))  # type: ignore[assignment]
        _body(text[at : end - 1], function, program, files)
        program.functions[function.name] = function
        at = end
    return program


def _variables(text: str, program: Program) -> None:
    for found in _VARIABLE.finditer(re.sub(r"\{[^}]*\}", "", text)):
        _variable(found, program)


def _variable(found: "re.Match[str]", program: Program) -> None:
    kinds = [k for k in found["kind"].split() if k.startswith(".") and k != ".align" and not k.startswith(".v")]
    vector = re.search(r"\.v([248])\b", found["kind"])
    size: int | None = max(width_of(kinds[-1]) // 8, 1) * (int(vector[1]) if vector else 1)
    for extent in re.findall(r"\[(\d*)\]", found["extents"]):
        size = size * int(extent) if extent and size is not None else None
    aligned = re.search(r"\.align\s+(\d+)", found["kind"])
    program.variables[found["name"]] = (size, found["space"], int(aligned[1]) if aligned else width_of(kinds[-1]) // 8)


def _body(text: str, function: Function, program: Program, files: dict[str, str]) -> None:
    scopes: list[dict[str, str]] = [{}]
    line, count = "", 0
    open_scopes = [0]  # a label of inline assembly is that of its braces
    branches: list[tuple[int, int, tuple[int, ...]]] = []
    for found in _TOKEN.finditer(_vectors(text)):
        words = found[0].rstrip(";").strip()
        if words == "{":
            scopes.append({})
            count += 1
            open_scopes.append(count)
        elif words == "}":
            scopes.pop()
            open_scopes.pop()
        elif re.match(r"\.loc\s", words):
            parts = words.split()
            line = f"{files.get(parts[1], parts[1])}:{parts[2]}"
        elif re.fullmatch(r"[$\w]+:", words):
            if function.blocks[-1] or len(function.blocks) == 1:
                function.blocks.append([])
            function.labels[f"{words[:-1]}@{open_scopes[-1]}"] = len(function.blocks) - 1
        elif words.startswith(".reg"):
            _, kind, names = words.split(None, 2)
            for name in names.split(","):
                name = name.strip()
                base, _, many = name.partition("<")
                own = [f"{base}{i}" for i in range(int(many[:-1]))] if many else [base]
                for one in own:
                    new = one if len(scopes) == 1 else f"{one}@{count}"
                    scopes[-1][one] = new
                    function.types[new] = kind.lstrip(".")
        elif words.startswith("."):
            if variable := _VARIABLE.match(words):
                _variable(variable, program)
        elif words:
            instruction = _instruction(words, scopes, line)
            function.blocks[-1].append(instruction)
            if instruction.opcode[0] == "bra":
                branches.append((len(function.blocks) - 1, len(function.blocks[-1]) - 1, tuple(open_scopes)))
            if instruction.opcode[0] in _BRANCHES:
                function.blocks.append([])
    for block, place, seen in branches:
        branch = function.blocks[block][place]
        (name,) = branch.operands
        label = next((f"{name}@{s}" for s in reversed(seen) if f"{name}@{s}" in function.labels), None)
        if label is None:
            raise ValueError(f"a branch to {name}, which is not a label")
        function.blocks[block][place] = replace(branch, operands=(label,))


def _vectors(text: str) -> str:
    """Removes spaces inside the braces of vectors."""
    return re.sub(r"\{\s*([%\w$@.,\s-]*?)\s*\}", lambda m: "{" + re.sub(r"\s+", "", m[1]) + "}", text)


def _instruction(words: str, scopes: Sequence[dict[str, str]], line: str) -> Instruction:
    guard, inverse = "", False

    def renamed(found: "re.Match[str]") -> str:
        return next((s[found[0]] for s in reversed(scopes) if found[0] in s), found[0])

    if words.startswith("@"):
        first, words = words.split(None, 1)
        inverse = first[1] == "!"
        guard = re.sub(r"[%$\w]+", renamed, first[1 + inverse :])
    opcode, _, rest = words.partition(" ") if " " in words.replace("\t", " ") else (words, "", "")
    opcode, rest = re.match(r"(\S+)\s*(.*)", words, re.DOTALL).groups()  # type: ignore[union-attr]
    rest = re.sub(r"[%$\w]+(?:\.[xyz]\b)?", lambda m: m[0] if "." in m[0] else renamed(m), rest)
    operands, depth, start = [], 0, 0
    for i, c in enumerate(rest + ","):
        depth += (c in "{[(") - (c in "}])")
        if c == "," and not depth:
            operands.append(re.sub(r"\s+", "", rest[start:i]))
            start = i + 1
    return Instruction(tuple(opcode.split(".")), tuple(o for o in operands if o), guard, inverse, line)
