"""Words of CUDA: its attributes and types for clang, and the runtime API and cuBLAS in Python.

Functions that kernels alone call have no Python meaning. They keep clang from stumbling over device code.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from cupyops.arrays import host
from cupyops.compile import toolchain
from cupyops.launch import driver

from . import memory
from .errors import NotTranslated
from .launches import errors, on_stream, stream_of
from .memory import DevicePointer
from .numbers import NUMBERS
from .references import Pointer
from .words import declare, word

__all__ = ["device_properties", "dim3", "error_string"]


def _enum(name: str, values: dict[str, int], prefix: str = "") -> None:
    """Declares an enumeration and its values, which are integers in Python."""
    declare(f"enum {name} {{ {', '.join(f'{prefix}{n} = {v}' for n, v in values.items())} }};")
    for enumerator, value in values.items():
        word(f"{prefix}{enumerator}")(value)


# Attributes and types

declare("""
#define __CUDACC__ 1
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __managed__ __attribute__((device))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __cluster_dims__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __inline__ inline
#define __noinline__ __attribute__((noinline))
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define CUDART_VERSION 12080
#define CUDA_VERSION 12080
#define CUDART_CB
#define CUDAAPI
typedef unsigned long size_t;
#pragma clang force_cuda_host_device begin
""")


class Vector:
    """The base class of CUDA's vectors."""

    fields: tuple[tuple[str, Any], ...]
    alignment: int
    __slots__ = ("w", "x", "y", "z")

    def __init__(self, *values: Any) -> None:
        for i, (name, kind) in enumerate(self.fields):
            setattr(self, name, values[i] if i < len(values) else kind(0))

    def as_argument(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name, _ in self.fields)

    def copy(self) -> Any:
        return type(self)(*self.as_argument())

    def assign(self, other: Any) -> None:
        for name, _ in self.fields:
            setattr(self, name, getattr(other, name))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vector) and type(other) is type(self) and self.as_argument() == other.as_argument()

    def __hash__(self) -> int:
        return hash(self.as_argument())

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.as_argument()}"


def _vectors() -> None:
    """Declares char1 to double4 with make_char1 to make_double4."""
    names = {"char": "int8", "short": "int16", "int": "int32", "long": "int64", "longlong": "int64"}
    kinds = {f"{u}{name}": f"{u}{kind}" for name, kind in names.items() for u in ("", "u")}
    spelled = {"char": "signed char", "longlong": "long long", "ulonglong": "unsigned long long"}
    for name, kind in {**kinds, "float": "float32", "double": "float64"}.items():
        number = NUMBERS[kind]
        base = spelled.get(name) or (f"unsigned {name[1:]}" if name[0] == "u" else name)
        for width in (1, 2, 3, 4):
            members = "xyzw"[:width]
            alignment = min(16, width * number.size) if width in (2, 4) else number.size
            of_class = {"fields": tuple((m, number) for m in members), "alignment": alignment, "__slots__": ()}
            made = type(f"{name}{width}", (Vector,), of_class)
            aligned = f"__align__({alignment}) "
            listed = ", ".join(f"{base} {m}" for m in members)
            word(made.__name__, f"struct {aligned}{made.__name__} {{ {base} {', '.join(members)}; }};")(made)
            word(f"make_{made.__name__}", f"{made.__name__} make_{made.__name__}({listed});")(_maker(made))
            memory.KINDS[made.__name__] = made


def _maker(kind: Any) -> Callable[..., Any]:
    return lambda *values: kind(*values)


_vectors()


@word(
    "dim3",
    "struct dim3 { unsigned x, y, z; constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {} "
    "constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {} };",
)
class dim3(Vector):  # noqa: N801  CUDA's name
    """CUDA's three sizes, of a grid or a block."""

    fields = tuple((name, NUMBERS["uint32"]) for name in "xyz")
    alignment = 4
    __slots__ = ()

    def __init__(self, x: Any = 1, y: int = 1, z: int = 1) -> None:
        self.x, self.y, self.z = x.as_argument() if isinstance(x, Vector) else (x, y, z)


memory.KINDS["dim3"] = dim3

declare("""
typedef float2 cuFloatComplex; typedef cuFloatComplex cuComplex; typedef double2 cuDoubleComplex;
extern "C" unsigned __cudaPushCallConfiguration(dim3, dim3, size_t = 0, void* = 0);
""")


@word("make_cuComplex", "cuFloatComplex make_cuComplex(float, float);")
@word("make_cuFloatComplex", "cuFloatComplex make_cuFloatComplex(float, float);")
def make_complex(x: float, y: float) -> Any:
    return memory.KINDS["float2"](x, y)


@word("make_cuDoubleComplex", "cuDoubleComplex make_cuDoubleComplex(double, double);")
def make_double_complex(x: float, y: float) -> Any:
    return memory.KINDS["double2"](x, y)


