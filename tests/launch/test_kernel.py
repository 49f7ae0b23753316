"""Kernel without a GPU: errors of declarations and calls."""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import cupyops.torch
from cupyops import Elementwise, GridStride, Kernel, Threads, warmup
from cupyops.launch import driver
from cupyops.launch.geometry import Geometry
from tests.gpu.stub_gpu import FLOATS, TEXT, scale

# Declarations


@pytest.mark.parametrize(
    ("name", "geometry", "options", "error", "words"),
    [
        (
            "scale",
            GridStride("N"),
            {"dtypes": ("float32", "float8")},
            ValueError,
            "scale: `dtypes` .* float16, .*, got 'float8'",
        ),
        ("scale", GridStride("N"), {"dtypes": ()}, ValueError, "scale: `dtypes` must be names of .*, got none"),
        ("scaled", GridStride("N"), {}, ValueError, "no __global__ function 'scaled' .*; did you mean 'scale'"),
        ("scale", GridStride("n"), {}, ValueError, "scale: `n` counts threads .* no integer parameter of this name"),
        (
            "scale",
            Threads("N", "factor"),
            {},
            ValueError,
            "scale: `factor` counts threads .* no integer parameter of this name",
        ),
        (
            "scale",
            GridStride("N"),
            {"constants": {"HALF": 0.5}},
            TypeError,
            r"constants\['HALF'\]` must be an integer, got 0.5",
        ),
        *(
            (
                "scale",
                GridStride("N"),
                {"constants": {name: 1}},
                ValueError,
                "scale: `constants` must have names of macros",
            )
            for name in ("A B", "A\\n#define N", "A\n", "1A", "", "Ä", 5, None)
        ),
        (
            "scale",
            GridStride("N"),
            {"constants": {"A": True}},
            TypeError,
            r"scale: `constants\['A'\]` must be an int.* True",
        ),
        (
            "scale",
            GridStride("N"),
            {"constants": {"A": np.True_}},
            TypeError,
            r"scale: `constants\['A'\]` must be an int",
        ),
        (
            "scale",
            GridStride("N"),
            {"constants": {"A": 1.0}},
            TypeError,
            r"scale: `constants\['A'\]` must be an int.* 1.0",
        ),
        (
            "scale",
            GridStride("N"),
            {"constants": {"BLOCK_THREADS": 128}},
            ValueError,
            r"scale: `constants\['BLOCK_THREADS'\]` must equal the constant of the launch policy, 256, got 128",
        ),
        ("scale", GridStride("N"), {"shared": -1}, ValueError, "scale: `shared` must be at least 0, got -1"),
        (
            "scale",
            GridStride("N"),
            {"shared": 1.5},
            TypeError,
            "scale: `shared` must be a number of bytes, an expression",
        ),
        ("scale", GridStride("N"), {"shared": True}, TypeError, "scale: `shared` must be an integer, got True"),
        *(
            (
                "scale",
                GridStride("N"),
                {"since": since},
                ValueError,
                "scale: `since` must be (at least 0|a compute|be a)",
            )
            for since in (-90, 9, 9000)
        ),
        ("scale", GridStride("N"), {"since": "90"}, TypeError, "scale: `since` must be an integer, got '90'"),
        ("scale", GridStride("N"), {"since": 9.0}, TypeError, "scale: `since` must be an integer, got 9.0"),
        ("scale", GridStride("N"), {"exactly": True}, ValueError, "scale: `since` must be a compute capability"),
        *(
            ("scale", geometry, {}, TypeError, r"scale: `geometry` must be (a launch policy such as|an integer)")
            for geometry in ("N", True, 1.5, Threads, (128, 1, 1))
        ),
        ("scale", 0, {}, ValueError, "scale: `geometry` must be at least 1, got 0"),
        ("scale", 2048, {}, ValueError, "scale: a block of 2048 x 1 x 1 threads"),
        ("many", GridStride("n"), {"constants": {"WIDTH": 4}}, TypeError, "many: the length of `shape`, NDIM"),
        ("many", GridStride("n"), {"constants": {"NDIM": 4}}, UserWarning, "many: the comment .* `WIDTH`"),
        ("scale", GridStride("N"), {"shared": 1, "text": "void scale();"}, ValueError, "it has none"),
    ],
)
def test_refused_declarations(name: str, geometry: Geometry, options: dict[str, Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        Kernel(options.pop("text", TEXT), name, geometry, **{"dtypes": FLOATS, **options})


def test_a_number_is_the_threads_of_a_block() -> None:
    for block in (128, np.int64(128)):
        kernel = Kernel(TEXT, "scale", block, dtypes=FLOATS)
        assert kernel.geometry == Threads(block=(128, 1, 1))
        x, y = (torch.empty(3, 4, device="meta") for _ in range(2))
        kernel[12](x, y, 2.0, 3, 4)
    assert Kernel(TEXT, "scale", GridStride("N"), constants={"A": np.int8(-3)}, shared=np.int32(4)).constants["A"] == -3
    assert Kernel(TEXT, "scale", GridStride("N"), constants={"BLOCK_THREADS": 256}).hardware.shared == 0


def test_final_text_has_types_constants_and_one_kernel() -> None:
    text = scale(constants={"TANH": 1}).final_text({"scalar_t": "float16"})
    for words in ("typedef __half scalar_t;", "#define TANH 1\n", "#define BLOCK_THREADS 256\n", '#line 1 "scale.cu"'):
        assert words in text
    assert text.count("__global__") == 1


def test_descriptions() -> None:
    found = scale(constants={"TANH": 1}, filename="mine.cu")
    assert found.describe({"scalar_t": "float16"}) == "scale<float16, TANH=1>"
    assert repr(found) == "<Kernel scale of mine.cu: x, y, factor, M, N>"
    gather = Kernel(TEXT, "gather", GridStride("n"), dtypes=("int32", "float32"))
    assert gather.describe({"scalar_t": "float32", "index_t": "int32"}) == "gather<float32, int32>"
    assert list(gather.type_choices()) == [{"scalar_t": d, "index_t": d} for d in ("int32", "float32")]


FLOAT32_AND_64 = ("float32", "float64")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("float32", ("float32",)),
        ("torch.float32", ("float32",)),
        (torch.float32, ("float32",)),
        (np.float32, ("float32",)),
        (np.dtype("float64"), ("float64",)),
        ((torch.float32, "float64"), FLOAT32_AND_64),
        ([np.float32, np.dtype("float64")], FLOAT32_AND_64),
        (iter(FLOAT32_AND_64), FLOAT32_AND_64),
    ],
)
def test_dtypes_are_understood_one_or_several_as_names_or_as_any_librarys(given: Any, names: tuple[str, ...]) -> None:
    assert Kernel(TEXT, "scale", GridStride("N"), dtypes=given).dtypes == names


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("flaot32", "uint64, bool, got 'flaot32'; did you mean 'float32'?"),
        ("float", "got 'float'; did you mean 'float32'?"),
        (("float32", "double"), "got 'double'; did you mean 'float64'?"),
        ("half", "got 'half'; did you mean 'float16'?"),
        (torch.complex64, "got torch.complex64"),
        ("float32,float64", "got 'float32,float64'; give several as a tuple"),
        (None, "got None"),
        (3, "got 3"),
    ],
)
def test_dtypes_that_are_none_are_said_whole(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"scale: `dtypes` must be names of float16, .*{re.escape(words)}"):
        Kernel(TEXT, "scale", GridStride("N"), dtypes=given)


