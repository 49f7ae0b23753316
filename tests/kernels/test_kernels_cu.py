"""The texts: found by name, opened by their formula, with declarations that can be read and no code that launches."""

import re
from pathlib import Path

import pytest

import kernels_cu
from cupyops.compile.cuda_text import scan
from cupyops.launch.kernel import all_kernels
from cupyops.launch.signature import Signature
from tests.naive import without_naive

TEXTS = [*(kernels_cu.source(n) for n in kernels_cu.names()), *kernels_cu.headers().values()]
FOLDER = Path(kernels_cu.__file__).parent
EVERY_TEXT = pytest.mark.parametrize("text", TEXTS, ids=lambda t: t.filename)
EVERY_SOURCE = pytest.mark.parametrize("name", kernels_cu.names())


def kernels_of(text: str) -> list[str]:
    return re.findall(r"__global__[^;{]*?(\w+)\s*\(\s*(?:const|\w+\*)", scan(text).bare)


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


# Declarations


@EVERY_SOURCE
def test_every_declaration_can_be_read_and_is_launched_by_somebody(name: str) -> None:
    import cupyops  # declares the shipped kernels

    text = kernels_cu.source(name)
    kernels = kernels_of(text)
    assert len(kernels) == len(set(kernels)) == scan(text).bare.count("__global__") > 0
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
