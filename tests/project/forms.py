"""Compares statements of pages, tables and lists with the source: `make lint`. Each line of output is a file, a line
and a fault."""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import tomllib

from cupyops.compile.header_list import HEADERS, OWN, SystemHeader
from cupyops.compile.system_headers import _PACKAGES
from cupyops.installing import EXTRAS
from cupyops.simulator.library import DECLINED, INTRINSICS
from cupyops.simulator.ptx import INSTRUCTIONS
from tests.importer import refused
from tests.project import floors
from tests.project.site_lists import table_of_runs

ROOT = Path(__file__).resolve().parents[2]
DOCS, LIBRARY, KERNELS = ROOT / "docs", ROOT / "cupyops", ROOT / "kernels_cu"
Findings = Iterator[tuple[Path, int, str]]


@cache
def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def files(*patterns: str) -> list[Path]:
    """The files of the repository that match; none of its virtual environment, caches and outputs."""
    hidden = re.compile(r"(^|/)(\.(?!ci/|github/)[^/]+|__pycache__|build|dist|site|runs|data)/")
    found = {path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(path for path in found if not hidden.search(path.relative_to(ROOT).as_posix()))


def matches(pattern: str, paths: Iterable[Path]) -> Iterator[tuple[Path, int, re.Match[str]]]:
    """(file, line, match) of a pattern in files."""
    for path in paths:
        for found in re.finditer(pattern, read(path), re.MULTILINE):
            yield path, read(path).count("\n", 0, found.start()) + 1, found


def lines_are(page: Path, wanted: Iterable[str], pattern: str = "(?!)") -> Findings:
    """Lines that a page must have; of those that match a pattern, it has no others."""
    wanted, lines = set(wanted), read(page).splitlines()
    yield from ((page, 1, f"lacks the line: {line}") for line in sorted(wanted.difference(lines)))
    for number, line in enumerate(lines, 1):
        if re.fullmatch(pattern, line) and line not in wanted:
            yield page, number, f"has what the source does not have: {line}"


def public(path: Path) -> list[str]:
    """The names of a module's ``__all__``."""
    for node in ast.parse(read(path)).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# Pages -----------------------------------------------------------------------------------------------------------------

PAGES = files("*.md", "docs/**/*.md", "examples/*.md", "notebooks/*.md", ".github/*.md")


def names_in_pages() -> Findings:
    """Files and commands that a page names, and links of the pages that `make docs` does not build."""
    for path, line, found in matches(r"`((?:kernels_cu|cupyops|tests|examples|benchmarks)/[\w/]+\.\w+)`", PAGES):
        if "NAME" not in found[1] and not (ROOT / found[1]).exists():
            yield path, line, f"names {found[1]}, which is not there"
    for path, line, found in matches(r"\]\(([^)#\s:]+)[^)\s:]*\)", [p for p in PAGES if DOCS not in p.parents]):
        if not (path.parent / found[1]).exists():
            yield path, line, f"links {found[1]}, which is not there"
    targets = re.findall(r"^([a-z]+):", read(ROOT / "Makefile"), re.MULTILINE)
    for path, line, found in matches(r"(?:^|`)make((?: [a-z]+)+)(?:`|$)", [*PAGES, ROOT / ".ci" / "run"]):
        yield from ((path, line, f"`make {name}` is no command") for name in found[1].split() if name not in targets)


def reference() -> Findings:
    """A public name has one line in the reference."""
    for package, page in ((LIBRARY, "cupyops"), (LIBRARY / "torch", "cupyops_torch")):
        path = DOCS / "reference" / f"{page}.md"
        shown = re.findall(r"^::: cupyops\.(?:torch\.)?(\w+)$", read(path), re.MULTILINE)
        for name in sorted({*shown, *(names := public(package / "__init__.py"))}):
            if (shown.count(name), names.count(name)) != (1, 1):
                yield path, 1, f"has {shown.count(name)} lines of {name}, which is public {names.count(name)} times"


def headers_and_variables() -> Findings:
    """A shared header has a section, and an environment variable a row."""
    page = DOCS / "headers.md"
    named = re.findall(r"`([\w.]+)`", "".join(re.findall(r"^## .*", read(page), re.MULTILINE)))
    there = [path.name for folder in ("shared", "hardware") for path in (KERNELS / folder).glob("*.cuh")]
    yield from ((page, 1, f"a section of {name}, or no such header") for name in {*named} ^ {*there})
    page = DOCS / "environment.md"
    listed = set(re.findall(r"^\| `(CUPYOPS_\w+)`", read(page), re.MULTILINE))
    read_by = {
        found[1]: (path, line)
        for path, line, found in matches(r'"(CUPYOPS_[A-Z_]+)"', files("*/**/*.py"))
        if path != Path(__file__)
    }
    yield from ((*read_by[name], f"{name} has no row in docs/environment.md") for name in read_by.keys() - listed)
    yield from ((page, 1, f"{name} is read by nothing") for name in listed - read_by.keys())


def shown_texts() -> Findings:
    """A page that shows a text of the repository shows it as it is."""
    for path in files("examples/puzzles/*.cu"):
        if f"(../examples/puzzles/{path.name})<!-- text -->" not in read(DOCS / "puzzles.md"):
            yield DOCS / "puzzles.md", 1, f"does not show {path.name}"
    page, text = DOCS / "hopper.md", read(KERNELS / "linear_gelu_sm90.cu")
    for quoted in re.findall(r"```cpp\n(.*?)```", read(page), re.DOTALL):
        if quoted not in text:
            line = read(page)[: read(page).index(quoted)].count("\n") + 1
            yield page, line, "quotes what linear_gelu_sm90.cu does not have"


def compatibility() -> Findings:
    """The table of the GPU record, and a row for each architecture that kernels are compiled for."""
    page = DOCS / "compatibility.md"
    yield from lines_are(page, table_of_runs().splitlines())
    source = read(LIBRARY / "commands" / "compile.py")
    numbers = re.findall(r"\d+", re.findall(r"^ARCHITECTURES.*= \((.*)\)", source, re.MULTILINE)[0])
    yield from ((page, 1, f"lacks a row of sm_{n}") for n in numbers if f"\n| sm_{n} |" not in read(page))


# The tables of docs/cuda_support.md and docs/simulator.md ---------------------------------------------------------------


NONE, HOST = "no header is needed", "as with NVRTC"
LISTED = "[those listed](simulator.md#cudas-libraries)"
MOST_NAMES = 6  # the most names in a line of headers that the simulator does not list


def header_rows() -> list[str]:
    """The lines of docs/cuda_support.md for the headers: one for those of one package that the simulator treats in one way."""
    groups: dict[tuple[str, str], list[str]] = {}
    for of in HEADERS:
        groups.setdefault(_treated(of), []).extend(of.names)
    lines = []
    for (brings, simulated), names in groups.items():
        most = len(names) if simulated == LISTED else MOST_NAMES
        others = f" and {len(names) - most} others" if len(names) > most else ""
        lines.append(f"| {code(names[:most])}{others} | {brings} | {simulated} |")
    return lines


def _treated(of: SystemHeader) -> tuple[str, str]:
    """The package with a header for NVRTC, and the simulator's treatment."""
    if of.host:
        instead = f", or `{of.shared}` in its place if device code uses the names of `{of.shared}`" if of.shared else ""
        return f"left out{instead}: {of.reason.partition(':')[0]}", HOST
    brings = {"": NONE, "cuda": "the packages of CuPy's extras", "cccl": "CuPy"}
    brings |= {key: " or ".join(f"`{package}`" for package in _PACKAGES[key]) for key in ("curand", "crt")}
    return brings[(of.folders or ("",))[-1]], LISTED if of.twin == OWN else "yes"


def cuda_support() -> Findings:
    page = DOCS / "cuda_support.md"
    yield from lines_are(page, header_rows(), r"\| `[<a-z].*\| (yes|\[those listed\].*|as with NVRTC) \|")


def simulator() -> Findings:
    page = DOCS / "simulator.md"
    yield from lines_are(page, [f"- `{instruction}`" for instruction in INSTRUCTIONS], r"- `[^`]+`")
    yield from lines_are(page, [f"| {name} | {words} |" for name, words in DECLINED.items()])
    if f"Functions without a header: {INTRINSICS}." not in read(page):
        yield page, 1, f"lacks: Functions without a header: {INTRINSICS}."
    include = LIBRARY / "simulator" / "include"
    for path in files("cupyops/simulator/include/**/*"):
        name = path.relative_to(include).as_posix()
        name = name.removesuffix(".h") if name.startswith("cuda/") else name
        if f"`<{name}>`" not in read(page) and name not in ("cuda/scope", "nv/target.h"):
            yield path, 1, "has no row in docs/simulator.md"


def coming_from_load_inline() -> Findings:
    """The list of constructs without a translation, from the tests."""
    page = DOCS / "coming_from_load_inline.md"
    if "\n\n" + "".join(f"- {refusal.construct}\n" for refusal in refused.REFUSED) + "\n" not in read(page):
        yield page, 1, "its list of what has no translation is not that of tests/importer/refused.py"


# The source ------------------------------------------------------------------------------------------------------------


def operators() -> Findings:
    """A shipped operator has public names, test data, a benchmark and a row in docs/shipped_operators.md."""
    cases, benchmarks = ("\n".join(map(read, files(f"{folder}/*.py"))) for folder in ("tests/cases", "benchmarks"))
    bridge, page = public(ROOT / "autograd_bridge.py"), read(DOCS / "shipped_operators.md")
    for path in files("cupyops/torch/ops/*.py"):
        declared = re.findall(r'"cupyops::(\w+)["(]', read(path))
        for name in declared:
            if not re.search(f'"{name}"[:,]', cases):
                yield path, 1, f"{name} has no samples in tests/cases"
        if path.stem not in declared:
            continue
        for name in public(path):
            if name not in bridge:
                yield path, 1, f"autograd_bridge.py does not offer {name}"
            if f'"{name}": ' not in cases:
                yield path, 1, f"{name} has no model of a dynamic batch in tests/cases"
        if f'launch_case("{path.stem}"' not in cases:
            yield path, 1, f"{path.stem} has no launch cases in tests/cases"
        if not re.search(rf"\b{path.stem}\b", benchmarks):
            yield path, 1, f"{path.stem} has no benchmark in benchmarks/"
        if f"`{path.stem}(" not in page:
            yield path, 1, f"{path.stem} has no row in docs/shipped_operators.md"


def texts() -> Findings:
    """A kernel's text begins with its formula, and PTX is only in headers that the simulator replaces."""
    for path in files("kernels_cu/**/*.cu*"):
        if not re.match(r"// .*\n//", read(path)):
            yield path, 1, "must begin with a comment of more than one line: formula, shapes and dtypes"
    for path, line, _ in matches(r"^(?!.*//.*\basm\b).*\basm\b", files("kernels_cu/*.cu", "kernels_cu/shared/*")):
        yield path, line, "has PTX, which belongs in kernels_cu/hardware, beside a twin in cupyops/simulator/hardware"


def source() -> Findings:
    """Imports run one way, and generated Python is compiled in one place, which gives it lines in a traceback."""
    yield from floors.findings(ROOT)
    for path in files("cupyops/**/*.py"):
        if path.name != "codegen.py" and re.search(r"\b(exec|eval|compile)\(", read(path)):
            calls = (node for node in ast.walk(ast.parse(read(path))) if isinstance(node, ast.Call))
            for call in (node for node in calls if isinstance(node.func, ast.Name)):
                if call.func.id in ("exec", "eval", "compile"):
                    yield path, call.lineno, f"calls {call.func.id}(): use cupyops/codegen.py"


def commands() -> Findings:
    """Commands of pip name packages of pyproject.toml. A message must also be valid for a wheel, which has no checkout
    and is on no index."""
    project = tomllib.loads(read(ROOT / "pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    packages = {
        re.split(r"[<>=!~]", name)[0] for names in (project["dependencies"], *extras.values()) for name in names
    }
    required = {"": project["dependencies"]} | extras
    if any(list(names) != required[name] for name, names in EXTRAS.items()):
        yield LIBRARY / "installing.py", 1, "EXTRAS has other packages than pyproject.toml"
    # {wheel} is the cuBLAS of CuPy's own products, and a sentence may go on after the command.
    packages |= {"{wheel}", "nvidia-cublas", "nvidia-cublas-cu12", "on"}
    everywhere = files("*.md", "*.py", "Makefile", "docs/**/*.md", "notebooks/*", "*/*.md")
    everywhere += files("cupyops/**/*.py", "kernels_cu/**/*.*", "examples/**/*.*", "benchmarks/**/*.py")
    everywhere.remove(LIBRARY / "installing.py")
    for path, line, found in matches(r"pip install ((?:[^\n`\"()#;&]|\\\")*)", everywhere):
        words = [word.strip("'\\") for word in re.split(r"[,.:](?: |$)|'? *$", found[1])[0].split()]
        values = {i + 1 for i, word in enumerate(words) if word in ("-c", "-r", "--target")}
        for word in (w for i, w in enumerate(words) if w and i not in values and not w.startswith("-")):
            asked = re.fullmatch(r"\.\[([\w,]+)\]", word)
            if asked and path.suffix == ".py":
                yield path, line, f"pip install {word}: a wheel has no checkout"
            elif not ((asked and {*asked[1].split(",")} <= extras.keys()) or re.split(r"[<>=!~]", word)[0] in packages):
                yield path, line, f"pip install {word}: not in pyproject.toml"
    for path, line, found in matches(r"cupyops\[|pip install [^\n`]*\bcupyops\b", everywhere):
        yield path, line, f"{found[0]}: the package is on no index"


def places() -> Findings:
    """No path of a machine, and no host of a package registry."""
    forbidden = "|".join([f"/{word}/" for word in ("work", "root")] + ["py" + r"pi\.org", "file" + r"s\.pythonhosted"])
    forbidden += "|" + "|".join(["deb" + r"ian\.org", "npm" + r"js\.org"])
    patterns = (
        "**/*.py",
        "**/*.md",
        "**/*.cu*",
        "*.toml",
        "*.txt",
        "**/*.json",
        "Makefile",
        ".*",
        ".ci/*",
        ".github/**/*",
    )
    for path, line, found in matches(forbidden, [p for p in files(*patterns) if p.name != ".git"]):
        yield path, line, f"has {found[0]}"


CHECKS = (
    names_in_pages,
    reference,
    headers_and_variables,
    shown_texts,
    compatibility,
    coming_from_load_inline,
    cuda_support,
    simulator,
    operators,
    texts,
    source,
    commands,
    places,
)


def main() -> int:
    found = [finding for check in CHECKS for finding in check()]
    for path, line, words in found:
        print(f"{path.relative_to(ROOT)}:{line}: {words}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
