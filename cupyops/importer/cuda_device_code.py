"""Declares for clang the parts of CUDA and of its libraries that kernels use. They have no translation to Python."""

from . import cuda_small_floats  # noqa: F401  its C++ text comes first
from .words import declare, word

__all__: list[str] = []


# Only NVRTC knows the bytes of CUB's temporary storage. Host code that asks gets more than any GPU has, so the launch says so.
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
template <class T> T WARP_SHFL(T, int, int = 32, unsigned = ~0u); template <class T> T WARP_SHFL_XOR(T, int, int = 32, unsigned = ~0u);
template <class T> T WARP_SHFL_UP(T, unsigned, int = 32, unsigned = ~0u);
template <class T> T WARP_SHFL_DOWN(T, unsigned, int = 32, unsigned = ~0u);
unsigned WARP_BALLOT(int, unsigned = ~0u); unsigned WARP_ACTIVE(); void WARP_SYNC(unsigned = ~0u);
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
namespace cub { template <class T, int N, class...> struct BlockReduce { struct TempStorage { char unknown_size[1 << 30]; };
BlockReduce(TempStorage&); T Sum(T); template <class F> T Reduce(T, F); };
template <class T, int N = 32> struct WarpReduce { struct TempStorage { char unknown_size[1 << 30]; }; WarpReduce(TempStorage&); T Sum(T);
template <class F> T Reduce(T, F); };
template <class T, int N> struct BlockScan { struct TempStorage { char unknown_size[1 << 30]; }; BlockScan(TempStorage&);
template <class... A> void InclusiveSum(A&&...); template <class... A> void ExclusiveSum(A&&...); };
struct Sum {}; struct Max {}; struct Min {}; }
#pragma clang force_cuda_host_device end
""")

for _name in ("curandStateXORWOW", "curandStatePhilox4_32_10", "curandStateMRG32k3a"):
    word(_name)(None)  # device code has values of them, and host code only pointers
