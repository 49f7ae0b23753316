"""PyTorch's C++ in host code: its types for clang, and its values in Python."""

import re
import warnings

import pytest
import torch

import cupyops

pytest.importorskip("clang.cindex")

from cupyops.importer import operators, tree, words
from cupyops.importer.errors import NotTranslated
from cupyops.importer.numbers import NUMBERS
from cupyops.importer.program import program

INT, FLOAT, HALF, LONG = (NUMBERS[name] for name in ("int32", "float32", "float16", "int64"))


@pytest.fixture(scope="module")
def names():
    """The names of generated code."""
    return dict(words.namespaces())


@pytest.fixture
def at(names):
    return names["at"]


def types(*expressions: str) -> list[str]:
    """Returns the C++ types of expressions of a host function."""
    lines = "\n".join(f"auto v{i} = {text};" for i, text in enumerate(expressions))
    arguments = "torch::Tensor x, torch::Tensor y, c10::optional<torch::Tensor> bias, int n"
    unit = tree.parse(
        [
            (
                "a.cu",
                f"#include <torch/extension.h>\nusing namespace torch::indexing;\nvoid f({arguments}) {{\n{lines}\n}}",
            )
        ]
    )
    assert not unit.problems, unit.problems
    found = {
        cursor.spelling: cursor.type.get_canonical().spelling
        for function in unit.declarations()
        for cursor in function.walk_preorder()
        if cursor.kind.name == "VAR_DECL"
    }
    return [found[f"v{i}"].replace("at::Tensor", "T") for i in range(len(expressions))]


def test_overloads_have_the_types_of_cpp():
    assert types("x.max()", "x.max(1)", "x.sum(1)", "x.sum({0, 2}, true)", "std::get<0>(x.topk(3))", "x.item<float>()") == [
        "T", "std::tuple<T, T>", "T", "T", "T", "float",
    ]  # fmt: skip
    assert types("x.chunk(2, 1)", "x.sizes()", "x.sizes().vec()", "x.data_ptr<float>()", "x.data_ptr()", "x.scalar_type()") == [
        "std::vector<T>", "c10::ArrayRef<long>", "std::vector<long>", "float *", "void *", "c10::ScalarType",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    """torch::empty({n, 3}, x.options()) | torch::zeros({n}, torch::TensorOptions().dtype(torch::kFloat32).device(x.device()))
    torch::full({n, 2}, 1.0f, torch::kFloat32) | torch::ones({2}, torch::device(torch::kCUDA).dtype(torch::kFloat))
    torch::zeros(n, x.device()) | torch::randn({2}, torch::requires_grad()) | torch::empty(x.sizes(), x.options())
    torch::arange(n, torch::kLong) | torch::tensor({1, 2, 3}, torch::kInt) | torch::tensor({{1., 2.}, {3., 4.}}) | torch::tensor(1.f)
    x.view({-1, n}) | x.view(-1) | x.reshape({x.size(0), -1}) | x.permute({0, 2, 1}).contiguous() | x.mean({2, 3}) | x.std(1)
    x + 1 | 2.0 * x | x / y | -x | x == y | x > 0 | x[0] | x[y] | x.index({0, Slice(None, 2), "...", None, y})
    x.to(torch::kHalf) | x.to(torch::kCUDA) | x.to(y.device()) | x.to(x.options().dtype(torch::kInt)) | x.to(torch::kCUDA, torch::kFloat)
    at::conv2d(x, y, bias, {1, 1}, {0, 0}) | torch::conv2d(x, y, {}, 1, 0, 1, 1) | torch::clamp(x, 0.0, 1.0) | x.clamp_min(0)
    torch::layer_norm(x, {n}, y, y, 1e-5) | torch::cat({x, y}, 1) | x.any() | x.norm() | x.norm(2, 1) | x.div(y, "floor") | x.std()
    torch::nn::functional::softmax(x, torch::nn::functional::SoftmaxFuncOptions(1)) | torch::nn::functional::relu(x)
    at::add_out(x, x, y) | x.relu_() | torch::einsum("ij,jk->ik", {x, y}) | x.to(y) | x.type_as(y) | torch::where(x > 0, x, y)
    torch::batch_norm(x, y, y, y, y, true, 0.1, 1e-5, true) | torch::logsumexp(x, {1, 2}, true) | torch::gelu(x, "tanh")""".splitlines(),
)
def test_forms_that_give_a_tensor(text):
    expressions = [part.strip() for part in text.split(" | ")]
    assert types(*expressions) == ["T"] * len(expressions)


