"""Every sample in README and docs runs, and what they name exists."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
import torch

from cupyops import Kernel
from cupyops.compile.compiler import OPTIONS, compile_text
from cupyops.compile.linking import parts
from cupyops.ops.registry import SHIPPED

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
SIMULATED = (ROOT / "docs" / "operators.md", *TUTORIALS)  # whose samples run kernels without saying so


def samples(page: Path) -> list[re.Match[str]]:
    return list(re.finditer(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))


def simulated(page: Path) -> bool:
    return page in SIMULATED or any("simulate(" in m[1] or "explain(" in m[1] for m in samples(page))


SAMPLES = [p for p in PAGES if samples(p)]


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.simulator if simulated(p) else ()) for p in SAMPLES],
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
        for types in kernel.type_choices():
            texts = parts(kernel.final_text(types))  # linked texts are compiled apart, which needs no linker
            for one in texts:
                compile_text(one, kernel.describe(types), "sm_90", OPTIONS, relocatable=len(texts) > 1)
    if "message" in scope:
        shown = re.search(r"<!-- message: begin -->\n    (.*)\n<!-- message: end -->", text)
        assert shown, page
        assert shown[1] == scope["message"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for named in re.findall(r"`((?:kernels_cu|cupyops|tests|examples|benchmarks)/[\w/]+\.\w+)`", text):
        if "NAME" not in named:
            assert (ROOT / named).exists(), f"{page.name} names {named}"


def test_figures_are_those_of_the_committed_results() -> None:
    """Every number on the page is drawn from the results file by the committed script."""
    from benchmarks import results_file
    from benchmarks.table import BEGIN, Form, insert

    document = results_file.load(ROOT / "benchmarks" / "results" / "nvidia-h200.json")
    pages: tuple[tuple[str, Form], ...] = (("README.md", "short"), ("docs/benchmarks.md", "all"))
    for name, form in pages:
        page = (ROOT / name).read_text(encoding="utf-8")
        assert BEGIN in page
        assert page == insert(page, document, form), f"{name} has other figures: make figures"


def test_figures_of_the_examples_are_those_of_their_results() -> None:
    from benchmarks import results_file
    from benchmarks.table import insert

    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    results = ROOT / "benchmarks" / "results" / "own-ops.json"
    if results.exists():
        assert page == insert(page, results_file.load(results), "all"), "other figures: make figures"
    else:
        assert "<!-- figures: begin -->\nNot measured yet.\n<!-- figures: end -->" in page


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda p: p.name)
def test_a_tutorial_shows_a_kernel_checks_it_and_ends_in_its_plot(page: Path) -> None:
    """The plot is the page's own, in its last section, and the links after it lead to the next page."""
    text, last = page.read_text(encoding="utf-8"), TUTORIALS[-1] == page
    number = TUTORIALS.index(page) + 1
    assert page.name.startswith(f"{number}_")
    assert text.startswith(f"# {number}. ")
    assert "__global__" in text or ".show()" in text
    assert any("check_op(" in match[1] for match in samples(page))
    body, _, end = text.partition("\n## The plot\n")
    assert "![" not in body
    assert re.findall(r"!\[[^\]]+\]\(([^)]+)\)", end) == [f"../plots/tutorials/{page.stem}.svg"]
    after = end.partition("![")[2]
    assert "\n#" not in after
    assert f"]({'../puzzles.md' if last else TUTORIALS[number].name})" in after.partition("Next:")[2]


