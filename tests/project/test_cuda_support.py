"""docs/cuda_support.md says what the lists of the code and of the tests say."""

from pathlib import Path

from cupyops.compile.cpp_library import TRAITS
from cupyops.compile.header_list import HEADERS, PARTS, SAME, SystemHeader
from cupyops.compile.standard import _INTEGERS, _KNOWN_OF_STD, _MATH, _MATH_OF_FLOAT, _NUMBERS
from cupyops.compile.system_headers import _PACKAGES
from tests.kernels.test_constructs import CONSTRUCTS

PAGE = (Path(__file__).parents[2] / "docs" / "cuda_support.md").read_text(encoding="utf-8")


def code(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def row(of: SystemHeader) -> str:
    """The line of the page for a row of the list."""
    if of.host:
        if not of.its_names:
            return f"| {code(of.names)} | left out: {of.reason} | left out |"
        if of.shared:
            instead = f"left out, or `{of.shared}` in its place if device code uses the names of `{of.shared}`; if device code uses others, refused"
            return f"| {code(of.names)} | {instead}: {of.reason} | as with NVRTC |"
        return f"| {code(of.names)} | left out; if device code uses its names, refused: {of.reason} | as with NVRTC |"
    folder = (of.folders or ("",))[-1]
    brings = {
        "": "no header is needed",
        "cuda": "the packages of CuPy's extras",
        "cccl": "CuPy",
        **{key: " or ".join(f"`{package}`" for package in _PACKAGES[key]) for key in ("curand", "crt")},
    }[folder]
    simulated = (
        "yes"
        if of.twin == SAME
        else of.twin
        if of.twin == PARTS
        else f"twin `{of.twin}`"
        if of.twin
        else f"left out; if device code uses its names, refused: {of.reason}"
        if of.its_names
        else f"refused: {of.reason}"
    )
    return f"| {code(of.names)} | {brings} | {simulated} |"


def lines() -> list[str]:
    """The lines that the page must have."""
    constructs = [f"| {name} | yes | yes |" for name in CONSTRUCTS]
    own = sorted(_KNOWN_OF_STD - _MATH - _MATH_OF_FLOAT - TRAITS)
    names = [
        f"| numbers | {code(tuple(sorted(_NUMBERS)))} |",
        f"| types | {code(tuple(sorted(_INTEGERS)))} |",
        f"| functions of `std` | {code(tuple(sorted(_MATH)))} |",
        f"| functions of `std` for float | {code(tuple(sorted(_MATH_OF_FLOAT)))} |",
        f"| types of `std` | {code(tuple(sorted(TRAITS)))} |",
        f"| others of `std` | {code(tuple(own))} |",
    ]
    return [*constructs, *map(row, HEADERS), *names]


def test_the_page_has_a_line_for_each_construct_header_and_name() -> None:
    missing = [line for line in lines() if line not in PAGE.split("\n")]
    assert not missing, "docs/cuda_support.md lacks:\n" + "\n".join(missing)
    page = (
        PAGE[PAGE.index("## Declarations") : PAGE.index("## What NVRTC")] + PAGE[PAGE.index("## Names of the C and") :]
    )
    tables = [line for line in page.split("\n") if line.startswith("|")]
    assert len(tables) == len(lines()) + 6  # three heads of two lines
