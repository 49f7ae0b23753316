"""The texts: found by name, opened by their formula, with declarations that can be read and no code that launches."""

import re
from pathlib import Path

import pytest

import kernels_cu
from cupyops.compile import pytorch_names
from cupyops.compile.source import included
from cupyops.extension import device
from cupyops.launch.definitions import code_only
from cupyops.launch.kernel import all_kernels
from cupyops.launch.signature import Signature
from tests.naive import without_naive

TEXTS = [*(kernels_cu.source(n) for n in kernels_cu.names()), *kernels_cu.headers().values()]
FOLDER = Path(kernels_cu.__file__).parent
EVERY_TEXT = pytest.mark.parametrize("text", TEXTS, ids=lambda t: t.filename)
EVERY_SOURCE = pytest.mark.parametrize("name", kernels_cu.names())


def kernels_of(text: str) -> list[str]:
    return re.findall(r"__global__[^;{]*?(\w+)\s*\(\s*(?:const|\w+\*)", code_only(text))


def test_names_and_headers_are_the_files_of_the_folder() -> None:
    assert list(kernels_cu.names()) == sorted(p.stem for p in FOLDER.glob("*.cu"))
    assert sorted(kernels_cu.headers()) == sorted(p.name for p in FOLDER.rglob("*.cuh")), "two headers have one name"
    assert len(TEXTS) == len(list(FOLDER.rglob("*.cu*")))


@EVERY_TEXT
def test_a_text_is_its_file_and_knows_its_name(text: kernels_cu.Text) -> None:
    (path,) = FOLDER.rglob(text.filename)
    assert text == path.read_text(encoding="utf-8")


def test_a_text_is_read_once() -> None:
    assert kernels_cu.source("gelu") is kernels_cu.source("gelu")
    assert kernels_cu.headers() is kernels_cu.headers()


@pytest.mark.parametrize("name", ["", "gelu.cu", "GELU", "../cupyops/gelu", "scalar"])
def test_an_unknown_name_is_answered_with_those_there_are(name: str) -> None:
    with pytest.raises(ValueError) as caught:
        kernels_cu.source(name)
    assert str(caught.value) == f"kernels_cu has no text named {name!r}; it has {', '.join(kernels_cu.names())}"


# Contents


@EVERY_TEXT
def test_a_text_opens_with_what_it_computes(text: kernels_cu.Text) -> None:
    first, *rest = text.split("\n")
    assert first.startswith("// ")
    assert rest[0].startswith("//"), "more than one line is due"


@EVERY_SOURCE
def test_a_text_says_its_formula_shapes_and_arithmetic(name: str) -> None:
    text = kernels_cu.source(name)
    opening = text[: text.index("\n#include")]
    assert all(line.startswith("//") for line in opening.split("\n"))
    for words in ("=", "scalar_t", "acc_t"):
        assert words in opening


def opening_of(text: str) -> str:
    """The comment that a text opens with."""
    lines = text.split("\n")
    return "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("//"))])


def macros_of(opening: str) -> set[str]:
    """The macros in the table of an opening: a line each, name, values, who sets it. What has no room goes on below."""
    heading = re.search(r"^// +[Mm]acro +values .*set by$", opening, re.MULTILINE)
    assert heading, "the opening has no table of macros"
    found = set()
    for line in opening[heading.end() :].split("\n")[1:]:
        if row := re.match(r"// +([A-Z][A-Z0-9_]+)  +\S", line):
            found.add(row[1])
        elif not line.startswith("//     "):
            break
    assert found, "the table of macros is empty"
    return found


@EVERY_SOURCE
def test_the_table_of_macros_is_whole_and_names_no_other(name: str) -> None:
    import cupyops  # noqa: F401  (declares the shipped kernels)

    text = kernels_cu.source(name)
    headers = included(text, {})
    listed = macros_of(opening_of(text))
    # A header's own macros stand in the header's opening.
    of_headers = {m for header in headers.values() for m in re.findall(r"\b[A-Z][A-Z0-9_]+\b", opening_of(header))}
    given = {macro for kernel in all_kernels() if kernel.text is text for macro in kernel.constants}
    assert given <= listed | of_headers | {"BLOCK_THREADS", "CLUSTER"}, "set by Python, and in no table"
    code = code_only(text) + "".join(code_only(header) for header in headers.values())
    directives = "".join(re.findall(r"^#if.*", "\n".join([text, *headers.values()]), re.MULTILINE))
    assert {m for m in listed if not re.search(rf"\b{m}\b", code + directives)} == set(), "listed, and not used"