def test_a_path_that_is_a_str_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.txt").write_text(TEXT, encoding="utf-8")
    Path("scale.cu").write_text(TEXT, encoding="utf-8")
    words = "Kernel: `text` must be CUDA C++, got 'scale.cu', which looks like a path: give Path('scale.cu')"
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        Kernel("scale.cu")
    with pytest.raises(ValueError, match=r"^scale: .* give Path\('there.txt'\)$"):
        Kernel("there.txt", "scale", GridStride("N"))
    absent = f"give Path('kernels/scale.cuh'); there is no such file in {tmp_path}"
    with pytest.raises(ValueError, match=re.escape(absent)):
        Kernel("kernels/scale.cuh", "scale", GridStride("N"))
    assert Kernel(Path("scale.cu"), "scale", GridStride("N")).filename == "scale.cu"
    for given, kind in ((TEXT.encode(), "bytes"), (None, "NoneType")):
        with pytest.raises(
            TypeError, match=re.escape(f"scale: `text` must be CUDA C++ as a str, or a Path, got {kind}")
        ):
            Kernel(given, "scale", GridStride("N"))  # type: ignore[arg-type]


def test_warmup_prepares_each_choice_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, ...]] = []
    monkeypatch.setattr(
        Kernel, "variant", lambda self, types, device: made.append((self.name, *types.values(), device))
    )
    fixed = Kernel(TEXT, "many", GridStride("n"), dtypes=("float32", "float64"), constants={"NDIM": 3, "WIDTH": 4})
    assert warmup(("float16", "float64"), kernels=[scale(), fixed], device=1) == 3
    assert made == [("scale", "float16", 1), ("scale", "float64", 1), ("many", 1)]
    assert warmup(("float32",), kernels=[scale()], device=0) == 1
    assert warmup(("bfloat16",), kernels=[scale()], device=0) == 0
    with pytest.raises(ValueError, match="warmup: `dtypes` must be names of .*, got 'float8'"):
        warmup(("float8",), kernels=[scale()], device=0)


# Wrong calls, on tensors without memory