declare("".join(f"\n#define {name} {value}" for name, value in {
    "CUDART_NORM_HUGE_F": "3.402823466e38f", "CUDART_MAX_NORMAL_F": "3.402823466e38f", "CUDART_MIN_DENORM_F": "1.4012984643e-45f",
    "CUDART_TWO_TO_23_F": "8388608.0f", "CUDART_SQRT_TWO_F": "1.414213562f", "CUDART_SQRT_HALF_F": "0.707106781f",
    "CUDART_L2E_F": "1.442695041f", "CUDART_LN2_F": "0.693147181f", "CUDART_PIO2_F": "1.570796327f",
    "CUDART_PIO4_F": "0.785398163f", "CUDART_LNT_F": "0.693147181f", "CUDART_L2T_F": "3.321928094f",
    "CUDART_SQRT_2OVERPI": "7.9788456080286536e-1", "CUDART_SQRT_TWO": "1.4142135623730951e+0",
}.items()) + "\n")  # fmt: skip
for _name, _value in {"INF": math.inf, "NAN": math.nan, "PI": math.pi, "ZERO": 0.0, "ONE": 1.0}.items():
    for _suffix, _type in (("_F", "float"), ("", "double")):
        _text = {"INF": "__builtin_inf()", "NAN": '__builtin_nan("")'}.get(_name, repr(_value))
        word(f"CUDART_{_name}{_suffix}", f"constexpr {_type} CUDART_{_name}{_suffix} = {_text};")(
            NUMBERS["float32" if _suffix else "float64"](_value)
        )


def _half(name: str, number: str, pair: str, more: str) -> None:
    """Declares a 16-bit float, whose values are rounded Python floats, its vector of two, and its operators."""
    operators = "".join(
        f"{name} operator{o}(const {name}&, const {name}&); {name}& operator{o}=({name}&, const {name}&); "
        f"{pair} operator{o}(const {pair}&, const {pair}&); {pair}& operator{o}=({pair}&, const {pair}&); "
        for o in "+-*/"
    )
    compared = "".join(f"bool operator{o}(const {name}&, const {name}&); " for o in ("==", "!=", "<", ">", "<=", ">="))
    conversions = " ".join(f"{name}({t});" for t in ("float", "double", "int", "unsigned", "long", "short"))
    members = f"unsigned short bits; {name}() = default; {conversions} operator float() const;"
    declare(f"struct __align__(2) {name} {{ {members} }};")
    declare(f"struct __align__(4) {pair} {{ {name} x, y; {pair}() = default; {pair}({name}, {name}); }};")
    declare(f"{operators} {compared} {name} operator-(const {name}&); {more}")
    kind = NUMBERS[number]
    word(name)(kind)
    made = type(pair, (Vector,), {"fields": (("x", kind), ("y", kind)), "alignment": 4, "__slots__": ()})
    word(pair)(made)
    memory.KINDS.update({name: kind, pair: made})


_half("__half", "float16", "__half2", "typedef __half half; typedef __half2 half2; typedef __half nv_half;")
_half(
    "__nv_bfloat16",
    "bfloat16",
    "__nv_bfloat162",
    "typedef __nv_bfloat16 nv_bfloat16; typedef __nv_bfloat162 nv_bfloat162;",
)
memory.KINDS |= {"half": memory.KINDS["__half"], "half2": memory.KINDS["__half2"]}

for _name, _half_type, _number in (("half", "__half", "float16"), ("bfloat16", "__nv_bfloat16", "bfloat16")):
    word(f"__float2{_name}", f"{_half_type} __float2{_name}(float);")(NUMBERS[_number])
    word(f"__float2{_name}_rn", f"{_half_type} __float2{_name}_rn(float);")(NUMBERS[_number])
    word(f"__{_name}2float", f"float __{_name}2float({_half_type});")(NUMBERS["float32"])

# What kernels use

