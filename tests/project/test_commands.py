"""One list of commands: the Makefile's, which CONTRIBUTING, README, .ci/run, the hooks and the workflow share."""

import re
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

from tests.conftest import QUICK, TESTS

ROOT = Path(__file__).resolve().parents[2]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def targets() -> dict[str, str]:
    """The Makefile's targets, and what each says of itself."""
    return dict(re.findall(r"^([a-z]+):[^#\n]*## (.*)$", text("Makefile"), re.MULTILINE))


def block(name: str) -> str:
    """The README's command, as a reader copies it."""
    found = re.search(rf"<!-- command: {name} -->\n```bash\n(.*?)```", text("README.md"), re.DOTALL)
    assert found, name
    return found[1]


def pinned() -> dict[str, str]:
    """The tools of the extras "dev" and "docs", and their versions."""
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads(text("pyproject.toml"))["project"]["optional-dependencies"]
    return dict(requirement.split("==") for requirement in extras["dev"] + extras["docs"])


def test_contributing_lists_the_commands_of_the_makefile() -> None:
    listed = re.findall(r"^\| `make ([a-z]+)` \| (.*) \|$", text("CONTRIBUTING.md"), re.MULTILINE)
    assert listed == [(name, does) for name, does in targets().items() if name != "help"]


def test_every_command_that_a_text_names_is_one() -> None:
    for name in ("README.md", "CONTRIBUTING.md", ".ci/run", ".github/PULL_REQUEST_TEMPLATE.md", "docs/benchmarks.md"):
        for words in re.findall(r"(?:^|`)make((?: [a-z]+)+)(?:`|$)", text(name), re.MULTILINE):
            assert set(words.split()) <= set(targets()), f"{name} says make{words}"


def test_every_target_is_made_though_a_file_has_its_name() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", text("Makefile"), re.MULTILINE)
    assert phony
    assert phony[1].split() == list(targets())


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_setup_and_test_are_the_command_of_the_readme() -> None:
    shown = subprocess.run(["make", "-n", "setup", "test"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line for line in shown.stdout.splitlines() if not line.startswith("make")] == block("tests").splitlines()


@pytest.mark.parametrize("name", ["tests", "example"])
def test_ci_takes_from_the_readme_the_command_as_printed(name: str) -> None:
    """By the very function of .ci/run."""
    function = re.search(r"^command_of\(\) .*$", text(".ci/run"), re.MULTILINE)
    assert function
    script = f"{function[0]}\ncommand_of {name}"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == block(name)


def test_ci_runs_both_commands_and_the_checks() -> None:
    lines = text(".ci/run").splitlines()
    for command in (
        'bash -euo pipefail -c "$(command_of tests)"',
        'bash -euo pipefail -c "$(command_of example)"',
        "make lint types compile docs",
    ):
        assert command in lines
    # A tool that .ci/run called by itself would be a second list.
    assert not [line for line in lines if ".venv/bin" in line]
    assert re.findall(r"- run: (.*)", text(".github/workflows/ci.yml")) == ["bash .ci/run"]


def test_each_tool_has_one_version() -> None:
    """A hook that brought a ruff of its own would format what .ci/run refuses."""
    config = text(".pre-commit-config.yaml")
    assert re.findall(r"repo: (\S+)", config) == ["local"]
    assert set(re.findall(r"language: (\S+)", config)) == {"system"}
    tools = re.findall(r"entry: \.venv/bin/(\S+)", config)
    assert len(tools) == config.count("entry:") == config.count("- id:")
    assert {"ruff", "clang-format"} <= set(tools) <= set(pinned())
    constraints = dict(line.split("==") for line in text("constraints.txt").splitlines() if "==" in line)
    normal = {name.lower().replace("_", "-"): version for name, version in constraints.items()}
    assert {name: normal.get(name) for name in pinned()} == pinned()


def test_an_issue_about_a_bug_asks_for_the_doctor() -> None:
    for name in ("bug_report.yml", "feature_request.yml"):
        template = text(f".github/ISSUE_TEMPLATE/{name}")
        assert re.search(r"id: doctor\n.*?python -m cupyops doctor.*?required: true", template, re.DOTALL), name
    assert "python -m cupyops doctor" in text(".github/PULL_REQUEST_TEMPLATE.md")


def test_quick_runs_files_that_are_there_of_every_folder() -> None:
    assert [name for name in QUICK if not (TESTS / name).is_file()] == []
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    # Tests of GPUs need one, and examples and commands start processes.
    assert folders - {Path(name).parent.name for name in QUICK} == {"commands", "examples", "gpu"}


def test_pytest_benchmark_beside_xdist_does_not_end_the_run() -> None:
    """pytest-benchmark warns as it is configured, under the filters that a test runs under; as an error this ends pytest."""
    warnings.warn(
        pytest.PytestWarning("Benchmarks are automatically disabled because xdist plugin is active."), stacklevel=1
    )
    with pytest.raises(pytest.PytestWarning):
        warnings.warn(pytest.PytestWarning("something else"), stacklevel=1)
