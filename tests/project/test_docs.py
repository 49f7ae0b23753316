"""Every sample in README, docs and docstrings runs, and the figures are those of the results."""

import doctest
import importlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cupyops import Kernel, Threads
from cupyops.compile.compiler import OPTIONS, binary_for, compile_text
from cupyops.compile.linking import parts

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
SIMULATED = (ROOT / "docs" / "operators.md", *TUTORIALS)  # their samples run kernels without simulate()


def samples(page: Path) -> list[re.Match[str]]:
    return list(re.finditer(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))


def simulated(page: Path) -> bool:
    return page in SIMULATED or any("simulate(" in m[1] or "explain(" in m[1] for m in samples(page))


SAMPLES = [p for p in PAGES if samples(p)]


# Compile a package, which takes AOTInductor seven seconds; so does tests/operators/test_package.py.
PACKAGES = ("shipping.md",)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=[getattr(pytest.mark, name) for name, holds in marked.items() if holds])
        for p in SAMPLES
        for marked in [{"simulator": simulated(p), "thorough": p.name in PACKAGES}]
    ],
    ids=lambda p: p.name,
)
def test_samples_run_in_order(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    text = page.read_text(encoding="utf-8")
    if "export_onnx(" in text:
        pytest.importorskip("onnxscript", minversion="0.7")
        pytest.importorskip("onnxruntime")
    if "from sklearn" in text:
        pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "sample"}
    for match in samples(page):
        line = text.count("\n", 0, match.start(1))
        exec(compile("\n" * line + match[1], str(page), "exec"), scope)
    pytest.importorskip("cupy")
    for kernel in [v for v in scope.values() if isinstance(v, Kernel)]:
        for types in itertools.islice(kernel.type_choices(), 1):
            what, texts = kernel.describe(types), parts(kernel.final_text(types))
            if len(texts) == 1:
                binary_for(texts[0], what, "sm_90")
                continue
            for one in texts:  # linked texts are compiled apart, which needs no linker
                compile_text(one, what, "sm_90", OPTIONS, relocatable=True)
    if "message" in scope:
        shown = re.search(r"<!-- message: begin -->\n    (.*)\n<!-- message: end -->", text)
        assert shown, page
        # A reader's program has the text in another file, at another line.
        assert shown[1] == re.sub(r"\S+\.md:\d+ (?=\()", "ops.py:12 ", str(scope["message"]))


def test_figures_are_those_of_the_committed_results() -> None:
    """Every number on the page is drawn from the results file by the committed script."""
    from benchmarks import results_file
    from benchmarks.table import BEGIN, insert

    document = results_file.load(ROOT / "benchmarks" / "results" / "nvidia-h200.json")
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert BEGIN in page
    assert page == insert(page, document, "all"), "docs/benchmarks.md has other figures: make figures"


def test_figures_of_the_examples_are_those_of_their_results() -> None:
    from benchmarks import results_file
    from benchmarks.table import insert

    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    document = results_file.load(ROOT / "benchmarks" / "results" / "own-ops.json")
    assert page == insert(page, document, "all"), "other figures: make figures"


@pytest.mark.thorough
def test_the_plots_of_tutorials_and_of_the_front_page_are_those_of_the_committed_results(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    from benchmarks import front_plots, tutorial_plots

    assert sorted(tutorial_plots.PLOTS) == [page.stem for page in TUTORIALS]
    pairs = [(module.FOLDER, module.PLOTS) for module in (front_plots, tutorial_plots)]
    for folder, plots in pairs:
        assert sorted(plots) == sorted(path.stem for path in folder.iterdir())
    pinned = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if not pinned or matplotlib.__version__ != pinned[1]:
        pytest.skip(f"matplotlib {matplotlib.__version__} may place text elsewhere than the pinned version")
    for folder, plots in pairs:
        for path in tutorial_plots.draw(tmp_path, plots=plots):
            assert path.read_bytes() == (folder / path.name).read_bytes(), f"{path.name} is another: make figures"


def test_figures_of_the_lltm_are_those_of_their_results() -> None:
    from benchmarks import lltm_report

    page = (ROOT / "docs" / "lltm.md").read_text(encoding="utf-8")
    document = lltm_report.load(ROOT / "benchmarks" / "results" / "lltm-nvidia-h200.json")
    assert page == lltm_report.insert(page, document), "other figures: make figures"


def with_examples() -> Iterator[Any]:
    """The modules whose docstrings have examples."""
    for path in sorted([*(ROOT / "cupyops").rglob("*.py"), *(ROOT / "kernels_cu").rglob("*.py")]):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^ *>>> ", text, re.MULTILINE):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            simulated = re.search(r"\b(simulate|explain)\(", text)
            yield pytest.param(name, marks=pytest.mark.simulator if simulated else ())


@pytest.mark.parametrize("name", list(with_examples()))
def test_docstring_examples(name: str) -> None:
    module = importlib.import_module(name)
    scope = vars(module) | {"Threads": Threads, "torch": torch}
    failed, tried = doctest.testmod(module, extraglobs=scope)
    assert failed == 0, f"{failed} of {tried} examples in the docstrings of {name} failed"