declare("""
extern const uint3 threadIdx, blockIdx; extern const dim3 blockDim, gridDim; extern const int warpSize;
int __syncthreads_count(int); int __syncthreads_and(int); int __syncthreads_or(int);
void __syncwarp(unsigned = ~0u); void __threadfence(); void __threadfence_block(); void __threadfence_system();
void __nanosleep(unsigned); void __trap(); long long clock64(); int clock();
template <class T> T __shfl_sync(unsigned, T, int, int = 32);
template <class T> T __shfl_up_sync(unsigned, T, unsigned, int = 32);
template <class T> T __shfl_down_sync(unsigned, T, unsigned, int = 32);
template <class T> T __shfl_xor_sync(unsigned, T, int, int = 32);
template <class T> T __shfl_down(T, unsigned, int = 32); template <class T> T __shfl_xor(T, int, int = 32);
template <class T> T __shfl(T, int, int = 32);
unsigned __ballot_sync(unsigned, int); int __any_sync(unsigned, int); int __all_sync(unsigned, int);
unsigned __activemask();
template <class T> unsigned __match_any_sync(unsigned, T); template <class T> T __reduce_add_sync(unsigned, T);
template <class T> T __reduce_max_sync(unsigned, T); template <class T> T __reduce_min_sync(unsigned, T);
template <class T, class V> T atomicAdd(T*, V); template <class T, class V> T atomicSub(T*, V);
template <class T, class V> T atomicMax(T*, V);
template <class T, class V> T atomicMin(T*, V); template <class T, class V> T atomicExch(T*, V);
template <class T, class V> T atomicAnd(T*, V);
template <class T, class V> T atomicOr(T*, V); template <class T, class V> T atomicXor(T*, V);
template <class T, class U, class V> T atomicCAS(T*, U, V);
template <class T> T atomicInc(T*, T); template <class T> T atomicDec(T*, T);
template <class T, class V> T atomicAdd_block(T*, V);
template <class T, class V> T gpuAtomicAdd(T*, V); template <class T, class V> void gpuAtomicAddNoReturn(T*, V);
template <class T> T __ldg(const T*); template <class T> T __ldcg(const T*); template <class T> T __ldcs(const T*);
template <class T> T __ldca(const T*);
template <class T> void __stcg(T*, T); template <class T> void __stcs(T*, T);
float __expf(float); float __exp10f(float); float __logf(float); float __log2f(float); float __log10f(float);
float __sinf(float); float __cosf(float);
float __tanf(float); float __powf(float, float); float __fdividef(float, float); float __saturatef(float);
void __sincosf(float, float*, float*);
float __fadd_rn(float, float); float __fsub_rn(float, float); float __fmul_rn(float, float);
float __fmaf_rn(float, float, float);
float __fdiv_rn(float, float); float __frcp_rn(float); float __fsqrt_rn(float); float __frsqrt_rn(float);
float __tanhf(float);
double __dadd_rn(double, double); double __dmul_rn(double, double); double __fma_rn(double, double, double);
int __float_as_int(float); unsigned __float_as_uint(float); float __int_as_float(int);
float __uint_as_float(unsigned);
long long __double_as_longlong(double); double __longlong_as_double(long long); int __float2int_rn(float);
int __float2int_rd(float);
int __float2int_ru(float); int __float2int_rz(float); unsigned __float2uint_rn(float); float __int2float_rn(int);
float __uint2float_rn(unsigned);
int __popc(unsigned); int __popcll(unsigned long long); int __clz(int); int __clzll(long long); int __ffs(int);
int __ffsll(long long);
unsigned __brev(unsigned); int __mulhi(int, int); unsigned __umulhi(unsigned, unsigned); int __mul24(int, int);
int __dp4a(int, int, int);
unsigned __byte_perm(unsigned, unsigned, unsigned); unsigned __funnelshift_l(unsigned, unsigned, unsigned);
unsigned __vadd4(unsigned, unsigned);
float rsqrtf(float); double rsqrt(double); float normcdff(float); double normcdf(double); float erfcxf(float);
float exp10f(float); float rcbrtf(float);
float sinpif(float); float cospif(float); void sincosf(float, float*, float*); float norm3df(float, float, float);
size_t __cvta_generic_to_shared(const void*); unsigned __cvta_generic_to_global(const void*);
template <class T = unsigned long long> void __pipeline_memcpy_async(void*, const void*, size_t, size_t = 0);
void __pipeline_commit(); void __pipeline_wait_prior(size_t);
__half __ushort_as_half(unsigned short); unsigned short __half_as_ushort(__half); __half __int2half_rn(int);
__half __double2half(double);
__half2 __floats2half2_rn(float, float); __half2 __float2half2_rn(float); __half2 __half2half2(__half); __half2 __halves2half2(__half, __half);
float2 __half22float2(__half2); float __low2float(__half2); float __high2float(__half2); __half __low2half(__half2); __half __high2half(__half2);
__nv_bfloat162 __floats2bfloat162_rn(float, float); __nv_bfloat162 __float2bfloat162_rn(float); float2 __bfloat1622float2(__nv_bfloat162);
__nv_bfloat162 __halves2bfloat162(__nv_bfloat16, __nv_bfloat16); float __low2float(__nv_bfloat162); float __high2float(__nv_bfloat162);
template <class T> T __hadd(T, T); template <class T> T __hsub(T, T); template <class T> T __hmul(T, T);
template <class T> T __hdiv(T, T);
template <class T> T __hfma(T, T, T); template <class T> T __hadd2(T, T); template <class T> T __hsub2(T, T);
template <class T> T __hmul2(T, T);
template <class T> T __hfma2(T, T, T); template <class T> T __h2div(T, T); template <class T> T __hmax(T, T);
template <class T> T __hmin(T, T);
template <class T> T __hmax2(T, T); template <class T> T __hmin2(T, T); template <class T> T __hneg(T);
template <class T> T __habs(T);
template <class T> bool __hgt(T, T); template <class T> bool __hlt(T, T); template <class T> bool __hge(T, T);
template <class T> bool __heq(T, T);
template <class T> T hexp(T); template <class T> T hlog(T); template <class T> T hsqrt(T);
template <class T> T hrsqrt(T); template <class T> T h2exp(T);
template <class T> T h2sqrt(T); template <class T> T hrcp(T); template <class T> T htanh(T);
template <class T> bool __hisnan(T);
struct curandStateXORWOW { unsigned d[12]; }; typedef curandStateXORWOW curandState;
typedef curandState curandState_t; typedef curandState curandStateXORWOW_t;
struct __align__(16) curandStatePhilox4_32_10 { unsigned d[16]; };
typedef curandStatePhilox4_32_10 curandStatePhilox4_32_10_t;
template <class S> void curand_init(unsigned long long, unsigned long long, unsigned long long, S*);
template <class S> unsigned curand(S*);
template <class S> float curand_uniform(S*); template <class S> float curand_normal(S*);
template <class S> float4 curand_uniform4(S*);
template <class S> float4 curand_normal4(S*); template <class S> uint4 curand4(S*);
template <class S> float2 curand_normal2(S*);
namespace cooperative_groups {
struct thread_group { void sync() const; unsigned size() const; unsigned thread_rank() const;
unsigned num_threads() const; };
struct grid_group : thread_group { dim3 group_dim() const; }; struct cluster_group : thread_group {
unsigned block_rank() const; template <class T> T* map_shared_rank(T*, int) const; };
struct thread_block : thread_group { static dim3 group_index(); static dim3 thread_index(); dim3 group_dim() const; };
struct coalesced_group : thread_group { template <class T> T shfl(T, int) const; };
template <unsigned N, class P = void> struct thread_block_tile : thread_group {
template <class T> T shfl(T, int) const; template <class T> T shfl_down(T, unsigned) const;
template <class T> T shfl_up(T, unsigned) const; template <class T> T shfl_xor(T, unsigned) const; int any(int) const;
int all(int) const; unsigned ballot(int) const;
unsigned meta_group_rank() const; unsigned meta_group_size() const; };
thread_block this_thread_block(); grid_group this_grid(); cluster_group this_cluster();
coalesced_group coalesced_threads();
template <unsigned N, class G> thread_block_tile<N, G> tiled_partition(const G&);
template <class G> void sync(const G&);
template <class T> struct plus { T operator()(T, T) const; }; template <class T> struct less {
T operator()(T, T) const; }; template <class T> struct greater { T operator()(T, T) const; };
template <class G, class T, class F> T reduce(const G&, T, F);
template <class G, class... A> void memcpy_async(const G&, A...); template <class G> void wait(const G&);
}
namespace nvcuda { namespace wmma { enum layout_t { mem_row_major, mem_col_major }; struct matrix_a; struct matrix_b;
struct accumulator; struct row_major; struct col_major;
namespace precision { struct tf32; } template <class, int, int, int, class, class = void> struct fragment {
int num_elements; float x[16]; };
template <class F, class V> void fill_fragment(F&, V); template <class F, class... A> void load_matrix_sync(F&, A...);
template <class T, class F> void store_matrix_sync(T*, const F&, unsigned, layout_t);
template <class D, class A, class B, class C> void mma_sync(D&, const A&, const B&, const C&);
float __float_to_tf32(float); } namespace experimental {} }
namespace cub { template <class T, int N, class...> struct BlockReduce { struct TempStorage {};
BlockReduce(TempStorage&); T Sum(T); template <class F> T Reduce(T, F); };
template <class T, int N = 32> struct WarpReduce { struct TempStorage {}; WarpReduce(TempStorage&); T Sum(T);
template <class F> T Reduce(T, F); };
template <class T, int N> struct BlockScan { struct TempStorage {}; BlockScan(TempStorage&);
template <class... A> void InclusiveSum(A&&...); template <class... A> void ExclusiveSum(A&&...); };
struct Sum {}; struct Max {}; struct Min {}; }
#pragma clang force_cuda_host_device end
""")