def test_statements_that_clang_takes():
    unit = tree.parse([("a.cu", STATEMENTS)])
    assert not unit.problems, unit.problems


STATEMENTS = """
#include <torch/extension.h>
#include <c10/cuda/CUDAGuard.h>
__global__ void k(torch::PackedTensorAccessor32<float, 2, torch::RestrictPtrTraits> a, at::Half* h) {
  a[0][1] += a.size(0); h[0] = h[1] + h[2] * h[0]; float z = h[0]; h[1] = static_cast<at::Half>(z * h[0]);
}
torch::Tensor f(torch::Tensor x, torch::Tensor y, int n) {
  const at::cuda::OptionalCUDAGuard optional(device_of(x)); c10::cuda::CUDAGuard guard(x.device()); torch::NoGradGuard no_grad;
  x[0] = 5; x[1] = y; x += y; x *= 2; x.index_put_({0, torch::indexing::Slice()}, 1); x.index({0}) = y; x = y;
  cudaStream_t s = at::cuda::getCurrentCUDAStream(); int count = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  TORCH_CHECK(x.dim() == 2, "dim ", x.dim(), x.sizes(), x.dtype()); TORCH_CHECK(x.is_cuda()); TORCH_CHECK_EQ(n, 2);
  C10_CUDA_CHECK(cudaGetLastError()); C10_CUDA_KERNEL_LAUNCH_CHECK(); TORCH_CHECK_VALUE(n < 3, "no");
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "f", ([&] {
    scalar_t v = 0; auto p = x.data_ptr<scalar_t>(); at::acc_type<scalar_t, true> sum = 0; at::opmath_type<scalar_t> m = 0; }));
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.type(), "f", [&] { scalar_t t = 0; });
  int64_t bytes = AT_DISPATCH_INTEGRAL_TYPES(x.scalar_type(), "g", [&] { return (int64_t)sizeof(scalar_t); });
  AT_DISPATCH_INDEX_TYPES(x.scalar_type(), "g", [&] { index_t t = 0; });
  AT_DISPATCH_SWITCH(x.scalar_type(), "h",
    AT_DISPATCH_CASE(at::kInt, [&] { scalar_t u = 1; }) AT_DISPATCH_CASE_FLOATING_TYPES([&] { scalar_t w = 1; }));
  switch (x.scalar_type()) { case at::kFloat: case torch::kFloat64: case at::ScalarType::Half: break; default: AT_ERROR("t"); }
  return x;
}
std::vector<at::Tensor> g(at::TensorList xs, at::IntArrayRef s) {
  auto a = xs[0]; for (auto& t : xs) a = a + t; for (auto i : s) a = a * i; for (auto i : c10::irange(3)) a = a + i; return {a, xs[1]};
}
"""


def test_only_the_operators_of_the_text_are_declared():
    functions, methods = operators.declared({"relu", "x", "numel", "no_such_operator"})
    assert "Tensor relu(const Tensor& self_);" in functions
    assert "Tensor relu() const;" in methods
    assert "numel" not in functions + methods  # a word of its own
    assert operators.declared({"x", "grid"}) == ("", "")


