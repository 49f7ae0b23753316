"""What of a tree decides what a GPU does: the texts of its kernels, and what its operators ask the driver for.

    python -m tests.gpu.fingerprints [OPERATOR ...]     # prints a Tree as JSON

**Texts.** A text without comments, indentation and ``#line`` is compared first, with the options of NVRTC. Only if it differs
is its compiled code compared: the PTX of the same NVRTC, in which names are replaced by numbers. So a comment, a name, or a
word of the types and constants that cupyops writes in front of each text needs no GPU, and an instruction does.

**Launches.** Every case of :mod:`tests.gpu.launch_cases` runs on a GPU that is not there (:mod:`tests.gpu.stub_h200`), twice:
by the checked way to a launch, and by the functions that are generated for the second. The driver and the library of matrix
products are asked for kernels, grids, blocks, shared memory, limits and the bytes of arguments, in which addresses are
replaced by whose memory they are.

Not seen, and to be thought of by whoever changes it: what PyTorch and CuPy do between launches (sums over partial results,
copies, zeros); launches on CuPy's own arrays, under torch.compile, in CUDA graphs and on several GPUs; streams; what
:func:`cupyops.tune` chooses by time; the debug mode; loading of bundles and of the cache; and what depends on the registers of
a binary, by which a driver counts blocks that run at once.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("autograd_bridge.py", "cupyops", "examples", "kernels_cu", "tests")  # of a tree, that decide what a GPU does
ARCHITECTURE = 90  # of the GPUs in the record: code for other GPUs has not run

Source = Sequence[Any]  # the kernel's name, its final text, the options of NVRTC


class Tree(NamedTuple):
    """The kernels and launches of a tree, as one process determined them.

    Attributes:
        kernels: by name, the sources: all choices of types of the shipped kernels, and what a case launches.
        launches: by operator and case, a hash of what the driver and the library are asked for. A source is its number.
    """

    kernels: dict[str, list[Source]]
    launches: dict[str, dict[str, str]]

    @property
    def texts(self) -> dict[str, str]:
        """A hash of the texts and options of each kernel."""
        return {n: _hash([(tokens(text), options) for _, text, options in of]) for n, of in self.kernels.items()}


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def tokens(text: str) -> str:
    """A final text without comments, indentation, empty lines and ``#line``.

    >>> tokens("#line 3\\n  int f();  // one\\n\\n")
    'int f();'
    """
    # `#line` stands where another file begins, and most texts have most of their files in common.
    first, *others = f"\n{text}".split("\n#line ")
    return "\n".join(filter(None, map(_bare, [first, *(other.partition("\n")[2] for other in others)])))


@cache
def _bare(part: str) -> str:
    from cupyops.compile.cuda_text import scan

    kept, at = [], 0
    for start, end in scan(part).comments:
        kept += [part[at:start], re.sub(r"[^\n]", " ", part[start:end])]
        at = end
    return "\n".join(filter(None, map(str.strip, "".join([*kept, part[at:]]).splitlines())))


# Compiled code

_SYMBOL = re.compile(r"(?<![\w$.%])[A-Za-z_$][\w$]*")
_DECLARED = re.compile(
    r"\.(?:entry|func|param|local|shared|global|const)\b[^;=(){}\n]*?([\w$]+)(?=(?:\[\d*\])*\s*(?:[,;=({)]|$))",
    re.MULTILINE,
)
_VARIABLE = re.compile(r"^\s*\.(?:global|const)\b[^;=]*?([\w$]+)(?:\[\d*\])*(?: = [^;]*)?;$", re.MULTILINE)


def code_of(source: Source) -> str:
    """A hash of the PTX by the NVRTC at hand.

    Raises:
        CompileError: NVRTC refuses the text.
        SystemExit: it warns of the text.
    """
    from cupyops.commands.compile import about_the_kernel
    from cupyops.compile.compiler import compile_text

    name, text, options = source
    binary = compile_text(text, name, f"compute_{ARCHITECTURE}", options)
    if warnings := about_the_kernel(binary.log):
        raise SystemExit(f"no kernel may be warned of: {name}: {'; '.join(warnings)}")
    return _hash([without_names(binary.code.decode()), options])


def without_names(ptx: str) -> str:
    """PTX without comments and without the variables that no code uses, as each constant of a header is; and with numbers in
    place of the names that it declares."""
    ptx = re.sub(r"//.*", "", ptx)
    used = Counter(_SYMBOL.findall(ptx))
    ptx = _VARIABLE.sub(lambda variable: variable[0] if used[variable[1]] > 1 else "", ptx)
    numbers = {name: f"name_{i}" for i, name in enumerate(dict.fromkeys(_DECLARED.findall(ptx)))}
    ptx = _SYMBOL.sub(lambda name: numbers.get(name[0], name[0]), ptx)
    return "\n".join(filter(None, map(str.strip, ptx.splitlines())))


@cache
def nvrtc() -> str:
    """The version of the NVRTC at hand, ``12.9.86``, as it writes it into PTX."""
    from cupyops.compile.compiler import compile_text

    ptx = compile_text('extern "C" __global__ void empty() {}', "empty", f"compute_{ARCHITECTURE}", ()).code.decode()
    found = re.search(r"^// .*\bV(\d[\d.]*)$", ptx, re.MULTILINE)
    assert found, ptx
    return found[1]


def codes(kernels: Mapping[str, Sequence[Source]]) -> Iterator[tuple[str, str]]:
    """Yields each kernel with a hash of its compiled code. Sources that nobody waits for are not compiled; raises as :func:`code_of`."""
    from cupyops.commands.compile import each, sensible_processes

    sources = [source for of in kernels.values() for source in of]
    with closing(each(code_of, sources, sensible_processes(len(sources)))) as made:
        for name, of in kernels.items():
            yield name, _hash([next(made) for _ in of])


# Trees


def look(operators: Sequence[str] = ()) -> Tree:
    """The kernels and launches of the tree that this process imports, which cannot use a GPU any more; of the named operators, or
    of all and of what is shipped."""
    from . import stub_h200

    machine = stub_h200.install()
    import torch

    # The loss of a linear layer asks PyTorch for its products, which nobody reads here.
    torch.mm = lambda a, b, out=None: a.new_empty(a.shape[0], b.shape[1]) if out is None else out  # type: ignore[assignment]
    torch.Tensor.addmm_ = lambda self, *_, **__: self  # type: ignore[assignment, method-assign]
    import autograd_bridge  # noqa: F401  what is shipped
    from cupyops.launch.kernel import all_kernels

    for kernel in () if operators else all_kernels():
        if kernel.runs_on(ARCHITECTURE):
            for types in kernel.type_choices():
                kernel.variant(types, 0)

    from .launch_cases import launch_cases

    events: dict[str, dict[str, list[Any]]] = {}
    for case in (case for case in launch_cases() if not operators or case.operator in operators):
        seen = events.setdefault(case.operator, {}).setdefault(case.about, [])
        for _ in range(2):
            inputs = case.inputs()
            machine.watch(inputs)
            case.run(inputs)
            seen += machine.events
    machine.watch([])
    kernels: dict[str, list[Source]] = {}
    for name, text, options in sorted({(k.name, k.text, k.options) for k in machine.loaded}):
        kernels.setdefault(name, []).append((name, text, options))
    launched = set()

    def asked(event: Any) -> list[Any]:
        if isinstance(event, stub_h200.Product):
            return [*event]
        kernel, *rest = event
        launched.add(kernel.name)
        number = kernels[kernel.name].index((kernel.name, kernel.text, kernel.options))
        return [kernel.name, number, sorted(kernel.limits.items()), *rest]

    launches = {o: {about: _hash([*map(asked, seen)]) for about, seen in of.items()} for o, of in events.items()}
    if unseen := sorted(kernels.keys() - launched):
        sys.exit(f"no case launches {', '.join(unseen)}, whose geometry and arguments could change unseen")
    return Tree(kernels, launches)


def look_at(tree: Path = ROOT, operators: Sequence[str] = ()) -> Tree:
    """Runs :func:`look` in another process, on any tree."""
    from tests import preloaded

    environment = {n: v for n, v in os.environ.items() if not n.startswith("CUPYOPS_")}
    with tempfile.TemporaryDirectory() as cache:
        environment |= {"PYTHONPATH": str(tree), "CUPYOPS_CACHE_DIR": cache, "CUDA_VISIBLE_DEVICES": ""}
        environment["CUPYOPS_REQUIRE_SIGNED"] = "1"  # no entry of a cache is read or written: nothing is compiled here
        done = preloaded.run(["-m", "tests.gpu.fingerprints", *operators], cwd=tree, env=environment)
    if done.returncode:
        raise RuntimeError(f"the launches of {tree} could not be looked at:\n{done.stderr[-4000:]}")
    return Tree(**json.loads(done.stdout))


def changes(record: Mapping[str, Any], tree: Tree) -> Iterator[str]:
    """Yields, in words, how launches and code differ from those of the recorded runs. Launches come first, since a
    kernel whose text differs has to be compiled, which takes seconds."""
    for operator in {**record["launches"], **tree.launches}:
        then, now = (of.get(operator, {}) for of in (record["launches"], tree.launches))
        for about in {**then, **now}:
            if then.get(about) != now.get(about):
                yield f"the launches of {operator} ({about})"
    before = record["kernels"]
    edited = {name: tree.kernels[name] for name, text in tree.texts.items() if before.get(name, {}).get("text") != text}
    for name, made in codes(edited):
        if made != before.get(name, {}).get(nvrtc()):
            yield f"the code of {name} (by NVRTC {nvrtc()})"


def recorded(tree: Tree) -> dict[str, Any]:
    """A tree as a record holds it, with the code that the NVRTC at hand makes of it."""
    texts, made = tree.texts, dict(codes(tree.kernels))
    kernels = {name: {"text": text, nvrtc(): made[name]} for name, text in texts.items()}
    return {"tree": _hash([texts, tree.launches]), "kernels": kernels, "launches": tree.launches}


if __name__ == "__main__":
    json.dump(look(sys.argv[1:])._asdict(), sys.stdout)