for _name in ("curandStateXORWOW", "curandStatePhilox4_32_10", "curandStateMRG32k3a"):
    word(_name)(None)  # device code has values of them, and host code only pointers

# Errors and devices

_ERRORS = {
    "Success": (0, "no error"),
    "ErrorInvalidValue": (1, "invalid argument"),
    "ErrorMemoryAllocation": (2, "out of memory"),
    "ErrorInvalidConfiguration": (9, "invalid configuration argument"),
    "ErrorInvalidDevice": (101, "invalid device ordinal"),
    "ErrorNotReady": (600, "device not ready"),
    "ErrorIllegalAddress": (700, "an illegal memory access was encountered"),
    "ErrorLaunchOutOfResources": (701, "too many resources requested for launch"),
    "ErrorLaunchFailure": (719, "unspecified launch failure"),
    "ErrorNotSupported": (801, "operation not supported"),
    "ErrorUnknown": (999, "unknown error"),
}
_enum("cudaError", {name: number for name, (number, _) in _ERRORS.items()}, "cuda")
declare(
    "typedef cudaError cudaError_t; typedef struct CUstream_st* cudaStream_t; typedef cudaStream_t CUstream; "
    "typedef struct CUevent_st* cudaEvent_t;"
)


word("CUstream_st")(object)  # a handle is a pointer to a class without members


def _done(error: int = 0) -> int:
    """Returns a result of the runtime API, which ``cudaGetLastError`` tells if it is an error."""
    errors.last = error or errors.last
    return error


@word("cudaGetLastError", "cudaError_t cudaGetLastError();")
def get_last_error() -> int:
    found, errors.last = errors.last, 0
    return found


@word("cudaPeekAtLastError", "cudaError_t cudaPeekAtLastError();")
def peek_at_last_error() -> int:
    return errors.last


@word("cudaGetErrorString", "const char* cudaGetErrorString(cudaError_t);")
def error_string(error: int) -> str:
    return next((text for number, text in _ERRORS.values() if number == error), "unrecognized error code")


@word("cudaGetErrorName", "const char* cudaGetErrorName(cudaError_t);")
def error_name(error: int) -> str:
    return next((f"cuda{name}" for name, (number, _) in _ERRORS.items() if number == error), "unrecognized error code")


def _on_gpu() -> bool:
    """Returns whether words concern a GPU, and not the simulated one."""
    return not host().enabled() and torch.cuda.is_available()


@word("cudaDeviceReset", "cudaError_t cudaDeviceReset();")
@word("cudaDeviceSynchronize", "cudaError_t cudaDeviceSynchronize();")
def device_synchronize() -> int:
    if _on_gpu():
        torch.cuda.synchronize()
    return 0


@word("cudaSetDevice", "cudaError_t cudaSetDevice(int);")
def set_device(device: int) -> int:
    if not 0 <= device < _device_count():
        return _done(101)
    if _on_gpu():
        torch.cuda.set_device(device)
    return 0


@word("cudaGetDevice", "cudaError_t cudaGetDevice(int*);")
def get_device(device: Any) -> int:
    device[0] = torch.cuda.current_device() if _on_gpu() else 0
    return 0