def test_operators_take_the_arguments_of_cpp(at, names):
    x = torch.arange(6.0).reshape(2, 3)
    vector, options = names["c10"].ArrayRef, names["c10"].TensorOptions
    assert torch.equal(at.sum(x, 1), x.sum(1))
    assert torch.equal(at.sum(x, vector([0, 1]), True), x.sum((0, 1), True))
    assert at.sum(x, torch.float64).dtype == torch.float64  # a keyword in Python
    assert torch.equal(at.add(x, x, 2), x + 2 * x)
    values, indices = at.max(x, 1)
    assert values.tolist() == [2, 5]
    assert indices.tolist() == [2, 2]
    made = at.empty(vector([2, 3]), options(torch.float16))
    assert made.shape == (2, 3)
    assert made.dtype == torch.float16
    assert at.arange(5, torch.int32).dtype == torch.int32  # a ScalarType is converted to options
    assert at.randn(vector([2]), at.requires_grad()).requires_grad
    assert type(at.split(x, 1, 0)) is type(vector([1]))
    assert len(at.split(x, 1, 0)) == 2
    out = torch.empty(2, 3)
    assert at.add_out(out, x, x) is out
    assert torch.equal(out, x + x)
    assert at.relu_(x) is x
    assert torch.equal(
        at.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 2, 2), None, vector(1)), torch.full((1, 1, 2, 2), 4.0)
    )
    with pytest.raises(TypeError, match="at::relu has no overload"):
        at.relu(3)
    with pytest.raises(AttributeError, match="no operator at::no_such_operator"):
        at.no_such_operator  # noqa: B018


def test_options(names, at):
    options = names["c10"].TensorOptions().dtype(torch.int32).device("cpu")
    assert at.zeros([2], options).dtype == torch.int32
    assert options.dtype() == torch.int32
    assert options.device() == torch.device("cpu")
    assert options.requires_grad() is False
    assert options.dtype(FLOAT).dtype() == torch.float32  # dtype<float>()
    assert options.dtype() == torch.int32  # options are values
    assert at.options(torch.ones(2, dtype=torch.float64)).dtype() == torch.float64


def test_methods_of_tensors(names, at):
    x = torch.arange(6.0).reshape(2, 3)
    assert (at.numel(x), at.dim(x), at.size(x, -1), at.stride(x, 0), at.nbytes(x)) == (6, 2, 3, 3, 24)
    assert at.sizes(x) == [2, 3]
    assert at.strides(x) == [3, 1]
    assert at.defined(x)
    assert not at.defined(None)
    assert at.Tensor() is None
    assert at.scalar_type(x) == at.dtype(x) == names["c10"].kFloat == names["c10"].ScalarType.Float
    assert at.item(INT, x[1, 2]) == 5
    assert at.item(x[1, 2]) == 5.0
    assert at.to(x, torch.float16).dtype == torch.float16
    assert at.to(x, "cpu", torch.int32).dtype == torch.int32
    assert at.to(x, torch.ones(1, dtype=torch.float64)).dtype == torch.float64
    assert at.to(x) is x
    assert at.index(x, [0, names["at"].indexing.Slice(None, 2)]).tolist() == [0, 1]
    assert at.index(x, [names["at"].indexing.TensorIndex("..."), 1]).tolist() == [1, 4]
    assert at.index_put_(x, [0, slice(None)], 7.0)[0].tolist() == [7, 7, 7]
    assert at.copy_(x[1], 2)[0] == 2
    assert x[1].tolist() == [2, 2, 2]
    accessor = at.accessor(FLOAT, 2, x)
    assert accessor[0][1] == 7
    assert accessor.size(1) == 3
    accessor[0][1] = 3.0
    assert x[0, 1] == 3
    with pytest.raises(IndexError):
        accessor[2]
    with pytest.raises(RuntimeError, match="expected 3 dims but tensor has 2"):
        at.packed_accessor32(FLOAT, 3, x)


def test_data_ptr_checks_the_dtype(at):
    x = torch.ones(3, dtype=torch.float16)
    assert at.data_ptr(HALF, x)[1] == 1
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Half"):
        at.data_ptr(FLOAT, x)
    assert at.data_ptr(HALF, x[:0]) is None
    assert at.data_ptr(x) is not None
    with pytest.raises(NotTranslated):
        at.data_ptr("__half", x)


