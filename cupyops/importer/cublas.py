"""Translations of cuBLAS's names: products of matrices by PyTorch."""

from collections.abc import Sequence
from typing import Any

import torch

from . import (
    cuda_launches,  # noqa: F401  its C++ text comes first
)
from .cuda import enum
from .errors import NotTranslated
from .launches import on_stream
from .memory import DevicePointer
from .references import Pointer
from .words import declare, word

__all__: list[str] = []


enum(
    "cublasStatus_t",
    {"SUCCESS": 0, "NOT_INITIALIZED": 1, "INVALID_VALUE": 7, "EXECUTION_FAILED": 13},
    "CUBLAS_STATUS_",
)
enum("cublasOperation_t", {"N": 0, "T": 1, "C": 2}, "CUBLAS_OP_")
enum(
    "cublasMath_t",
    {"DEFAULT_MATH": 0, "TENSOR_OP_MATH": 1, "PEDANTIC_MATH": 2, "TF32_TENSOR_OP_MATH": 3},
    "CUBLAS_",
)
enum("cublasPointerMode_t", {"HOST": 0, "DEVICE": 1}, "CUBLAS_POINTER_MODE_")
enum("cublasGemmAlgo_t", {"DEFAULT": -1, "DEFAULT_TENSOR_OP": 99}, "CUBLAS_GEMM_")
enum("cudaDataType", {"32F": 0, "64F": 1, "16F": 2, "16BF": 14}, "CUDA_R_")
enum(
    "cublasComputeType_t",
    {"16F": 64, "32F": 68, "64F": 70, "32F_FAST_16F": 74, "32F_FAST_TF32": 77},
    "CUBLAS_COMPUTE_",
)
declare("typedef cudaDataType cudaDataType_t; typedef struct cublasContext* cublasHandle_t;")
# Conditions on the version select the code of a build with this CUDA, even if it has no translation.
declare(
    "#define CUBLAS_VER_MAJOR 12\n#define CUBLAS_VER_MINOR 8\n#define CUBLAS_VER_PATCH 4\n#define CUBLAS_VERSION 120804"
)
declare('#define TORCH_CUDABLAS_CHECK(x) do { if ((x) != 0) ::cupyops::failed("CUDA error: " #x); } while (0)')
_DTYPES = {0: torch.float32, 1: torch.float64, 2: torch.float16, 14: torch.bfloat16}


@word("cublasContext")
class _Cublas:
    """A handle of cuBLAS."""

    def __init__(self) -> None:
        self.stream: Any = None


@word("at::cuda::getCurrentCUDABlasHandle", "cublasHandle_t getCurrentCUDABlasHandle();")
def current_blas_handle() -> Any:
    return _Cublas()


@word("cublasCreate", "cublasStatus_t cublasCreate(cublasHandle_t*);")
@word("cublasCreate_v2", "cublasStatus_t cublasCreate_v2(cublasHandle_t*);")
def cublas_create(place: Any) -> int:
    place[0] = _Cublas()
    return 0


@word("cublasDestroy", "cublasStatus_t cublasDestroy(cublasHandle_t);")
@word("cublasDestroy_v2", "cublasStatus_t cublasDestroy_v2(cublasHandle_t);")
def cublas_destroy(handle: Any) -> int:
    return 0


@word("cublasSetStream", "cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t);")
def cublas_set_stream(handle: Any, stream: Any) -> int:
    handle.stream = stream
    return 0


@word("cublasGetStream", "cublasStatus_t cublasGetStream(cublasHandle_t, cudaStream_t*);")
def cublas_get_stream(handle: Any, place: Any) -> int:
    place[0] = handle.stream
    return 0


@word("cublasGetMathMode", "template <class M> cublasStatus_t cublasGetMathMode(cublasHandle_t, M*);")
def cublas_get_math_mode(handle: Any, place: Any) -> int:
    place[0] = 0
    return 0


@word("cublasSetMathMode", "cublasStatus_t cublasSetMathMode(cublasHandle_t, unsigned);")
def cublas_set_math_mode(handle: Any, mode: int) -> int:
    """Does nothing: the products have PyTorch's precision."""
    return 0


@word("cublasSetPointerMode", "cublasStatus_t cublasSetPointerMode(cublasHandle_t, cublasPointerMode_t);")
def cublas_set_pointer_mode(handle: Any, mode: int) -> int:
    if mode:
        raise NotTranslated("cublasSetPointerMode: factors in device memory")
    return 0


def _matrix(
    pointer: Any, dtype: torch.dtype, rows: int, columns: int, leading: int, stride: int, batch: int
) -> torch.Tensor:
    """Returns the transposes of matrices in memory, which lie row by row."""
    if not isinstance(pointer, DevicePointer):
        raise NotTranslated("cuBLAS: a matrix in host memory")
    count = (batch - 1) * stride + (columns - 1) * leading + rows if batch and rows and columns else 0
    flat = pointer.memory.flat(pointer.offset, dtype, count)
    return flat.as_strided((batch, columns, rows), (stride, leading, 1))