def _device_count() -> int:
    return torch.cuda.device_count() if _on_gpu() else 1


@word("cudaGetDeviceCount", "cudaError_t cudaGetDeviceCount(int*);")
def get_device_count(count: Any) -> int:
    count[0] = _device_count()
    return 0


_SIMULATED: dict[str, Any] = {
    "name": "simulated GPU", "totalGlobalMem": 80 << 30, "sharedMemPerBlock": 48 << 10, "regsPerBlock": 65536,
    "warpSize": 32, "memPitch": 2**31 - 1, "maxThreadsPerBlock": 1024, "maxThreadsDim": (1024, 1024, 64),
    "maxGridSize": (2**31 - 1, 65535, 65535), "clockRate": 1_980_000, "totalConstMem": 64 << 10, "major": 9, "minor": 0,
    "textureAlignment": 512, "multiProcessorCount": 4, "kernelExecTimeoutEnabled": 0, "integrated": 0,
    "canMapHostMemory": 1, "computeMode": 0, "concurrentKernels": 1, "ECCEnabled": 1, "pciBusID": 0, "pciDeviceID": 0,
    "pciDomainID": 0, "asyncEngineCount": 3, "unifiedAddressing": 1, "memoryClockRate": 2_619_000,
    "memoryBusWidth": 5120, "l2CacheSize": 50 << 20, "maxThreadsPerMultiProcessor": 2048,
    "sharedMemPerMultiprocessor": 228 << 10, "regsPerMultiprocessor": 65536, "managedMemory": 1,
    "cooperativeLaunch": 1, "sharedMemPerBlockOptin": 227 << 10, "maxBlocksPerMultiProcessor": 32,
    "reservedSharedMemPerBlock": 1 << 10, "persistingL2CacheMaxSize": 30 << 20,
}  # fmt: skip
_LONG = frozenset(
    ("totalGlobalMem", "sharedMemPerBlock", "memPitch", "totalConstMem", "textureAlignment")
    + ("sharedMemPerMultiprocessor", "sharedMemPerBlockOptin", "reservedSharedMemPerBlock")
)


def _member(name: str, value: Any) -> str:
    kind = "char" if isinstance(value, str) else "size_t" if name in _LONG else "int"
    return f"{kind} {name}{'[256]' if isinstance(value, str) else '[3]' if isinstance(value, tuple) else ''};"


@word("cudaDeviceProp", f"struct cudaDeviceProp {{ {' '.join(_member(*item) for item in _SIMULATED.items())} }};")
class Properties:
    """The properties of a GPU, by CUDA's names."""

    def __init__(self) -> None:
        for name, value in _SIMULATED.items():
            setattr(self, name, "" if isinstance(value, str) else _list([0, 0, 0]) if isinstance(value, tuple) else 0)

    def copy(self) -> "Properties":
        made = Properties()
        made.assign(self)
        return made

    def assign(self, other: "Properties") -> None:
        for name, value in vars(other).items():
            setattr(self, name, value.copy() if hasattr(value, "copy") else value)


def _list(values: Sequence[Any]) -> Any:
    from .containers import Vector  # whose words follow those of CUDA

    return Vector(list(values))


def device_properties(device: int = -1) -> Properties:
    """Returns the properties of a GPU, by default of the current one; in the simulator those of the simulated GPU."""
    if _on_gpu():
        return _gpu_properties(torch.cuda.current_device() if device < 0 else device).copy()
    return _properties({**_SIMULATED, "multiProcessorCount": host().multiprocessors})


@cache
def _gpu_properties(device: int) -> Properties:
    found = toolchain.cupy().cuda.runtime.getDeviceProperties(device)
    return _properties({**_SIMULATED, **{name: v for name, v in found.items() if name in _SIMULATED}})


def _properties(values: dict[str, Any]) -> Properties:
    made = Properties()
    for name, value in values.items():
        value = value.decode() if isinstance(value, bytes) else value
        setattr(made, name, _list(value) if isinstance(value, (tuple, list)) else value)
    return made


@word("cudaGetDeviceProperties", "cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int);")
def get_device_properties(properties: Any, device: int) -> int:
    if not 0 <= device < _device_count():
        return _done(101)
    properties[0].assign(device_properties(device))
    return 0


# CUDA's numbers of attributes, with the properties that the simulated GPU has for them.
_ATTRIBUTES: dict[str, tuple[int, Any]] = {
    "MaxThreadsPerBlock": (1, "maxThreadsPerBlock"), "MaxBlockDimX": (2, 1024), "MaxBlockDimY": (3, 1024),
    "MaxBlockDimZ": (4, 64), "MaxGridDimX": (5, 2**31 - 1), "MaxGridDimY": (6, 65535), "MaxGridDimZ": (7, 65535),
    "MaxSharedMemoryPerBlock": (8, "sharedMemPerBlock"), "TotalConstantMemory": (9, "totalConstMem"),
    "WarpSize": (10, "warpSize"), "MaxRegistersPerBlock": (12, "regsPerBlock"), "ClockRate": (13, "clockRate"),
    "MultiProcessorCount": (16, "multiProcessorCount"), "MemoryClockRate": (36, "memoryClockRate"),
    "GlobalMemoryBusWidth": (37, "memoryBusWidth"), "L2CacheSize": (38, "l2CacheSize"),
    "MaxThreadsPerMultiProcessor": (39, "maxThreadsPerMultiProcessor"), "ComputeCapabilityMajor": (75, "major"),
    "ComputeCapabilityMinor": (76, "minor"),
    "MaxSharedMemoryPerMultiprocessor": (81, "sharedMemPerMultiprocessor"),
    "MaxRegistersPerMultiprocessor": (82, "regsPerMultiprocessor"), "ManagedMemory": (83, 1),
    "CooperativeLaunch": (95, 1), "MaxSharedMemoryPerBlockOptin": (97, "sharedMemPerBlockOptin"),
    "MaxBlocksPerMultiprocessor": (106, "maxBlocksPerMultiProcessor"),
    "ReservedSharedMemoryPerBlock": (111, "reservedSharedMemPerBlock"), "MemoryPoolsSupported": (115, 1),
}  # fmt: skip
_enum("cudaDeviceAttr", {name: number for name, (number, _) in _ATTRIBUTES.items()}, "cudaDevAttr")