def test_from_blob_is_the_memory(names, at):
    x = torch.arange(6.0)
    y = at.from_blob(at.data_ptr(FLOAT, x) + 2, [2, 2], names["c10"].TensorOptions(torch.float32))
    assert y.tolist() == [[2, 3], [4, 5]]
    y[0, 0] = 9
    assert x[2] == 9
    with pytest.raises(NotTranslated):
        at.from_blob(None, [1])


def test_tensor_of_values(names):
    made = names["torch"].tensor
    assert made([1, 2]).dtype == torch.int64
    assert made(1.5).dtype == torch.float32
    assert made([[1.0], [2.0]]).shape == (2, 1)
    assert made([1], torch.float16).dtype == torch.float16


def test_the_simulators_tensors_are_on_the_gpu(names, at):
    x, device = torch.ones(2), names["c10"].Device_
    assert not at.is_cuda(x)
    assert at.get_device(x) == -1
    assert device.type(at.device(x)) == "cpu"
    with cupyops.simulate():
        assert at.is_cuda(x)
        assert at.get_device(x) == 0
        assert device.is_cuda(at.device(x))
        assert not at.is_cpu(x)
        assert device.type(at.device(x)) == names["c10"].kCUDA
        assert at.device_of(x) == torch.device("cuda", 0)
        assert at.zeros([2], at.options(x)).is_cpu
        assert at.cuda(x).is_cpu
        assert at.to(x, "cuda").is_cpu
        assert at.ones([1], at.device("cuda", 0)).is_cpu
        assert at.empty_like(x, at.options(x)).is_cpu
        assert names["c10"].cuda.getCurrentCUDAStream() is None
        assert names["at"].Type_.is_cuda(at.type(x))


GUARDS = """#include <torch/extension.h>
#include <c10/cuda/CUDAGuard.h>
int recorded(torch::Tensor x) { return (2 * x).requires_grad(); }
int block(torch::Tensor x) {
    int inside;
    { at::NoGradGuard guard; inside = recorded(x); }
    return inside * 10 + recorded(x);
}
int loop(torch::Tensor x) {
    int s = 0;
    for (int i = 0; i < 3; ++i) { at::AutoGradMode mode(i == 1); s = s * 10 + recorded(x); if (i == 2) break; }
    return s * 10 + recorded(x);
}
int raised(torch::Tensor x) {
    try { c10::InferenceMode mode; TORCH_CHECK(false, "why"); } catch (const std::exception&) { return recorded(x); }
    return 5;
}
int device(torch::Tensor x) {
    const at::cuda::OptionalCUDAGuard guard(device_of(x)); at::AutoDispatchBelowADInplaceOrView below; return recorded(x);
}
void fails() { at::NoGradGuard guard; TORCH_CHECK(false, "why"); }
int owned() { auto guard = std::make_unique<at::NoGradGuard>(); return 1; }
int temporary() { at::NoGradGuard(); return 1; }
int maybe(torch::Tensor x) { std::optional<c10::cuda::CUDAGuard> guard; return 1; }
"""


def test_guards_set_back_where_their_block_ends():
    names = ["block", "loop", "raised", "device", "fails", "owned", "temporary", "maybe"]
    f = program("guards", [("guards.cu", GUARDS)], functions=names).functions
    x = torch.ones(2, requires_grad=True)
    assert [f[name](x) for name in names[:4]] == [1, 101, 1, 0]
    with pytest.raises(RuntimeError, match="why") as caught:  # whose traceback has the frame
        f["fails"]()
    assert torch.is_grad_enabled()
    del caught
    for name in names[5:]:
        with pytest.raises(NotTranslated, match="owns a guard|has a destructor"):
            f[name](*([x] if name == "maybe" else []))
    assert torch.is_grad_enabled()


def test_messages_are_those_of_streams(names):
    message = names["cupyops"].message
    assert message("n ", 3, " ", 0.1, " ", 1e10, " ", True) == "n 3 0.1 1e+10 1"
    assert message([2, 3], torch.float32, torch.device("cuda", 0)) == "[2, 3]Floatcuda:0"
    assert message(float("inf"), " ", 1234567.0, " ", [1.5]) == "inf 1.23457e+06 [1.5]"


