"""Names of kernels in C++: namespaces and template arguments."""

import re
from pathlib import Path

import pytest

from cupyops import Elementwise, Kernel, Threads
from cupyops.launch.definitions import split_name

TEXT = """\
namespace a {
template <typename T, int N = 2 * 4, bool CAUSAL = false, typename Index = int>
__global__ void k(const T* x,  // (n)
                  T* y,        // (n)
                  Index n) {}
}
"""


def expression(name: str, types: dict[str, str] | None = None, text: str = TEXT, **given: object) -> str:
    """The name expression that NVRTC instantiates."""
    final = Kernel(text, name, Threads("n"), **given).final_text(types or {})  # type: ignore[arg-type]
    found = re.search(r"^#define CupyopsKernel (.*)$", final, re.MULTILINE)
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("k<T, N, CAUSAL, int>", {}, "a::k<__half, 2 * 4, false, int>"),
        ("a::k<T, 64, true, int>", {}, "a::k<__half, 64, true, int>"),
        ("k<T, N, CAUSAL, long long>", {"constants": {"N": 16}}, "a::k<__half, 16, false, long long>"),
        ("k< T,N , CAUSAL,unsigned   int >", {"constants": {"CAUSAL": 1}}, "a::k<__half, 2 * 4, 1, unsigned int>"),
    ],
)
def test_arguments_come_from_the_name_the_arrays_the_constants_and_the_defaults(
    name: str, given: dict[str, object], found: str
) -> None:
    assert expression(name, {"T": "float16"}, **given) == found  # type: ignore[arg-type]


def test_a_default_at_the_end_is_left_to_the_compiler() -> None:
    assert expression("k<T, 4, false, int>", {"T": "float32"}) == "a::k<float, 4, false, int>"
    text = "template <typename T, int N, int M = N / 2> __global__ void k(T* x, int n) {}"
    assert expression("k", {"T": "float32"}, text, constants={"N": 6}) == "k<float, 6>"
    assert expression("k<T, 6>", {"T": "float32"}, text) == "k<float, 6>"


def test_a_default_in_the_middle_is_written_with_the_arguments_before_it() -> None:
    text = "template <int N, int M = N / 2, int L = 1> __global__ void k(float* x, int n) {}"
    assert expression("k<6>", {}, text, constants={"L": 3}) == "k<6, 6 / 2, 3>"


def test_a_type_of_the_name_is_read_in_the_parameters() -> None:
    kernel = Kernel(TEXT, "k<unsigned char, 64, false, long long>", Threads("n"))
    assert [p.type for p in kernel.signature.parameters] == ["uint8", "uint8", "int64"]
    assert kernel.signature.bindings == {}


def test_a_number_of_the_name_is_a_constant_for_shapes() -> None:
    text = "template <int N> __global__ void k(float* x /* (n, N) */, Int64s<N> s, int n) {}"
    kernel = Kernel(text, "k<3>", Threads("n"))
    assert kernel.constants["N"] == 3
    assert kernel.signature.parameters[1].length == "N"


def test_template_parameters_are_no_macros_and_no_typedefs() -> None:
    """`#define N 64` before `template <int N>` does not compile."""
    text = "template <typename scalar_t, int N> __global__ void k(scalar_t* x, acc_t f, int n) {}"
    final = Kernel(text, "k", Threads("n"), constants={"N": 64, "OTHER": 1}).final_text({"scalar_t": "float16"})
    assert "#define N " not in final
    assert "#define OTHER 1" in final
    assert "scalar_t;" not in final
    assert "typedef float acc_t;" in final
    assert "#include <cuda_fp16.h>" in final


def test_the_constants_of_a_policy_fill_a_template() -> None:
    text = "template <int BLOCK_THREADS> __global__ void k(float* x, int n) {}"
    kernel = Kernel(text, "k", Elementwise("n", 128))
    assert "#define CupyopsKernel k<128>\n" in kernel.final_text({})
    with pytest.raises(ValueError, match=r"k<64>: .constants\['BLOCK_THREADS'\]. must equal .* 128, got 64"):
        Kernel(text, "k<64>", Elementwise("n", 128))


LACKING = "k: the template's parameter `{}` has no argument: give it as {} with numbers and types"
FUNCTION = "__global__ void k(float* x, int n) {}"


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (f"template <int N> {FUNCTION}", "k", LACKING.format("N", "constants={'N': ...} or in its name, k<N>")),
        (
            "template <typename T, typename U> __global__ void k(T* x, int n) {}",
            "k",
            LACKING.format("U", "part of its name, k<T, U>") + ": no array of the call decides the type",
        ),
        (f"template <int N> {FUNCTION}", "k<1, 2>", "k<1, 2>: the template has the parameters <N>, got 2 arguments"),
        (FUNCTION, "k<1>", "k<1>: `k` is no template, so its name takes no arguments"),
        (
            FUNCTION,
            "k(1)",
            "'k(1)' is not a name of a kernel, such as 'softmax', 'a::softmax' or 'softmax<float, 128>'",
        ),
    ],
)
def test_arguments_that_are_missing_or_too_many_are_refused_at_the_declaration(
    text: str, name: str, words: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        Kernel(text, name, Threads("n"))


def test_names_are_split_at_brackets_and_not_at_commas_within() -> None:
    assert split_name(" a :: k ") == ("a::k", None)
    assert split_name("::k<Pair<int, float>, (1 > 0), f(1, 2)>") == ("k", ("Pair<int, float>", "(1 > 0)", "f(1, 2)"))
    assert split_name("k<>") == ("k", ())


def test_another_instance_has_another_key() -> None:
    """The compile cache, bundles and the simulator distinguish kernels by the final text."""
    final = {Kernel(TEXT, f"k<float, {n}, false, int>", Threads("n")).final_text({}) for n in (1, 2)}
    assert len(final) == 2


def test_the_mangled_name_survives_the_cache_and_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is loaded by the name in its text is not found in the binary."""
    pytest.importorskip("cupy")
    from cupyops.compile import bundle
    from cupyops.compile.compiler import binary_for

    monkeypatch.setenv("CUPYOPS_CACHE_DIR", str(tmp_path / "cache"))
    text = Kernel(TEXT, "k<float, 4, true, int>", Threads("n")).final_text({})
    entry = "_ZN1a1kIfLi4ELb1EiEEvPKT_PS1_T2_"
    made, cached = (binary_for(text, "k", "sm_80") for _ in range(2))
    assert (made.entry, cached.entry) == (entry, entry)
    assert list(made.resources) == [made.named("k")]
    bundle.write_bundle(tmp_path / "a.bundle", [bundle.Entry("k", text, (), 80, made)], {"cupyops": "0", "nvrtc": "0"})
    found = bundle._parsed("a", (tmp_path / "a.bundle").read_bytes(), "a", False).get(text, 80, ())
    assert found is not None
    assert found.entry == entry


def test_a_template_as_a_parameter_without_an_argument_is_refused() -> None:
    text = (
        "template <class T> struct Twice { static __device__ T of(T v) { return v + v; } };\n"
        "template <class T, template <class> class F> __global__ void k(T* y, int n) { y[0] = F<T>::of(y[0]); }"
    )
    told = "the template's parameter `F` has no argument: give it as part of its name, k<T, F>"
    with pytest.raises(ValueError, match=told):
        Kernel(text, "k<float>", Threads("n"))
    assert expression("k<float, Twice>", text=text) == "k<float, Twice>"
