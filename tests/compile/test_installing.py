"""The lines that install what is missing: they work outside a checkout, and name what pyproject.toml does."""

import importlib.metadata
import re
import shlex
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from cupyops.compile import toolchain
from cupyops.installing import EXTRAS, pip_install
from tests.support import ROOT, install


def test_the_table_is_that_of_pyproject() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {"": project["dependencies"], **project["optional-dependencies"]}
    assert {name: list(packages) for name, packages in EXTRAS.items()} == {
        name: packages for name, packages in declared.items() if name not in ("test", "dev", "release", "docs")
    }


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_line_reaches_pip_whole_through_a_shell(extra: str) -> None:
    assert shlex.split(pip_install(extra)) == ["pip", "install", *EXTRAS[extra]]


def test_packages_are_picked_by_name() -> None:
    assert pip_install("onnx", "onnxscript") == "pip install 'onnxscript>=0.7'"
    assert pip_install("cuda12", "nvidia-cuda-nvrtc-cu12", "ml_dtypes") == (
        "pip install nvidia-cuda-nvrtc-cu12 'ml_dtypes>=0.5'"
    )
    with pytest.raises(KeyError):
        pip_install("onnx", "matplotlib")


def test_both_cudas_are_told_where_none_is_known() -> None:
    assert pip_install("cuda12") in toolchain.INSTALL
    assert f"beside a PyTorch built for CUDA 13, {pip_install('cuda13')})" in toolchain.INSTALL
    assert toolchain.install_line(12) == pip_install("cuda12")
    assert toolchain.install_line(13) == toolchain.install_line(14) == pip_install("cuda13")


def words_behind_pip(text: str) -> list[str]:
    """The packages, files and extras that the commands of a text install; options and their values are left out."""
    found = []
    for match in re.finditer(r"pip install ((?:[^\n`\"()#;&]|\\\")*)", text):
        command = re.split(r"[,.:](?: |$)|'? *$", match[1])[0]  # up to the end of the command in a sentence
        words = [word.strip("'\\") for word in command.split()]
        values = {i + 1 for i, word in enumerate(words) if word in ("-c", "-r", "--target")}
        found += [w for i, w in enumerate(words) if w and i not in values and not w.startswith("-")]
    return found


def test_what_a_command_installs_is_read_from_a_sentence() -> None:
    text = "Get it: pip install -q -c x.txt 'a>=1' b_c, or `pip install -e '.[d,e]'`; then pip install {wheel}\n"
    assert words_behind_pip(text) == ["a>=1", "b_c", ".[d,e]", "{wheel}"]


def test_every_command_names_what_pyproject_does_and_messages_name_no_checkout() -> None:
    """Messages of an installed wheel: there is no checkout whose extras pip could install."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = {re.split(r"[<>=!~]", r)[0] for r in [*project["dependencies"], *(r for e in extras.values() for r in e)]}
    # A sentence may go on behind the command; {wheel} is the cuBLAS of CuPy's own products.
    allowed = names | {"{wheel}", "nvidia-cublas", "nvidia-cublas-cu12", "on"}
    commands = 0
    for folder, pattern in (
        *((part, "**/*.py") for part in ("cupyops", "kernels_cu", "examples", "benchmarks")),
        *((".", name) for name in ("*.md", "*.py", "Makefile", "docs/*.md", "notebooks/*", "examples/*.md")),
    ):
        for path in (ROOT / folder).glob(pattern):
            if path.suffix not in (".py", ".md", ".ipynb", "") or not path.is_file() or path.name == "installing.py":
                continue
            for word in words_behind_pip(path.read_text(encoding="utf-8")):
                commands += 1
                if asked := re.fullmatch(r"\.\[([\w,]+)\]", word):
                    assert set(asked[1].split(",")) <= set(extras), f"{path}: {word}"
                    assert path.suffix != ".py", f"{path}: {word} is in a checkout only"
                else:
                    assert re.split(r"[<>=!~]", word)[0] in allowed, f"{path}: pip install {word}"
    assert commands > 10


def test_no_text_names_this_package_to_pip() -> None:
    """It is on no index: `pip install 'cupyops[cuda12]'` finds nothing."""
    files = [
        path
        for pattern in (
            "cupyops/**/*.py",
            "kernels_cu/**/*.*",
            "*.py",
            "*.md",
            "docs/*.md",
            "examples/**/*.*",
            "benchmarks/**/*.py",
        )
        for path in ROOT.glob(pattern)
        if path.is_file() and path.suffix in (".py", ".md", ".cu", ".cuh", ".sh", ".ipynb")
    ]
    assert len(files) > 100
    named = re.compile(r"cupyops\[|pip install [^\n`]*\bcupyops\b")
    found = [
        f"{path.relative_to(ROOT)}: {m[0]}" for path in files if (m := named.search(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.thorough
@pytest.mark.network
@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {""}))
def test_an_extra_installs(extra: str, tmp_path: Path) -> None:
    """Each of its packages has a version for this Python that satisfies the extra and constraints.txt."""
    install(tmp_path, "-c", str(ROOT / "constraints.txt"), *EXTRAS[extra])
    installed = {canonicalize_name(d.name): d.version for d in importlib.metadata.distributions(path=[str(tmp_path)])}
    wanted = {canonicalize_name(r.name): r.specifier for r in map(Requirement, EXTRAS[extra])}
    assert installed.keys() == wanted.keys()
    assert all(specifier.contains(installed[name], prereleases=True) for name, specifier in wanted.items())