def test_the_plots_of_the_tutorials_are_those_of_the_committed_results(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    from benchmarks.tutorial_plots import FOLDER, PLOTS, draw

    assert sorted(PLOTS) == [page.stem for page in TUTORIALS] == sorted(path.stem for path in FOLDER.iterdir())
    pinned = re.search(r"^matplotlib==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if not pinned or matplotlib.__version__ != pinned[1]:
        pytest.skip(f"matplotlib {matplotlib.__version__} may place text elsewhere than the pinned version")
    for path in draw(tmp_path):
        assert path.read_bytes() == (FOLDER / path.name).read_bytes(), f"{path.name} is another: make figures"


def test_figures_of_the_lltm_are_those_of_their_results() -> None:
    from benchmarks import lltm_report

    page = (ROOT / "docs" / "lltm.md").read_text(encoding="utf-8")
    results = ROOT / "benchmarks" / "results" / "lltm-nvidia-h200.json"
    if results.exists():
        assert page == lltm_report.insert(page, lltm_report.load(results)), "other figures: make figures"
    else:
        assert "<!-- figures: begin -->\nNot measured yet.\n<!-- figures: end -->" in page


def test_the_readme_can_be_read_in_a_minute() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    first = re.search(r"```\w*\n(.*?)```", text, re.DOTALL)
    assert first
    assert len([line for line in first[1].splitlines() if line.strip()]) <= 18
    for part in ("__global__", "blockIdx", ".backward()"):  # CUDA C++ in a text, and a gradient of it
        assert part in first[1]
    assert text.count("](docs/plots/") == 1


def test_the_quickstart_links_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w/]+\.md)\)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert linked == pages - {"index.md"}


def test_no_page_counts_a_matrix_product_in_shares_of_a_copy() -> None:
    for page in PAGES:
        rows = [line for line in page.read_text(encoding="utf-8").splitlines() if re.match(r"\|\s*`?linear", line)]
        assert not [row for row in rows if "%" in row], page.name


def test_both_commands_end_in_what_they_are_for() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, last in (("tests", "-m pytest -n auto"), ("example", "-m examples.lenet5")):
        block = re.search(rf"<!-- command: {name} -->\n```bash\n(.*?)```", text, re.DOTALL)
        assert block
        assert block[1].strip().endswith(last)


@pytest.mark.parametrize(
    "name",
    [
        "kernels_cu",
        "cupyops.launch.kernel",
        "cupyops.tiling.broadcasting",
        "cupyops.ops.shapes",
        "cupyops.tiling.tiles",
        "cupyops.tuning.tuned",
        pytest.param("cupyops.simulator", marks=pytest.mark.simulator),
        pytest.param("cupyops.profiling.explain", marks=pytest.mark.simulator),
        "cupyops.launch.generated",
        "cupyops.programs.elementwise",
        "cupyops.programs.expressions",
        "cupyops.torch.programs.elementwise",
        *(f"cupyops.torch.ops.{operator.name}" for operator in SHIPPED),
        "cupyops.ops.registry",
        "cupyops.torch.core.dispatch",
        "cupyops.torch.models.swap",
        "cupyops.torch.programs.row_reduce",
    ],
)
def test_docstring_examples(name: str) -> None:
    module = importlib.import_module(name)
    scope = vars(module) | {"Threads": importlib.import_module("cupyops").Threads, "torch": torch}
    failed, tried = doctest.testmod(module, extraglobs=scope)
    assert tried > 0, f"no docstring of {name} has an example"
    assert failed == 0, f"{failed} of {tried} examples in the docstrings of {name} failed"


def test_the_project_speaks_of_itself_alone() -> None:
    """No path of a machine and no package registry's host anywhere in the tree."""
    forbidden = ["/" + word + "/" for word in ("work", "root")] + [
        "py" + "pi.org",
        "file" + "s.pythonhosted",
        "deb" + "ian.org",
        "npm" + "js.org",
    ]
    for pattern in (
        "**/*.py",
        "**/*.md",
        "**/*.cu*",
        "*.toml",
        "*.txt",
        "benchmarks/results/*.json",
        "tests/**/*.json",
        "Makefile",
        ".*",
        ".ci/*",
        ".github/**/*",
    ):
        for path in ROOT.glob(pattern):
            folders = path.relative_to(ROOT).parts[:-1]
            if (
                path.is_file()
                and path.name != ".git"
                and not any(
                    (p.startswith(".") and p not in (".ci", ".github")) or p in ("build", "runs", "data")
                    for p in folders
                )
            ):
                text = path.read_text(encoding="utf-8")
                assert not [w for w in forbidden if w in text], f"{path}"