def _gemm(
    handle: Any,
    sizes: Sequence[int],
    factors: Sequence[Any],
    operations: Sequence[int],
    matrices: Sequence[Any],
    batch: int = 1,
) -> int:
    """Computes C = alpha op(A) op(B) + beta C for a batch of matrices.

    Args:
        handle: the handle.
        sizes: m, n and k.
        factors: pointers to alpha and beta.
        operations: of A and B.
        matrices: pointer, dtype, leading dimension and stride of A, B and C.
        batch: the number of matrices.
    """
    (m, n, k), (alpha, beta), (op_a, op_b) = sizes, (float(f[0]) for f in factors), operations
    (a, type_a, lda, step_a), (b, type_b, ldb, step_b), (c, type_c, ldc, step_c) = matrices
    if not type_a == type_b == type_c:
        raise NotTranslated(f"cuBLAS: products of {type_a} and {type_b} in {type_c}")
    if lda < max(1, k if op_a else m) or ldb < max(1, n if op_b else k) or ldc < max(1, m):
        return 7
    with on_stream(handle.stream), torch.no_grad():
        left = _matrix(a, type_a, *((k, m) if op_a else (m, k)), lda, step_a, batch)
        right = _matrix(b, type_b, *((n, k) if op_b else (k, n)), ldb, step_b, batch)
        out = _matrix(c, type_c, m, n, ldc, step_c, batch)
        left, right = left.mT if op_a else left, right.mT if op_b else right
        if batch == 1:  # the transpose of C is op(B)^T op(A)^T
            out[0].addmm_(right[0], left[0], beta=beta, alpha=alpha)
        else:
            out.baddbmm_(right, left, beta=beta, alpha=alpha)
    return 0


def _plain_gemm(letter: str, cpp: str, dtype: torch.dtype) -> None:
    matrix, head = f"const {cpp}*, int", "cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, "

    def gemm(handle: Any, ta: int, tb: int, m: int, n: int, k: int, alpha: Any, a: Any, lda: int, *rest: Any) -> int:
        b, ldb, beta, c, ldc = rest
        matrices = ((a, dtype, lda, 0), (b, dtype, ldb, 0), (c, dtype, ldc, 0))
        return _gemm(handle, (m, n, k), (alpha, beta), (ta, tb), matrices)

    def strided(handle: Any, ta: int, tb: int, m: int, n: int, k: int, alpha: Any, a: Any, lda: int, *rest: Any) -> int:
        step_a, b, ldb, step_b, beta, c, ldc, step_c, batch = rest
        matrices = ((a, dtype, lda, step_a), (b, dtype, ldb, step_b), (c, dtype, ldc, step_c))
        return _gemm(handle, (m, n, k), (alpha, beta), (ta, tb), matrices, batch)

    def gemv(handle: Any, ta: int, m: int, n: int, alpha: Any, a: Any, lda: int, *rest: Any) -> int:
        x, step_x, beta, y, step_y = rest
        if step_x != 1 or step_y != 1:
            raise NotTranslated("cublas gemv: vectors with gaps")
        rows, columns = (n, m) if ta else (m, n)
        matrices = ((a, dtype, lda, 0), (x, dtype, columns, 0), (y, dtype, rows, 0))
        return _gemm(handle, (rows, 1, columns), (alpha, beta), (ta, 0), matrices)

    status, name, factor, out = "cublasStatus_t", f"cublas{letter}gemm", f"const {cpp}*", f"{cpp}*, int"
    word(name, f"{status} {name}({head}{factor}, {matrix}, {matrix}, {factor}, {out});")(gemm)
    name += "StridedBatched"
    apart = f"{matrix}, long long, {matrix}, long long, {factor}, {out}, long long, int"
    word(name, f"{status} {name}({head}{factor}, {apart});")(strided)
    name, head = f"cublas{letter}gemv", "cublasHandle_t, cublasOperation_t, int, int, "
    word(name, f"{status} {name}({head}{factor}, {matrix}, {matrix}, {factor}, {out});")(gemv)


_plain_gemm("S", "float", torch.float32)
_plain_gemm("D", "double", torch.float64)
_plain_gemm("H", "__half", torch.float16)


@word(
    "cublasGemmEx",
    "cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*, "
    "const void*, cudaDataType, int, const void*, cudaDataType, int, const void*, void*, cudaDataType, int, "
    "cublasComputeType_t, cublasGemmAlgo_t);"
    # The form before CUDA 11 has the type of the sums.
    "cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*, "
    "const void*, cudaDataType, int, const void*, cudaDataType, int, const void*, void*, cudaDataType, int, "
    "cudaDataType, cublasGemmAlgo_t);",
)
def cublas_gemm_ex(handle: Any, ta: int, tb: int, m: int, n: int, k: int, alpha: Any, *rest: Any) -> int:
    a, type_a, lda, b, type_b, ldb, beta, c, type_c, ldc, compute, _ = rest
    if compute in (2, 64):
        raise NotTranslated("cublasGemmEx: sums in half precision")
    # The factors have the type of the sums, whatever their pointers' types are.
    factors = [Pointer(f.memory, f.offset, f.element) for f in (alpha, beta)]
    matrices = tuple(
        (p, _DTYPES[t], leading, 0) for p, t, leading in ((a, type_a, lda), (b, type_b, ldb), (c, type_c, ldc))
    )
    return _gemm(handle, (m, n, k), factors, (ta, tb), matrices)