def test_failed_checks_raise(names):
    own = names["cupyops"]
    with pytest.raises(RuntimeError, match=r"^at most 16$"):
        own.check_failed("n <= 16", "at most 16")
    with pytest.raises(RuntimeError, match=re.escape("Expected n <= 16 to be true, but got false.")):
        own.check_failed("n <= 16", "")
    with pytest.raises(ValueError, match="bad"):
        own.check_failed("c", "bad", "ValueError")
    with pytest.raises(NotImplementedError, match="\"f\" not implemented for 'Int'"):
        own.not_dispatched("f", torch.int32)
    own.cuda_check(0)
    with pytest.raises(RuntimeError, match="CUDA error: invalid argument"):
        own.cuda_check(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own.warn("slow")
    assert str(caught[0].message) == "slow"


def test_functional_with_options(names):
    functional = names["torch"].nn.functional
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(functional.softmax(x, functional.SoftmaxFuncOptions(1)), x.softmax(1))
    padded = functional.pad(x, functional.PadFuncOptions([1, 1]).mode(names["torch"].kConstant).value(2.0))
    assert padded[0, 0] == 2
    assert padded.shape == (2, 5)
    assert torch.equal(
        functional.gelu(x, functional.GELUFuncOptions().approximate("tanh")),
        torch.nn.functional.gelu(x, approximate="tanh"),
    )
    assert torch.equal(functional.linear(x, torch.eye(3)), x)


def test_enumerations_are_in_pytorchs_order():
    unit = tree.parse(
        [
            (
                "a.cu",
                "#include <torch/extension.h>\nint a[(int)at::kBFloat16], b[(int)at::ScalarType::UInt64], c[(int)at::kCUDA];",
            )
        ]
    )
    assert not unit.problems
    assert [d.type.element_count for d in unit.declarations()] == [15, 29, 1]


# The values are those of the same text with PyTorch's headers, by g++.
FLOAT16 = """#include <torch/extension.h>
double f(double d) {
    at::KIND a = d, b = 3; auto c = a * b + a / b; c += a; c -= 1; c *= 3; c /= b;
    float g = 1; g += c; g *= a;
    std::vector<at::KIND> v(2, a); v[0] += b; v[1] *= v[0];
    struct S { at::KIND h; } s{a}; s.h -= 0.3f; s.h.x += 1; a = -a;
    at::KIND one(0x3C00, at::KIND::from_bits()), least = std::numeric_limits<at::KIND>::epsilon();
    return c + g * 100 + v[0] * 10 + v[1] + s.h + a - one + (a < b) + (a == a) + least;
}
int bits(double d) { c10::KIND h(d); return h.x; }
double of_bits(int n) { c10::KIND h; h.x = n; return h; }
double limits() {
    return at::numeric_limits<at::KIND>::lower_bound() + at::numeric_limits<float>::max() + std::numeric_limits<at::KIND>::max();
}
"""


@pytest.mark.parametrize(("kind", "want", "bits"), [("Half", 3238.484375, 0x4166), ("BFloat16", 3244.05859375, 0x402D)])
def test_16_bit_floats_are_rounded_and_have_their_bits(kind: str, want: float, bits: int) -> None:
    found = program("halves", [("h.cu", FLOAT16.replace("KIND", kind))], functions=["f", "bits", "of_bits", "limits"])
    f = found.functions
    assert (f["f"](2.7), f["bits"](2.7)) == (want, bits)
    assert f["of_bits"](bits) == torch.tensor(2.7).to(torch.float16 if kind == "Half" else torch.bfloat16).item()
    assert f["limits"]() == float("-inf")


def test_texts_stand_for_an_ellipsis_in_an_index():
    text = """torch::Tensor f(torch::Tensor x) { x.index_put_({"...", 0}, 7.0); return x.index({"...", 1}); }"""
    run = program("index", [("a.cu", f"#include <torch/extension.h>\n{text}")]).functions["f"]
    x = torch.arange(6.0).reshape(2, 3)
    assert run(x).tolist() == [1, 4]
    assert x[:, 0].tolist() == [7, 7]