@pytest.fixture(params=["fake", "meta"])
def tensors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that makes tensors; a call that would launch something fails."""

    def launched(*args: object) -> NoReturn:
        raise AssertionError("launched")

    monkeypatch.setattr(driver, "submit", launched)
    monkeypatch.setattr(Kernel, "variant", launched)
    fake = request.param == "fake"
    with FakeTensorMode() if fake else nullcontext():
        yield lambda *shape, **options: torch.empty(shape, device="cuda" if fake else "meta", **options)


def test_right_calls_on_fakes_do_nothing(tensors: Any) -> None:
    x, y = tensors(3, 4), tensors(3, 4)
    scale()(x, y, 2.0, 3, 4)
    scale()(N=4, M=3, factor=2.0, y=y, x=x)
    scale()(x, y, N=4, M=3, factor=2.0)


def wrong_calls() -> list[Any]:
    def case(name: str, error: type, words: str, change: Any) -> Any:
        return pytest.param(error, words, change, id=name)

    return [
        case(
            "missing",
            TypeError,
            "scale: missing `M`, `N`; it takes x, y, factor, M, N",
            lambda x, y, t: ((x, y, 2.0), {}),
        ),
        case(
            "extra",
            TypeError,
            r"scale takes 5 arguments \(x, y, factor, M, N\), got 6",
            lambda x, y, t: ((x, y, 2.0, 3, 4, 5), {}),
        ),
        case(
            "unknown",
            TypeError,
            "scale has no parameter `facto`; did you mean 'factor'",
            lambda x, y, t: ((x, y), {"facto": 2.0}),
        ),
        case("twice", TypeError, "scale: parameter `y` is given twice", lambda x, y, t: ((x, y, 2.0, 3, 4), {"y": y})),
        case(
            "list",
            TypeError,
            "scale: `x` must be a CuPy array or a PyTorch tensor, got list",
            lambda x, y, t: (([1.0], y), {}),
        ),
        case(
            "numpy", TypeError, "scale: `y` must be a CuPy .*, got ndarray", lambda x, y, t: ((x, np.ones((3, 4))), {})
        ),
        case(
            "dtype",
            TypeError,
            "`x` must have dtype float16 or float32 or float64, got int32",
            lambda x, y, t: ((x.int(), y), {}),
        ),
        case(
            "dtypes",
            TypeError,
            r"`y` must have dtype float32 \(scalar_t, as .*\), got float64",
            lambda x, y, t: ((x, y.double()), {}),
        ),
        case(
            "device",
            ValueError,
            r"`y` must be on the device of `x` \(float32\[3, 4\] on .*\), got .* on cpu",
            lambda x, y, t: ((x, t), {}),
        ),
        case(
            "layout",
            ValueError,
            r"`x` must be contiguous, got strides \(1, 4\) for shape \(4, 3\)",
            lambda x, y, t: ((x.t(), y), {}),
        ),
        case(
            "sliced",
            ValueError,
            r"`y` must be contiguous, got strides \(4, 2\)",
            lambda x, y, t: ((x, y.as_strided((3, 2), (4, 2))), {}),
        ),
    ]


@pytest.mark.parametrize(("error", "words", "change"), wrong_calls())
def test_wrong_calls(tensors: Any, error: type, words: str, change: Any) -> None:
    args, options = change(tensors(3, 4), tensors(3, 4), torch.empty(3, 4, device="cpu"))
    if len(args) == 2 and not options:
        args += (2.0, 3, 4)
    with pytest.raises(error, match=words):
        scale()(*args, **options)


def test_layouts_of_elementwise_kernels(tensors: Any) -> None:
    """Elements in memory order: any dense layout will do, if it is the same one everywhere."""
    x = tensors(2, 3, 4, 5).to(memory_format=torch.channels_last)
    elementwise = scale(Elementwise("N"))
    elementwise(x, torch.empty_like(x), 2.0, 2, 60)
    elementwise(x.transpose(0, 3), torch.empty_like(x).transpose(0, 3), 2.0, 2, 60)
    elementwise(tensors(24), tensors(4, 6), 2.0, 2, 12)
    for other in (tensors(2, 3, 4, 5), x.as_strided((2, 3, 2, 5), (60, 1, 30, 3))):
        with pytest.raises(
            ValueError, match="must be contiguous, or dense and laid out like the other arrays, got strides"
        ):
            elementwise(x, other, 2.0, 2, 60)


def test_numbers_of_threads_may_be_symbols() -> None:
    """A size that the launch looked at would be fixed in the compiled graph."""
    given = Kernel(TEXT, "scale", dtypes=FLOATS)

    def body(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        given[x.numel()](x, y, 2.0, 1, x.numel())
        return y

    scaled = cupyops.torch.Operator("test_kernel::scaled(Tensor x) -> Tensor", body, reference=lambda x: 2 * x)
    compiled = torch.compile(lambda x: scaled(x) + 1, fullgraph=True, backend="eager")
    x = torch.ones(5)
    torch._dynamo.mark_dynamic(x, 0)
    assert torch.equal(compiled(x), torch.full((5,), 3.0))
    assert torch.equal(compiled(torch.ones(7)), torch.full((7,), 3.0))


def test_tensors_on_the_cpu_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scale: `x` must be on a CUDA device, got float32\[3, 4\] on cpu"):
        scale()(torch.ones(3, 4), torch.ones(3, 4), 2.0, 3, 4)
