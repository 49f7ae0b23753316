"""The mutants of ``tests/mutants/mutate.py``: the file, the original code, and the faulty code."""

from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutants_column_sums import COLUMN_SUMS
from tests.mutants.mutants_constructs import CONSTRUCTS
from tests.mutants.mutants_layer_norm import LAYER_NORM
from tests.mutants.mutants_linear import LINEAR, LINEAR_NARROW
from tests.mutants.mutants_linear_gelu_sm90 import LINEAR_GELU_SM90
from tests.mutants.mutants_lltm import LLTM
from tests.mutants.mutants_lltm_sequence import LLTM_SEQUENCE
from tests.mutants.mutants_lltm_tensor_cores import LLTM_TENSOR_CORES
from tests.mutants.mutants_rotary_embedding import ROTARY_EMBEDDING
from tests.mutants.mutants_row_programs import ROW_PROGRAMS, SHARED_ROWS, TILED_ROWS


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        kernel: that is held against it; for kernels that are generated, the header that they include.
        what: in words.
        file: its name in ``kernels_cu``, or its path in the checkout.
        old, new: what is replaced, which stands there once, and by what.
        tests: the expression (``pytest -k``) for the tests of this kernel.
        stem: of the test file, where the kernel's name does not begin with it.
    """

    kernel: str
    what: str
    file: str
    old: str
    new: str
    tests: str
    stem: str = ""

    def path_in(self, checkout: Path) -> Path:
        """The file in a checkout: by its name in whatever folder of ``kernels_cu`` it lies, or by its whole path."""
        (path,) = [checkout / self.file] if "/" in self.file else (checkout / "kernels_cu").rglob(self.file)
        return path


def _of(kernel: str, tests: str, *faults: tuple[str, str, str, str], stem: str = "") -> list[Mutant]:
    return [Mutant(kernel, what, file, old, new, tests, stem) for what, file, old, new in faults]


ELEMENTWISE, STRIDED, ADD2, GELU, SCALAR = "elementwise.cuh", "strided.cuh", "add2.cu", "gelu.cuh", "scalar.cuh"
GELU_KERNELS = "gelu.cu"

# The faults of the loop that add2, add2_scalar and both GELUs share; each kernel has some of them.
_BOUND = ("off by one in the tail's bound", ELEMENTWISE, "i < n; i += BLOCK_THREADS", "i <= n; i += BLOCK_THREADS")
_SHORT = ("the last element left out", ELEMENTWISE, "i < n; i += BLOCK_THREADS", "i < n - 1; i += BLOCK_THREADS")
_WHOLE = (
    "a tile counted as whole too early",
    ELEMENTWISE,
    "BLOCK_THREADS * EACH <= n;",
    "BLOCK_THREADS * EACH <= n + 1;",
)
_TAIL = ("no tail", ELEMENTWISE, "i < n; i += BLOCK_THREADS", "i < 0; i += BLOCK_THREADS")
_STRIDE = ("wrong stride in the tail", ELEMENTWISE, "i < n; i += BLOCK_THREADS", "i < n; i += BLOCK_THREADS + 1")
_GROUPS = (
    "groups too close when loading",
    ELEMENTWISE,
    "reinterpret_cast<const Vector<T, N>*>(tile)[g * BLOCK_THREADS + threadIdx.x]",
    "reinterpret_cast<const Vector<T, N>*>(tile)[g * (BLOCK_THREADS - 1) + threadIdx.x]",
)
_STORE = (
    "groups too close when storing",
    ELEMENTWISE,
    "reinterpret_cast<Vector<Out, N>*>(tile)[g * BLOCK_THREADS + threadIdx.x]",
    "reinterpret_cast<Vector<Out, N>*>(tile)[g * (BLOCK_THREADS - 1) + threadIdx.x]",
)
_ALIGNED = ("alignment not asked for", "vector.cuh", "% (N * sizeof(T));", "% sizeof(T);")
_OUT = ("alignment of the output not asked for", ELEMENTWISE, "(misaligned<ACCESS>(out) | ... | ", "(0ull | ... | ")
_INT = (
    "start of a tile cut to 32 bits",
    ELEMENTWISE,
    "const long long start = static_cast<long long>(blockIdx.x) * (BLOCK_THREADS * EACH);",
    "const int start = static_cast<int>(blockIdx.x) * (BLOCK_THREADS * EACH);",
)
_UNSIGNED = (
    "start of a tile cut to 32 bits without a sign",
    ELEMENTWISE,
    "const long long start = static_cast<long long>(blockIdx.x) * (BLOCK_THREADS * EACH);",
    "const unsigned start = blockIdx.x * (BLOCK_THREADS * EACH);",
)
_ELEMENT = ("one element for all", ELEMENTWISE, "f(in.group[g].element[k]...)", "f(in.group[g].element[0]...)")
_HALF_ROUNDING = ("bfloat16 rounded towards zero", SCALAR, "__float2bfloat16_rn(", "__float2bfloat16_rz(")

MUTANTS = [
    *_of("constructs", "construct", *CONSTRUCTS, stem="constructs"),
    *_of(
        "add2",
        "(one_layout or integers_beyond or bits_of_torch_add or mixed or subnormals or wrap or two_to_the_32)",
        _BOUND,
        _TAIL,
        _GROUPS,
        _OUT,
        _INT,
        (
            "operands swapped",
            ADD2,
            "return scaled_sum(operand(a), operand(b), alpha); }, out, a, b",
            "return scaled_sum(operand(b), operand(a), alpha); }, out, a, b",
        ),
        ("alpha on the wrong operand", ADD2, "fma(b, alpha, a)", "fma(a, alpha, b)"),
        ("alpha left out", ADD2, "fma(b, alpha, a)", "b + a"),
        (
            "rounded twice",
            ADD2,
            "convert<scalar_t>(fma(b, alpha, a))",
            "convert<scalar_t>(convert<acc_t>(convert<scalar_t>(b * alpha)) + a)",
        ),
        ("not fused", ADD2, "fma(b, alpha, a)", "b * alpha + a"),
        (
            "operand not rounded to the result's dtype",
            ADD2,
            "operand(T v) { return convert<acc_t>(convert<scalar_t>(v)); }",
            "operand(T v) { return convert<acc_t>(v); }",
        ),
        ("integers by way of 32 bits", ADD2, "typedef unsigned long long word;", "typedef unsigned word;"),
    ),
    *_of(
        "add2_scalar",
        "(with_a_number or numbers or host_scalar or two_to_the_32)",
        _SHORT,
        _STRIDE,
        _ALIGNED,
        _UNSIGNED,
        _ELEMENT,
        (
            "order of the operands swapped",
            ADD2,
            "return VALUE_FIRST ? scaled_sum(value",
            "return !VALUE_FIRST ? scaled_sum(value",
        ),
        (
            "alpha left out",
            ADD2,
            "scaled_sum(value, operand(a), alpha) : scaled_sum(operand(a), value, alpha)",
            "scaled_sum(value, operand(a), acc_t(1)) : scaled_sum(operand(a), value, acc_t(1))",
        ),
        (
            "number rounded to the dtype",
            ADD2,
            "scaled_sum(operand(a), value, alpha);",
            "scaled_sum(operand(a), operand(convert<scalar_t>(value)), alpha);",
        ),
        (
            "number of the first form used for both",
            ADD2,
            "? scaled_sum(value, operand(a), alpha) : scaled_sum(operand(a), value, alpha)",
            "? scaled_sum(value, value, alpha) : scaled_sum(operand(a), value, alpha)",
        ),
    ),
    *_of(
        "add2_strided",
        "(of_views or bits_of_torch_add or mixed or 32_bits)",
        ("off by one in the bound", ADD2, "if (group >= groups) return;", "if (group > groups) return;"),
        ("no bound", ADD2, "    if (group >= groups) return;\n", ""),
        (
            "thread cut to 32 bits",
            ADD2,
            "const long long group = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;",
            "const int group = blockIdx.x * blockDim.x + threadIdx.x;",
        ),
        ("offset cut to 32 bits", STRIDED, "+= static_cast<long long>(i) *", "+= static_cast<int>(i) *"),
        (
            "indices of 32 bits only",
            STRIDED,
            "typedef typename Select<LARGE, long long, int>::type index_t;",
            "typedef int index_t;",
        ),
        ("a's strides for b", ADD2, "strides[] = {a_stride, b_stride}", "strides[] = {a_stride, a_stride}"),
        ("elements counted in every dimension", STRIDED, "* (d == 0 ? PER_GROUP : 1)", "* PER_GROUP"),
        ("elements not counted", STRIDED, "* (d == 0 ? PER_GROUP : 1)", "* 1"),
        ("last dimension left out", STRIDED, "if (d < DIMS - 1) next =", "if (d < DIMS - 2) next ="),
        ("the rest is not passed on", STRIDED, "        rest = next;\n", ""),
        (
            "alignment of a row not asked for",
            STRIDED,
            "if (stride == 1 && aligned<N>(p)) return",
            "if (stride == 1) return",
        ),
        ("any stride taken for 1", STRIDED, "if (stride == 1 && aligned<N>(p)) return", "if (aligned<N>(p)) return"),
        ("a broadcast element read once too far", STRIDED, "const T v = *p;", "const T v = p[1];"),
        ("stride of elements left out", STRIDED, "vector.element[k] = p[k * stride];", "vector.element[k] = p[k];"),
        (
            "a division that ends one bit early",
            STRIDED,
            ">> static_cast<unsigned>(divider >> 32)",
            ">> (static_cast<unsigned>(divider >> 32) + 1)",
        ),
        (
            "a division without its carry",
            STRIDED,
            "(__umulhi(i, static_cast<unsigned>(divider)) + i)",
            "(__umulhi(i, static_cast<unsigned>(divider)))",
        ),
        (
            "b's offset for both",
            ADD2,
            "load_vector<VECTOR_WIDTH>(a + at[0], a_stride[0])",
            "load_vector<VECTOR_WIDTH>(a + at[1], a_stride[0])",
        ),
        ("every element the first", ADD2, "operand(bv.element[k])", "operand(bv.element[0])"),
    ),
    *_of(
        "gelu_forward",
        "((forward or special or tail or 16_bit or network or two_to_the_32) and not backward)",
        _WHOLE,
        _STRIDE,
        _ALIGNED,
        _INT,
        _HALF_ROUNDING,
        ("gate swapped", GELU, "Gate{large, small} : Gate{small, large}", "Gate{small, large} : Gate{large, small}"),
        ("wrong half of the gate", GELU, "return tanh_gate(x).open;", "return tanh_gate(x).closed;"),
        (
            "tail of the wrong sign",
            GELU,
            "return x > acc_t(0) ? acc_t(1) - t : t;",
            "return x > acc_t(0) ? t : acc_t(1) - t;",
        ),
        (
            "a coefficient in its fourth digit",
            GELU,
            "q = fmaf(q, a, -4.586157052e-1f);",
            "q = fmaf(q, a, -4.585157052e-1f);",
        ),
        (
            "float32's tail from the short polynomial",
            GELU,
            "? tail_16_bit(fabsf(x)) : tail(fabsf(x));",
            "? tail_16_bit(fabsf(x)) : tail_16_bit(fabsf(x));",
        ),
        (
            "no form of its own in the far tail",
            GELU,
            "x < -5.0f) return normcdff(x);",
            "x < -50.0f) return normcdff(x);",
        ),
        ("double's sign", GELU, "__double2hiint(x) < 0 ? t :", "__double2hiint(x) >= 0 ? t :"),
        ("double's power without an exponent", GELU, "(1023 + __double2loint(shifted))", "1023"),
        ("kappa's digits swapped", GELU, "constexpr double KAPPA = 0.044715;", "constexpr double KAPPA = 0.044751;"),
        ("no absolute value", GELU, "e = exp(-fabs(two_u));", "e = exp(-two_u);"),
        (
            "the polynomial beyond where it is fitted",
            GELU,
            "__device__ __forceinline__ float tail_16_bit(float a) {\n    a = fminf(a, 16.0f);",
            "__device__ __forceinline__ float tail_16_bit(float a) {\n    a = fminf(a, 3.0f);",
        ),
    ),
    *_of(
        "gelu_backward",
        "(backward or gradient or network or 16_bit or tail)",
        _SHORT,
        _STORE,
        _OUT,
        _UNSIGNED,
        _ELEMENT,
        ("x and its gradient swapped", GELU_KERNELS, "grad_x, grad_y, x);", "grad_x, x, grad_y);"),
        ("gradient left out", GELU_KERNELS, "convert<acc_t>(grad_y) * gelu_derivative", "gelu_derivative"),
        (
            "derivative without its second term",
            GELU,
            "return normal_cdf(x) + x * normal_pdf(x);",
            "return normal_cdf(x);",
        ),
        (
            "sign of the second term",
            GELU,
            "return normal_cdf(x) + x * normal_pdf(x);",
            "return normal_cdf(x) - x * normal_pdf(x);",
        ),
        (
            "double's power without what a square rounds off",
            GELU,
            "rest = fma(-0.5, rounded_off, rest);",
            "rest = fma(0.0, rounded_off, rest);",
        ),
        (
            "double's reciprocal in single precision",
            GELU,
            "u = fma(u, fma(error, error, error), u);",
            "u = fma(u, 0.0 * error, u);",
        ),
        ("double's power below its exponents", GELU, "far = a > 37.5;", "far = a > 47.5;"),
        ("double's derivative of the wrong sign", GELU, "__double2hiint(x) < 0 ? d", "__double2hiint(x) >= 0 ? d"),
        (
            "a coefficient of double's tail in its twelfth digit",
            GELU,
            "0.8386492016549013}",
            "0.8386492016149013}",
        ),
        (
            "double's second term without its constant",
            GELU,
            "tail.slope + INV_SQRT_2PI",
            "tail.slope + 1.0",
        ),
        ("density without its half", GELU, "exp(acc_t(-0.5) * x * x)", "exp(acc_t(-1.0) * x * x)"),
        (
            "16-bit density once instead of squared",
            GELU,
            "const float d = p * root * root;",
            "const float d = p * root;",
        ),
        (
            "a coefficient of the 16-bit derivative in its third digit",
            GELU,
            "p = fmaf(p, a, 4.621462092e-02f);",
            "p = fmaf(p, a, 4.631462092e-02f);",
        ),
        ("slope without its three", GELU, "acc_t(6.0 * SQRT_2_OVER_PI * KAPPA)", "acc_t(2.0 * SQRT_2_OVER_PI * KAPPA)"),
        (
            "gate's derivative from one half of it",
            GELU,
            "gate.open + c * gate.open * gate.closed * slope",
            "gate.open + c * gate.open * gate.open * slope",
        ),
        ("nothing holds huge numbers", GELU, "fmin(fmax(x, acc_t(-32)), acc_t(32))", "x"),
        (
            "the derivative of the other form",
            GELU,
            "TANH ? tanh_derivative(x) : erf_derivative(x)",
            "TANH ? erf_derivative(x) : tanh_derivative(x)",
        ),
    ),
    *(
        mutant
        for kernel, (tests, faults) in COLUMN_SUMS.items()
        for mutant in _of(kernel, tests, *faults, stem="column_sums")
    ),
    *_of("row_passes", "forward or backward or tangent or infinity or dtype", *LAYER_NORM, stem="layer_norm"),
    *_of("rotary_embedding", "rotary or float64 or projection", *ROTARY_EMBEDDING, stem="rotary_embedding"),
    *(mutant for tests, faults in ROW_PROGRAMS for mutant in _of("row_passes", tests, *faults, stem="program")),
    *_of("row_copies", "softmax or bits", *SHARED_ROWS, stem="shared_row"),
    *_of(
        "row_tiles", "wherever_they_begin or sums_over or several_results or odd_length", *TILED_ROWS, stem="tiled_row"
    ),
    *(
        mutant
        for kernel, (tests, faults) in LINEAR_GELU_SM90.items()
        for mutant in _of(kernel, tests, *faults, stem="linear_gelu_sm90")
    ),
    *(
        mutant
        for kernel, (tests, faults) in LINEAR_NARROW.items()
        for mutant in _of(kernel, tests, *faults, stem="linear_narrow")
    ),
    *(
        mutant
        for kernel, (tests, faults) in (LINEAR | LLTM | LLTM_SEQUENCE | LLTM_TENSOR_CORES).items()
        for mutant in _of(kernel, tests, *faults)
    ),
]

# Mutants that no test without a GPU can notice, or none at all, and why.
KNOWN: dict[tuple[str, str], str] = {
    ("linear_gelu_sm90", "a block ends while the other sends to it"): (
        "blocks of a cluster take turns in the simulator, so that neither has more than one turn to end before the other's last "
        "arrival, and the end of a tile takes several"
    ),
}
