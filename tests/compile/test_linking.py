"""Texts that nvJitLink links. Linking needs no GPU."""

import ctypes
from typing import Any

import pytest

from cupyops import CompileError, Kernel, MissingDependencyError, Threads
from cupyops.compile import linking
from cupyops.compile.compiler import OPTIONS, compile_text
from tests.launch.test_variables_devices import MAIN, NEEDS_LINKER, linked_kernel

TYPES = {"scalar_t": "float32"}


@NEEDS_LINKER
@pytest.mark.parametrize("options", [(), ("-dlto",)])
def test_linked_code_reports_its_kernel(options: tuple[str, ...]) -> None:
    binary = compile_text(linked_kernel().final_text(TYPES), "linked", "sm_90", (*OPTIONS, *options))
    assert binary.code.startswith(b"\x7fELF")
    assert list(binary.resources) == ["linked"]
    assert binary.resources["linked"][0] > 0


@pytest.fixture
def given_to_the_linker(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of each link and the kinds of its inputs, by a linker that does nothing."""
    given: list[Any] = []

    class Linker:
        def call(self, name: str, *arguments: Any) -> int:
            if name == "Create":
                given.append([o.decode() for o in arguments[2]])
            if name == "AddData":
                given.append(arguments[1].value)
            return 0

        def read(self, handle: Any, log: str) -> str:
            return ""

    monkeypatch.setattr(linking, "_library", Linker)
    return given


def test_the_linkers_cache_is_off_where_it_reports_the_registers(given_to_the_linker: list[Any]) -> None:
    """On a machine with a GPU, nvJitLink of CUDA 13 took the code from its cache, without the report."""
    compile_text(linked_kernel().final_text(TYPES), "linked", "sm_90", (*OPTIONS, "-dlto"))
    options = ["-arch=sm_90", "-lto", "-no-cache", "-Xptxas=-v", "-Xptxas=-warn-spills"]
    assert given_to_the_linker == [options, *3 * [linking._LTOIR]]


def test_texts_are_linked_for_the_architecture_that_the_options_choose(given_to_the_linker: list[Any]) -> None:
    compile_text(linked_kernel().final_text(TYPES), "linked", "sm_90", (*OPTIONS, "-arch=sm_80"))
    assert given_to_the_linker == [["-arch=sm_80"], *3 * [linking._CUBIN]]


@NEEDS_LINKER
def test_a_function_that_no_text_defines_is_named_by_the_linker() -> None:
    kernel = Kernel(MAIN, "linked", Threads("n"), link=["__device__ int unused() { return 0; }"])
    with pytest.raises(CompileError, match=r"linked: the texts do not link \(-arch=sm_90\): .*_Z6shapedf"):
        compile_text(kernel.final_text(TYPES), "linked", "sm_90", OPTIONS)


def test_each_text_is_compiled_apart_and_its_error_has_its_line() -> None:
    """Needs no linker: each text of linked_kernel has its own function `helper`."""
    kernel = linked_kernel()
    texts = linking.parts(kernel.final_text(TYPES))
    assert len(texts) == 3
    for text in texts:
        compile_text(text, "linked", "sm_90", OPTIONS, relocatable=True)
    broken = Kernel(MAIN, "linked", Threads("n"), link=["\n__device__ int wrong() { return nothing; }"])
    with pytest.raises(CompileError, match=r"linked_link1.cu:2: error: identifier \"nothing\" is undefined"):
        compile_text(linking.parts(broken.final_text(TYPES))[1], "linked", "sm_90", OPTIONS, relocatable=True)


def test_a_missing_linker_is_named_with_its_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(path: str) -> Any:
        raise OSError(path)

    monkeypatch.setattr(ctypes, "CDLL", absent)
    linking._library.cache_clear()
    with pytest.raises(
        MissingDependencyError, match="linked texts need nvJitLink, and .* Install it with: pip install .*nvjitlink"
    ):
        compile_text(linked_kernel().final_text(TYPES), "linked", "sm_90", OPTIONS)


def test_a_gpu_newer_than_the_compiler_is_refused_in_words() -> None:
    with pytest.raises(
        CompileError, match="linked: linked texts are compiled for a GPU that NVRTC .* knows, and this GPU is newer"
    ):
        compile_text(linked_kernel().final_text(TYPES), "linked", "compute_90", OPTIONS)


def test_one_text_is_no_list() -> None:
    with pytest.raises(TypeError, match="linked: `link` must be a list of texts, got one text"):
        linked_kernel(link=MAIN)
    with pytest.raises(TypeError, match="linked: `link` must be a list of texts, got int"):
        linked_kernel(link=3)


def test_a_linked_text_has_the_launches_that_begin_early_from_nvrtc() -> None:
    """NVRTC defines these functions in a text that is linked, and in no other."""
    waits = 'extern "C" __global__ void k(float* y) { cudaGridDependencySynchronize(); y[0] = 1; }'
    for link in ([], ["__device__ int unused() { return 0; }"]):
        text = linking.parts(Kernel(waits, "k", link=link).final_text({}))[0]
        compile_text(text, "k", "sm_90", OPTIONS, relocatable=bool(link))