@word("cudaDeviceGetAttribute", "cudaError_t cudaDeviceGetAttribute(int*, cudaDeviceAttr, int);")
def device_get_attribute(value: Any, attribute: int, device: int) -> int:
    if not 0 <= device < _device_count():
        return _done(101)
    if _on_gpu():
        value[0] = int(toolchain.cupy().cuda.runtime.deviceGetAttribute(attribute, device))
        return 0
    found = next((v for number, v in _ATTRIBUTES.values() if number == attribute), None)
    value[0] = getattr(device_properties(device), found) if isinstance(found, str) else found
    return 0


# Memory

_enum(
    "cudaMemcpyKind",
    {"HostToHost": 0, "HostToDevice": 1, "DeviceToHost": 2, "DeviceToDevice": 3, "Default": 4},
    "cudaMemcpy",
)


def _allocated(kind: Any, place: Any, count: int, on_host: bool = False) -> int:
    # A cast, (void**)&p, keeps the type of the variable.
    of = getattr(place, "element", None)
    kind = of[1] if kind is None and isinstance(of, tuple) else kind
    try:
        place[0] = memory.allocate(count, kind, on_host)
    except torch.OutOfMemoryError:
        return _done(2)
    return 0


@word("cudaMalloc", "template <class T> cudaError_t cudaMalloc(T**, size_t);", typed=True)
def malloc(kind: Any, place: Any, count: int) -> int:
    return _allocated(kind, place, count)


@word("cudaMallocAsync", "template <class T> cudaError_t cudaMallocAsync(T**, size_t, cudaStream_t);", typed=True)
def malloc_async(kind: Any, place: Any, count: int, stream: Any) -> int:
    with on_stream(stream):
        return _allocated(kind, place, count)


_PINNED = "template <class T> cudaError_t {0}(T**, size_t, unsigned = 0);"


@word("cudaHostAlloc", _PINNED.format("cudaHostAlloc"), typed=True)
@word("cudaMallocHost", _PINNED.format("cudaMallocHost"), typed=True)
def malloc_host(kind: Any, place: Any, count: int, flags: int = 0) -> int:
    return _allocated(kind, place, count, on_host=True)


@word("cudaMallocManaged", "template <class T> cudaError_t cudaMallocManaged(T**, size_t, unsigned = 1);", typed=True)
def malloc_managed(kind: Any, place: Any, count: int, flags: int = 1) -> int:
    if _on_gpu():
        raise NotTranslated("cudaMallocManaged: host code would read and write the memory of the GPU")
    return _allocated(kind, place, count, on_host=True)


@word("cudaFreeHost", "cudaError_t cudaFreeHost(void*);")
@word("cudaFree", "cudaError_t cudaFree(void*);")
def free(pointer: Any) -> int:
    if pointer is None:
        return 0
    device_synchronize()  # as CUDA: a kernel of another stream may use the memory
    return _freed(pointer)


@word("cudaFreeAsync", "cudaError_t cudaFreeAsync(void*, cudaStream_t);")
def free_async(pointer: Any, stream: Any) -> int:
    return 0 if pointer is None else _freed(pointer)


# The C library's memory is of the same kind: a cast says what it holds.


@word("malloc", "void* malloc(size_t); void* calloc(size_t, size_t); void free(void*);"
      " namespace std { using ::malloc; using ::calloc; using ::free; }")  # fmt: skip
def host_malloc(count: int) -> Any:
    return memory.allocate(count, None, True)


@word("calloc")
def host_calloc(count: int, size: int) -> Any:
    made = host_malloc(count * size)
    memory.fill(made, 0, count * size)
    return made


@word("free")
def host_free(pointer: Any) -> None:
    if pointer is not None:
        _freed(pointer)


@word("memset", "void* memset(void*, int, size_t); void* memcpy(void*, const void*, size_t);"
      " namespace std { using ::memset; using ::memcpy; }")  # fmt: skip
def host_memset(pointer: Any, value: int, count: int) -> Any:
    memory.fill(pointer, value, count)
    return pointer


@word("memcpy")
def host_memcpy(to: Any, source: Any, count: int) -> Any:
    memory.copy(to, source, count)
    return to


def _freed(pointer: Any) -> int:
    if not isinstance(pointer, DevicePointer) or not pointer.memory.owned:
        return _done(1)
    storage = pointer.memory.storage
    if storage.data_ptr() != pointer.offset:
        return _done(1)
    pointer.memory.owned = False
    storage.resize_(0)
    return 0


