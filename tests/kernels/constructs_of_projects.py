"""Constructs of the kernels of public projects: structs and names of types, and what the headers of libraries define."""

from pathlib import Path

import torch

from cupyops import Threads
from tests.kernels.construct import AT, LIST, TYPED, Construct


def _complex(x: torch.Tensor) -> torch.Tensor:
    z = torch.view_as_complex(x.view(-1, 2))
    return torch.view_as_real(z * (2 + 0.5j) - 25).flatten()


PROJECT = Path(__file__).parent / "project"  # a folder of headers

OF_PROJECTS = {
    "structs with bases": Construct(
        # `by` lies after the base, and `more` in the padding after `by`.
        "struct Empty { __device__ int zero() const { return 0; } };\n"
        "template <typename T> struct Base { T scale; char pad; };\n"
        "struct Middle : public Base<double>, Empty { char by; };\nstruct Sizes : Middle { short more; };\n"
        f"__global__ void k(const float* x, float* y, int n, Sizes s) {{ {AT} "
        "if (i < n) y[i] = x[i] * s.scale + s.by * s.more + s.zero(); }",
        "k",
        lambda x: 2 * x + 10,
        ("s.by * s.more", "s.by"),
        more=((2.0, 1, 2, 5),),
    ),
    "alias templates, and the member types of a struct": Construct(
        "template <bool WIDE> using Out = std::conditional_t<WIDE, float, int>;\n"
        "template <typename T> struct Vector;\ntemplate <> struct Vector<float> { typedef float2 Type; };\n"
        "template <typename T, bool WIDE> __global__ void k(const T* x /* (n) */, Out<WIDE>* y /* (n) */, int n,\n"
        f" typename Vector<T>::Type s) {{ {AT} if (i < n) y[i] = s.x * x[i] + s.y; }}",
        "k<float, true>",
        lambda x: 2 * x + 1,
        ("s.x * x[i] + s.y", "s.y * x[i] + s.x"),
        more=((2.0, 1.0),),
    ),
    "typedefs of arrays": Construct(
        f"typedef float pair_t[2];\n__global__ void k(const pair_t* x /* (n) */, pair_t* y /* (n) */, int n) {{ {AT} "
        "if (i < n) { y[i][0] = x[i][1]; y[i][1] = 2 * x[i][0]; } }",
        "k",
        lambda x: torch.stack([x[1::2], 2 * x[::2]], 1).flatten(),
        ("y[i][0] = x[i][1]", "y[i][0] = x[i][0]"),
        shape=(-1, 2),
    ),
    "complex numbers of PyTorch": Construct(
        "#include <ATen/ATen.h>\n#include <c10/util/complex.h>\nusing complex_t = typename c10::complex<float>;\n"
        "__global__ void k(const complex_t* x /* (n) */, complex_t* y /* (n) */, int n, c10::complex<double> by) {\n"
        f" {AT} if (i >= n) return;\n complex_t sum;\n const c10::complex<at::Half> one(at::Half(1.f), at::Half(0.f));\n"
        " sum += x[i] * complex_t(by);\n y[i] = sum / exp(complex_t()) / complex_t(one) - norm(complex_t(3.f, 4.f));\n"
        " if (!(conj(conj(x[i])) == x[i]) || real(x[i]) != x[i].real()) y[i] = 0.f; }",
        "k",
        _complex,
        ("x[i] * complex_t(by)", "x[i]"),
        more=((2.0, 0.5),),
        shape=(-1, 2),
    ),
    "atomic sums and types of the arithmetic of PyTorch": Construct(
        "#include <ATen/native/cuda/KernelUtils.cuh>\n"
        f"template <typename T> __global__ void k(const T* x, T* y, int n, at::opmath_type<T> by) {{ {AT} "
        "if (i < n) { at::native::fastAtomicAdd(y, i, n, x[i], true); fastAtomicAdd(y, i, n, T(by)); } }",
        "k<float>",
        lambda x: x + 2,
        ("T(by)", "T(-by)"),
        more=(2.0,),
    ),
    "device code for CUTLASS that no kernel calls": Construct(
        "#include <cutlass/cutlass.h>\n#include <cute/tensor.hpp>\n"
        "template <typename T> using Op = cutlass::arch::OpClassSimt;\n"
        "template <typename T> static constexpr int WIDTH = cutlass::sizeof_bits<T>::value;\n"
        "template <typename T> struct Epilogue { Op<T> op; static const int N = WIDTH<T>; };\nusing Last = Epilogue<float>;\n"
        "__device__ Last never(cutlass::half_t v) { return Last(); }\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = 2 * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("2 * x[i]", "3 * x[i]"),
    ),
    "classes of the host that name classes of another header": Construct(
        f'#include "loss.h"\nclass Other : public Loss {{ Blob<float> b; }};\n'
        "class Timed { Watch* w; static void call(cudaStream_t s); public: Timed() { start(&w); } };\n"
        f'__global__ void k{LIST} {{ {AT} '
        "if (i < n) y[i] = 2 * x[i]; }",
        "k",
        lambda x: 2 * x,
        ("2 * x[i]", "3 * x[i]"),
        given={
            "headers": {
                "blob.h": "#include <array>\n#include <cudnn.h>\ntemplate <typename T> class Blob { public:\n"
                " Blob(std::array<int, 4> size) {} cudnnTensorDescriptor_t d; };\n",
                "loss.h": '#include "blob.h"\nclass Loss { public: float of(Blob<float>* a); private: float l = 0.f; };\n',
            }
        },
    ),
    "code of the host behind a condition": Construct(
        "#ifdef __CUDACC__\n#define DEVICE __host__ __device__\n#else\n#define DEVICE\n#endif\n"
        "struct Three { float v; DEVICE float get(int i) const {\n#ifdef __CUDACC__\n return v;\n#else\n"
        " if (i) throw std::invalid_argument(std::to_string(i));\n return v;\n#endif\n} };\n"
        f"__global__ void k{LIST} {{ {AT} const Three three = {{3}}; if (i < n) y[i] = three.get(i) * x[i]; }}",
        "k",
        lambda x: 3 * x,
        ("three = {3}", "three = {4}"),
    ),
    "member functions that name types of the host": Construct(
        "#define BOTH __host__ __device__\n#include <array>\n#include <string>\n"
        "class Box { float v; public: BOTH explicit Box(float v) : v(v) {} BOTH float get() const { return v; }\n"
        " explicit Box(const std::array<float, 6>& all) : v(all[0]) {}\n protected: std::string name() const;\n"
        " public: template <class Archive> std::string write(Archive& to) { return to(v); } BOTH float last() const { return v; } };\n"
        f"__global__ void k(const float* x, float* y, int n, Box box) {{ {AT} if (i < n) y[i] = box.get() * x[i] + box.last(); }}",
        "k",
        lambda x: 2 * x + 2,
        ("box.get()", "3"),
        more=((2.0,),),
    ),
    "member functions of the host": Construct(
        "struct Status { int v; int __host__ status() ; int other() { return v; } __host__ __device__ int get() const { return v; } };\n"
        f"__global__ void k(const float* x, float* y, int n, Status s) {{ {AT} if (i < n) y[i] = s.get() * x[i]; }}",
        "k",
        lambda x: 3 * x,
        ("s.get()", "2"),
        more=((3,),),
    ),
    "conditions on the system": Construct(
        "#if defined(_WIN32) || defined(__APPLE__) || defined(_MSC_VER)\nusing uint = unsigned int;\n#endif\n"
        f"__global__ void k{LIST} {{ {AT} const uint two = 2; if (i < n) y[i] = two * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("two = 2", "two = 3"),
    ),
    "functors that CUB 3 removed": Construct(
        f"#include <cub/cub.cuh>\n__global__ void k{LIST} {{ {AT} typedef cub::WarpReduce<float> Reduce;\n"
        " __shared__ typename Reduce::TempStorage room[8];\n"
        " const float v = i < n ? x[i] : -1e30f;\n const float m = Reduce(room[threadIdx.x / 32]).Reduce(v, cub::Max());\n"
        " const float all = __shfl_sync(0xffffffffu, m, 0); if (i < n) y[i] = all; }",
        "k",
        lambda x: torch.cat([part.max().expand(len(part)) for part in x.split(32)]),
        ("cub::Max()", "cub::Min()"),
    ),
    "an order of a matrix, and an 8-bit float, by value": Construct(
        "#include <mma.h>\n#include <cuda_fp8.h>\nusing namespace nvcuda;\n"
        f"__global__ void k(const float* x, float* y, int n, wmma::layout_t order, __nv_fp8_e4m3 by) {{ {AT} "
        "if (i < n) y[i] = float(by) * x[i] + (order == wmma::mem_col_major ? 1 : 0); }",
        "k",
        lambda x: 2 * x + 1,
        ("mem_col_major", "mem_row_major"),
        more=(1, 0x40),
    ),
    "headers of a folder": Construct(
        f'#include "scale.h"\n#include <parts/../parts/once.h>\n__global__ void k(const float* x, float* y, int n, Factor f) {{ {AT} '
        "if (i < n) y[i] = twice(f.by * x[i]) + OF_TWO; }",
        "k",
        lambda x: 6 * x + 2,
        ("twice(", "fabsf("),
        more=((3.0,),),
        given={"options": (f"-I{PROJECT}",)},
    ),
    "device code for macros that nothing defines and that no kernel uses": Construct(
        "#ifdef WITH_ROWS\n#define ROW_WIDTH 8\n#endif\n"
        "__device__ float of_row(float v) { return v * ROW_WIDTH; }\n__device__ float by_row(float v) { return of_row(v) + 1; }\n"
        f"__device__ float twice(float v) {{ return 2 * v; }}\n__global__ void k{LIST} {{ {AT} if (i < n) y[i] = twice(x[i]); }}",
        "k",
        lambda x: 2 * x,
        ("return 2 * v", "return 3 * v"),
    ),
    "prototypes of the host with a condition among their parameters": Construct(
        "#include <cublas_v2.h>\nint product(cublasHandle_t handle, int m,\n"
        "#if defined(__HIP_PLATFORM_AMD__)\n rocblas_gemm_algo algo = rocblas_gemm_algo_standard);\n"
        "#else\n cublasGemmAlgo_t algo = CUBLAS_GEMM_DEFAULT);\n#endif\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = 2 * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("2 * x[i]", "3 * x[i]"),
    ),
    "cooperative groups whose header another header includes": Construct(
        "namespace cg = cooperative_groups;\n"
        f"__global__ void k{LIST} {{ auto block = cg::this_thread_block(); auto tile = cg::tiled_partition<32>(block);\n"
        f" {AT} const float first = tile.shfl(i < n ? x[i] : 0.f, 0); if (i < n) y[i] = first; }}",
        "k",
        lambda x: torch.cat([part[:1].expand(len(part)) for part in x.split(32)]),
        ("0.f, 0)", "0.f, 1)"),
    ),
    "shapes above the parameters": Construct(
        "__global__ void k(\n // (n)\n const float* x,\n // (n) doubled\n // in place of x\n float* y,\n int n) "
        f"{{ {AT} if (i < n) y[i] = 2 * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("2 * x[i]", "3 * x[i]"),
    ),
    "complex numbers of CUDA's C++ library": Construct(
        "#include <cuda/std/complex>\nusing complex_t = cuda::std::complex<float>;\n"
        f"__global__ void k(const complex_t* x /* (n) */, complex_t* y /* (n) */, int n, cuda::std::complex<double> by) {{ {AT} "
        "if (i >= n) return;\n complex_t sum;\n sum += x[i] * complex_t(by);\n"
        " y[i] = sum / cuda::std::exp(complex_t()) - cuda::std::norm(complex_t(3.f, 4.f));\n"
        " if (cuda::std::conj(cuda::std::conj(x[i])) != x[i] || cuda::std::abs(complex_t(3.f, 4.f)) != 5.f) y[i] = 0.f; }",
        "k",
        _complex,
        ("x[i] * complex_t(by)", "x[i]"),
        more=((2.0, 0.5),),
        shape=(-1, 2),
    ),
    "constants of traits of the host": Construct(
        "#include <vector>\n#include <type_traits>\ntemplate <class T> struct is_list : std::false_type {};\n"
        "template <class T> struct is_list<std::vector<T>> : std::true_type {};\n"
        "template <class T> inline constexpr bool is_list_v = is_list<T>::value;\ninline constexpr float TWO = 2;\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = TWO * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("TWO = 2", "TWO = 3"),
    ),
    "other spellings of inline PTX": Construct(
        '#define HINT(size) ".L2::" #size "B"\n#define MOVE "mov.b32"\n'
        "template <int N> __device__ void copied(float (&r)[N], const float* from) {\n"
        ' __asm__ __volatile__("ld.global.relaxed.gpu.b32 %0, [%1];" : "=f"(r[0]) : "l"(from)); }\n'
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return;\n float r[1], s;\n copied(r, x + i);\n"
        ' asm(MOVE " %0, %1;" : "=f"(s) : "f"(2.f));\n'
        ' __asm("{ .reg .b64 p; createpolicy.fractional.L2::evict_first.b64 p, 1.0;"\n'
        '  "ld.global" HINT(64) ".b32" "{%0}, [%1]; }" : "=f"(r[0]) : "l"(x + i));\n'
        ' asm volatile("st.global.release.gpu.b32[%0], %1;" :: "l"(y + i), "f"(s * r[0])); }',
        "k",
        lambda x: 2 * x,
        ('"f"(2.f)', '"f"(3.f)'),
    ),
    "bytes of the C++ library, and a kernel's text in a string": Construct(
        '#include <cstring>\nconst char* source = R"x(__global__ void k(" { )" ;)x";\n'
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return;\n std::memcpy(y + i, x + i, 4);\n"
        " if (y[i] > 0) std::memset(y + i, 0, 4); }",
        "k",
        lambda x: x.clamp(max=0),
        ("> 0", "< 0"),
    ),
    "libraries whose headers another header includes": Construct(
        '#include "my_project.h"\n#include <my_project/my_types.h>\ntypedef cub::BlockReduce<float, 128> Largest;\n'
        f"__global__ void __launch_bounds__(128) k{LIST} {{ {AT} __shared__ Largest::TempStorage storage; __shared__ float largest;\n"
        " cg::thread_block block = cg::this_thread_block();\n\n"
        " const float all = Largest(storage).Reduce(i < n ? x[i] : x[n - 1], cub::Max());\n if (threadIdx.x == 0) largest = all;\n block.sync();\n"
        " const cuComplex two = make_cuComplex(2, 0);\n if (i < n) y[i] = largest * two.x + two.y; }",
        "k",
        lambda x: torch.cat([(2 * part.max()).expand(len(part)) for part in x.split(128)]),
        ("make_cuComplex(2, 0)", "make_cuComplex(2, 1)"),
        given={"geometry": Threads("n", block=128)},
    ),
    "a struct with a constructor and a destructor of the host": Construct(
        "struct Count {\n int* found;\n Count() { cudaMalloc((void**)&found, 4); }\n ~Count(void) { cudaFree(found); }\n"
        " __device__ int twice(int v) { return 2 * v; }\n};\n"
        f"__global__ void k{LIST[:-1]}, Count count) {{ {AT} if (i < n) y[i] = count.twice(1) * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("return 2 * v", "return 3 * v"),
        more=((0,),),
    ),
    "a default before a parameter of a template without one": Construct(
        f"template <int FACTOR = 2, typename T> __global__ void k{TYPED} {{ {AT} if (i < n) y[i] = FACTOR * x[i]; }}",
        "k<2, float>",
        lambda x: 2 * x,
        ("FACTOR * x", "3 * x"),
    ),
    "macros of other platforms": Construct(
        '#include "my_project.h"\n#ifdef USE_ROCM\n#define FACTOR 3\n#else\n#define FACTOR 2\n#endif\n'
        "#if defined(MY_OPTION)\n#include <my_option.h>\n#endif\n#define gpuStream_t cudaStream_t\n"
        "struct Call {\n gpuStream_t stream;\n};\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = FACTOR * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("FACTOR 2", "FACTOR 4"),
    ),
    "mathematical functions of integers and of two types": Construct(
        f"#include <cmath>\n__global__ void k{LIST} {{ {AT} if (i >= n) return;\n const unsigned four = 4;\n"
        " y[i] = fmax(x[i], 0.0) + sqrt(4) + std::fmin(n, 3) + floor(7 / 2) + pow(2, 3) + std::sqrt(four);\n"
        " y[i] += fmod(7, four) + pow(1.f, 2.0) + std::abs(-1); }",
        "k",
        lambda x: (x.clamp(min=0).double() + 18).float() + 5,
        ("fmin(n, 3)", "fmin(n, 4)"),
    ),
    "a variable of a struct of the host": Construct(
        "#include <time.h>\nstruct Watch {\n struct timespec begin;\n};\nvoid start(struct Watch* w) { clock_gettime(0, &w->begin); }\n"
        "struct Watch watch;\nstruct Pair { float a, b; };\n__device__ struct Pair pair = {2, 1};\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = pair.a * x[i] + pair.b; }}",
        "k",
        lambda x: 2 * x + 1,
        ("{2, 1}", "{2, 3}"),
    ),
    "constants of a name for float that read one another": Construct(
        "typedef float real;\n#define SQUARE(v) ((v) * (v))\nnamespace units {\nconst real length = 4.0;\nconst real area = SQUARE(length) / 8.0;\n"
        "const real half_of_it = area / 2.0;\nconst real angle = acosf(0.5f);\nconst real twice = 2 * angle;\n}\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = x[i] * units::area + units::half_of_it; }}",
        "k",
        lambda x: 2 * x + 1,
        ("/ 8.0", "/ 4.0"),
    ),
    "a class of constants with members of the host": Construct(
        "#include <string>\n#include <torch/library.h>\nnamespace own {\nclass Format {\n public:\n"
        " constexpr Format(int bits, bool with_sign) : bits(bits), with_sign(with_sign) {}\n"
        ' static constexpr Format of(int bits) { TORCH_CHECK(bits > 0, "no bits"); return Format(bits, true); }\n'
        " int const bits;\n bool const with_sign;\n using Id = int;\n constexpr Id id() const { return 2 * bits + with_sign; }\n"
        " constexpr std::string prefix() const { return with_sign ? std::string() : std::string(1, 'u'); }\n"
        " std::string name() const { return prefix() + std::to_string(bits); }\n};\nusing FormatId = Format::Id;\n"
        "static inline constexpr auto BYTE = Format::of(4);\n}\n"
        f"template <own::FormatId ID> __device__ float times(float v) {{ return ID * v; }}\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = times<own::BYTE.id()>(x[i]); }}",
        "k",
        lambda x: 9 * x,
        ("2 * bits", "3 * bits"),
    ),
    "host code in either branch of a condition that closes a namespace": Construct(
        "#include <ATen/ATen.h>\nnamespace own {\n#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 500\n"
        f"__global__ void k{LIST} {{}}\n}}\nat::Tensor run(at::Tensor a) {{ return a; }}\n#else\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = 2 * x[i]; }}\n}}\n"
        "at::Tensor run(at::Tensor a) { own::k<<<1, 32>>>(a.data_ptr<float>(), a.data_ptr<float>(), a.numel()); return a; }\n#endif\n",
        "own::k",
        lambda x: 2 * x,
        ("= 2 *", "= 3 *"),
    ),
    "a type of libraries in a function of the host": Construct(
        "template <typename T> struct Of;\ntemplate <> struct Of<float> {\n static cudaDataType_t code() { return CUDA_R_32F; }\n"
        " static __device__ float two() { return 2; }\n};\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = Of<float>::two() * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("return 2;", "return 3;"),
    ),
    "parameters that are pointers to functions": Construct(
        f"__global__ void k{LIST[:-1]}, float (*of)(float), void (*const then)(float*, int) = nullptr) {{ {AT}\n"
        " if (i < n) y[i] = of ? of(x[i]) : 2 * x[i];\n if (i < n && then) then(y, i); }",
        "k",
        lambda x: 2 * x,
        (": 2 *", ": 3 *"),
        more=(0, 0),
    ),
    "questions for features of a compiler, beside headers that nobody has": Construct(
        '#include "my_project.h"\n#include <nvfunctional>\n#include <msgpack.hpp>\n#ifdef __has_feature\n'
        "#if __has_feature(cxx_constexpr) && !__has_feature(address_sanitizer) && !defined(OWN_DOXYGEN_ONLY)\n#define FACTOR 3\n#endif\n#endif\n"
        "#ifndef FACTOR\n#define FACTOR 2\n#endif\n"
        "struct Packed {\n float v;\n void pack(msgpack::object& to) const { to.add(v); }\n"
        " __device__ float thrice() const { return FACTOR * v; }\n};\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = Packed{{x[i]}}.thrice(); }}",
        "k",
        lambda x: 3 * x,
        ("FACTOR 3", "FACTOR 4"),
    ),
    "a user-defined literal of the host that is a friend": Construct(
        'struct Real;\nnamespace literal { Real operator "" _r(long double v); }\n'
        'struct Real {\n float v;\n __host__ __device__ float twice() const { return 2 * v; }\n'
        ' friend Real literal::operator "" _r(long double v);\n};\n'
        'namespace literal { inline Real operator "" _r(long double v) { return Real{float(v)}; } }\n'
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = Real{{x[i]}}.twice(); }}",
        "k",
        lambda x: 2 * x,
        ("return 2 *", "return 3 *"),
    ),
}  # fmt: skip