def helpers_of(text: str) -> dict[str, int]:
    """The device functions that a text defines, by the arguments that they take."""
    code, found = code_only(text), {}
    for match in re.finditer(r"\b(\w+)\s*\(", code):
        end, arguments, depth = match.end(), 0, 1
        while depth and end < len(code):
            depth += (code[end] in "([{<") - (code[end] in ")]}>")
            arguments += code[end] == "," and depth == 1
            end += 1
        before = re.split(r"[;{}]", code[: match.start()])[-1]
        body = re.match(r"\s*(?:const\s*)?(?::[^;{]*)?\{", code[end:])
        initialiser = re.search(r"\)\s*:", before)
        if body and "__device__" in before and "__global__" not in before and not initialiser:
            found[match[1]] = arguments + bool(code[match.end() : end - 1].strip())
    return found


@EVERY_TEXT
def test_no_helper_takes_more_than_seven_arguments(text: kernels_cu.Text) -> None:
    assert {name: count for name, count in helpers_of(text).items() if count > 7} == {}


def test_arguments_of_helpers_are_counted() -> None:
    text = """
    template <int N> __device__ void two(const int (&v)[N], Map<int, float> m) { call(1, 2, 3); }
    struct S { __device__ S(int a) : a(a) {} __device__ int none() const { return f(1, 2); } };
    extern "C" __global__ void kernel(int a, int b, int c) {}"""
    assert helpers_of(text) == {"two": 2, "S": 1, "none": 0}


@EVERY_TEXT
def test_no_text_launches_anything(text: kernels_cu.Text) -> None:
    for word in ("<<<", "cudaLaunch", "cudaMalloc", "cudaStream", "cuLaunch", "int main"):
        assert word not in text


@EVERY_TEXT
def test_form_of_the_lines(text: kernels_cu.Text) -> None:
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
    for number, line in enumerate(text.split("\n"), 1):
        assert "\t" not in line, number
        assert "\r" not in line, number
        assert len(line) <= 150, number
        assert line == line.rstrip(), number


@pytest.mark.parametrize("header", kernels_cu.headers().values(), ids=lambda t: t.filename)
def test_a_header_declares_no_kernel_and_is_included(header: kernels_cu.Text) -> None:
    assert "__global__" not in code_only(header)
    assert "#pragma once" in header
    # pytorch.cuh and its parts are for the texts of users.
    extension = Path(device.__file__).read_text(encoding="utf-8")
    includes = (f'#include "{header.filename}"' in text for text in (*TEXTS, *written(), extension))
    assert any(includes) or header.filename in pytorch_names.HEADERS, "nobody includes it"


def written() -> list[str]:
    """Texts as they are written from programs."""
    from cupyops.programs import elementwise as elementwise_text
    from cupyops.programs import row_source as row_text
    from cupyops.programs.expressions import parse
    from cupyops.programs.rows import RowProgram

    steps = tuple(parse("y = x", "copy"))
    return [
        elementwise_text.text_of(elementwise_text.Program("copy", steps, ("x",), (), ("y",))),
        row_text.text_of(RowProgram("copy", steps, ("x",), (), (), (), (), ("y",))),
    ]


# Declarations


@EVERY_SOURCE
def test_every_declaration_can_be_read_and_is_launched_by_somebody(name: str) -> None:
    import cupyops  # declares the shipped kernels

    text = kernels_cu.source(name)
    kernels = kernels_of(text)
    assert len(kernels) == len(set(kernels)) == code_only(text).count("__global__") > 0
    declared = {k.name for k in all_kernels() if k.text is text}
    assert set(without_naive(kernels)) == set(without_naive([*declared])), cupyops.__name__
    for kernel in kernels:
        assert kernel.startswith(name)


@EVERY_SOURCE
def test_every_declaration_tells_inputs_from_outputs_and_their_bounds(name: str) -> None:
    text = kernels_cu.source(name)
    for kernel in kernels_of(text):
        parameters = Signature.parse(text, kernel).parameters
        arrays = [p for p in parameters if p.pointer]
        assert any(p.const for p in arrays), kernel
        outputs = [p for p in arrays if not p.const]
        assert outputs, kernel
        for p in outputs:
            assert p.shape is not None, f"{kernel}: nothing bounds what is written to {p.name}"
        # Inputs, outputs, numbers; sizes in 64 bits.
        assert parameters[: len(arrays)] == tuple(arrays), kernel
        assert [p.const for p in arrays] == sorted((p.const for p in arrays), reverse=True), kernel
        assert all(p.type == "int64" for p in parameters[len(arrays) :] if p.type.startswith(("int", "uint"))), kernel