@word(
    "cudaMemcpyAsync",
    "cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t = 0);",
)
@word("cudaMemcpy", "cudaError_t cudaMemcpy(void*, const void*, size_t, cudaMemcpyKind);")
def memcpy(to: Any, source: Any, count: int, kind: int, stream: Any = None) -> int:
    with on_stream(stream):
        memory.copy(to, source, count)
    return 0


@word("cudaMemsetAsync", "cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t = 0);")
@word("cudaMemset", "cudaError_t cudaMemset(void*, int, size_t);")
def memset(pointer: Any, value: int, count: int, stream: Any = None) -> int:
    with on_stream(stream):
        memory.fill(pointer, value, count)
    return 0


_TO = (
    "template <class T> cudaError_t {0}(const T&, const void*, size_t, size_t = 0, "
    "cudaMemcpyKind = cudaMemcpyHostToDevice{1});"
)
_FROM = (
    "template <class T> cudaError_t {0}(void*, const T&, size_t, size_t = 0, "
    "cudaMemcpyKind = cudaMemcpyDeviceToHost{1});"
)


@word("cudaMemcpyToSymbolAsync", _TO.format("cudaMemcpyToSymbolAsync", ", cudaStream_t = 0"))
@word("cudaMemcpyToSymbol", _TO.format("cudaMemcpyToSymbol", ""))
def memcpy_to_symbol(symbol: Any, source: Any, count: int, offset: int = 0, kind: int = 1, stream: Any = None) -> int:
    symbol.write(memory.host_bytes(source, count), offset, stream)
    return 0


@word("cudaMemcpyFromSymbolAsync", _FROM.format("cudaMemcpyFromSymbolAsync", ", cudaStream_t = 0"))
@word("cudaMemcpyFromSymbol", _FROM.format("cudaMemcpyFromSymbol", ""))
def memcpy_from_symbol(to: Any, symbol: Any, count: int, offset: int = 0, kind: int = 2, stream: Any = None) -> int:
    data = bytearray(symbol.read(count, offset, stream))
    held = memory.DeviceMemory(torch.frombuffer(data, dtype=torch.uint8))
    memory.copy(to, DevicePointer(held, held.tensor.data_ptr()), count)
    return 0


@word("cudaMemGetInfo", "cudaError_t cudaMemGetInfo(size_t*, size_t*);")
def mem_get_info(free_bytes: Any, total: Any) -> int:
    found = torch.cuda.mem_get_info() if _on_gpu() else (_SIMULATED["totalGlobalMem"],) * 2
    free_bytes[0], total[0] = found
    return 0


# Kernels

_enum(
    "cudaFuncAttribute",
    {"MaxDynamicSharedMemorySize": 8, "PreferredSharedMemoryCarveout": 9, "NonPortableClusterSizeAllowed": 14},
    "cudaFuncAttribute",
)
_enum("cudaFuncCache", {"None": 0, "Shared": 1, "L1": 2, "Equal": 3}, "cudaFuncCachePrefer")


@word("cudaFuncSetAttribute", "template <class T> cudaError_t cudaFuncSetAttribute(T*, cudaFuncAttribute, int);")
@word("cudaFuncSetCacheConfig", "template <class T> cudaError_t cudaFuncSetCacheConfig(T*, cudaFuncCache);")
def func_set_attribute(kernel: Any, attribute: int, value: int = 0) -> int:
    """Does nothing: a launch allows the bytes of shared memory that it asks for."""
    return 0


@word("cudaDeviceSetCacheConfig", "cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache);")
def device_set_cache_config(config: int) -> int:
    return 0


def _occupancy(kernel: Any, threads: int, shared: int) -> int:
    """Returns the blocks of a kernel that a multiprocessor runs at once."""
    if _on_gpu():
        device = torch.cuda.current_device()
        made = kernel.kernel((threads, 1, 1), shared)
        return int(made.resident_blocks({}, device)) // driver.multiprocessors(device)
    return int(min(32, 64 // -(-threads // 32), (228 << 10) // (shared + 1024)))


@word(
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor",
    "template <class T> cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int*, T*, int, size_t);",
)
def occupancy_blocks(count: Any, kernel: Any, threads: int, shared: int) -> int:
    count[0] = _occupancy(kernel, threads, shared)
    return 0


@word(
    "cudaOccupancyMaxPotentialBlockSize",
    "template <class T> cudaError_t cudaOccupancyMaxPotentialBlockSize(int*, int*, T*, size_t = 0, int = 0);",
)
def occupancy_block_size(grid: Any, block: Any, kernel: Any, shared: int = 0, limit: int = 0) -> int:
    if _on_gpu():
        variant = kernel.kernel((32, 1, 1), shared).variant({}, torch.cuda.current_device())
        call = toolchain.cupy().cuda.driver.occupancyMaxPotentialBlockSize
        grid[0], block[0] = map(int, call(variant.function, shared, limit))
        return 0
    threads = min(limit or 1024, 1024)
    grid[0], block[0] = host().multiprocessors * _occupancy(kernel, threads, shared), threads
    return 0


def _launched(launch: Callable[..., None], count: int, arguments: Any) -> int:
    places = (arguments[i] for i in range(count))
    launch(*(p.cast(p.element)[0] for p in places))  # each `void*` points to a value of the parameter's type
    return errors.last


_LAUNCH = "template <class T> cudaError_t {0}(T*, dim3, dim3, void**, size_t = 0, cudaStream_t = 0);"


@word("cudaLaunchKernel", _LAUNCH.format("cudaLaunchKernel"))
def launch_kernel(kernel: Any, grid: Any, block: Any, arguments: Any, shared: int = 0, stream: Any = None) -> int:
    return _launched(kernel[grid, block, shared, stream], kernel.count, arguments)


@word("cudaLaunchCooperativeKernel", _LAUNCH.format("cudaLaunchCooperativeKernel"))
def launch_cooperative(kernel: Any, grid: Any, block: Any, arguments: Any, shared: int = 0, stream: Any = None) -> int:
    return _launched(kernel.cooperative(grid, block, shared, stream), kernel.count, arguments)


# Streams, which are the driver's handles, and events


_enum("cudaStreamFlags", {"Default": 0, "NonBlocking": 1}, "cudaStream")


@word("cudaStreamCreate", "cudaError_t cudaStreamCreate(cudaStream_t*);")
@word("cudaStreamCreateWithFlags", "cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned);")
@word("cudaStreamCreateWithPriority", "cudaError_t cudaStreamCreateWithPriority(cudaStream_t*, unsigned, int);")
def stream_create(place: Any, flags: int = 0, priority: int = 0) -> int:
    # PyTorch keeps its streams to the end of the process.
    place[0] = torch.cuda.Stream(priority=priority).cuda_stream if _on_gpu() else None
    return 0


def _real(stream: Any) -> Any:
    """Returns a stream of PyTorch: that of a handle, else the current one. None in the simulator."""
    return stream_of(stream) or torch.cuda.current_stream() if _on_gpu() else None


@word("cudaStreamSynchronize", "cudaError_t cudaStreamSynchronize(cudaStream_t);")
@word("cudaStreamDestroy", "cudaError_t cudaStreamDestroy(cudaStream_t);")
def stream_synchronize(stream: Any) -> int:
    if found := _real(stream):
        found.synchronize()
    return 0


@word("cudaStreamQuery", "cudaError_t cudaStreamQuery(cudaStream_t);")
def stream_query(stream: Any) -> int:
    found = _real(stream)
    return 0 if found is None or found.query() else 600


@word("CUevent_st")
class _Event:
    """An event: of PyTorch, or the time of the host in the simulator."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True) if _on_gpu() else None
        self.seconds = 0.0

    def record(self, stream: Any) -> None:
        if self.event is not None:
            self.event.record(_real(stream))
        self.seconds = time.perf_counter()


_enum("cudaEventFlags", {"Default": 0, "BlockingSync": 1, "DisableTiming": 2}, "cudaEvent")


@word("cudaEventCreate", "cudaError_t cudaEventCreate(cudaEvent_t*);")
@word("cudaEventCreateWithFlags", "cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned);")
def event_create(place: Any, flags: int = 0) -> int:
    place[0] = _Event()
    return 0


@word("cudaEventRecord", "cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t = 0);")
def event_record(event: Any, stream: Any = None) -> int:
    event.record(stream)
    return 0


@word("cudaStreamWaitEvent", "cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0);")
def stream_wait_event(stream: Any, event: Any, flags: int = 0) -> int:
    if event.event is not None:
        _real(stream).wait_event(event.event)
    return 0


@word("cudaEventSynchronize", "cudaError_t cudaEventSynchronize(cudaEvent_t);")
def event_synchronize(event: Any) -> int:
    if event.event is not None:
        event.event.synchronize()
    return 0


@word("cudaEventQuery", "cudaError_t cudaEventQuery(cudaEvent_t);")
def event_query(event: Any) -> int:
    return 0 if event.event is None or event.event.query() else 600


@word("cudaEventElapsedTime", "cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t);")
def event_elapsed_time(place: Any, start: Any, end: Any) -> int:
    real = start.event is not None and end.event is not None
    place[0] = NUMBERS["float32"](start.event.elapsed_time(end.event) if real else 1e3 * (end.seconds - start.seconds))
    return 0


@word("cudaEventDestroy", "cudaError_t cudaEventDestroy(cudaEvent_t);")
def event_destroy(event: Any) -> int:
    return 0


# cuBLAS: matrices lie column by column

_enum(
    "cublasStatus_t",
    {"SUCCESS": 0, "NOT_INITIALIZED": 1, "INVALID_VALUE": 7, "EXECUTION_FAILED": 13},
    "CUBLAS_STATUS_",
)
_enum("cublasOperation_t", {"N": 0, "T": 1, "C": 2}, "CUBLAS_OP_")
_enum(
    "cublasMath_t",
    {"DEFAULT_MATH": 0, "TENSOR_OP_MATH": 1, "PEDANTIC_MATH": 2, "TF32_TENSOR_OP_MATH": 3},
    "CUBLAS_",
)
_enum("cublasPointerMode_t", {"HOST": 0, "DEVICE": 1}, "CUBLAS_POINTER_MODE_")
_enum("cublasGemmAlgo_t", {"DEFAULT": -1, "DEFAULT_TENSOR_OP": 99}, "CUBLAS_GEMM_")
_enum("cudaDataType", {"32F": 0, "64F": 1, "16F": 2, "16BF": 14}, "CUDA_R_")
_enum(
    "cublasComputeType_t",
    {"16F": 64, "32F": 68, "64F": 70, "32F_FAST_16F": 74, "32F_FAST_TF32": 77},
    "CUBLAS_COMPUTE_",
)
declare("typedef cudaDataType cudaDataType_t; typedef struct cublasContext* cublasHandle_t;")
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
