"""Constructs of the kernels of large frameworks: their classes for the host, their macros, and names of types."""

import torch

from tests.kernels.construct import AT, LIST, Construct
from tests.kernels.constructs_of_projects import PROJECT

_HANDLERS = r"""
#include <functional>
#include <ostream>
#define ALGORITHM(NAME, TYPE) \
  struct TYPE { \
    constexpr static auto name {#TYPE}; \
    decltype(make_handler(NAME)) handler {NAME}; \
    void set(cudaStream_t& stream) { handler.set(stream); } \
  };
template <typename R, typename... T> struct Handler { R (*function)(T...); };
template <typename R, typename... T> static Handler<R, T...> make_handler(R(f)(T...)) { return Handler<R, T...> {f}; }
struct Hit {
  float v;
  friend std::ostream& operator<<(std::ostream& to, const Hit& hit) { return to << "hit " << hit.v; }
};
template <typename T> struct Allocator {
  __host__ __device__ Allocator() {}
  __host__ T* allocate(size_t count, const T* = (const T*)(static_cast<T*>(0))) { return memory::of_host<T>(count); }
};
"""
_PRINTING = r"""
#include <ostream>
#include <set>
namespace pretty {
template <typename C> struct Texts { const C* opening; };
template <typename T, typename C> struct Delimiters { static const Texts<C> values; };
template <typename T, typename L, typename A> struct Delimiters<::std::set<T, L, A>, char> { static const Texts<char> values; };
template <typename T, typename L, typename A> const Texts<char> Delimiters<::std::set<T, L, A>, char>::values = {"{"};
template <typename T> struct Helper { std::ostream* to; template <typename U> struct Printer { static void print(U u) {} }; };
template <typename T> template <typename A> struct Helper<T>::Printer<A*> { static void print(A* a) { Helper<T>::write(*a); } };
}
"""
_GRAPHS = r"""
#include <iterator>
#include <memory>
#include <string>
class OfHost { std::weak_ptr<int> buffer; public: class Edge { public: template <typename T> T get(const std::string& name) const; }; };
class OfDevice { public: class Edge { public: float v; template <typename T> __device__ T get(int i) const;
  using iterator_category = std::random_access_iterator_tag; }; };
typedef void (OfHost::*Packer)(float* to, int n);
template <typename T> T OfHost::Edge::get(const std::string& name) const { return parsed<T>(name); }
template <typename T> __device__ T OfDevice::Edge::get(int i) const { return T(v) * i; }
"""
_VECTORS = r"""
struct __align__(1) bool1 { bool x; };
template <typename T> struct VectorOf {};
#define VECTOR(T) template <> struct VectorOf<T> { typedef T##1 type; };
#define VECTORS(T) VECTOR(T)
VECTORS(bool)
template <typename T> using Vector = typename VectorOf<T>::type;
"""
_SPACES = "#define OPEN_SPACE namespace project { inline namespace inner {\n#define CLOSE_SPACE } }\n"

OF_FRAMEWORKS = {
    "conditions on the version of Thrust, and a header of the project with a name of the system's": Construct(
        "#include <thrust/detail/config.h>\n#include <thrust/version.h>\n#include <error.h>\nusing namespace thrust::detail;\n"
        "#if THRUST_VERSION < 100500\n#error an old Thrust\n#elif THRUST_VERSION >= 100900\n#define FACTOR 2\n#endif\n"
        f"__global__ void k{LIST} {{ {AT} if (i < n) y[i] = plus_one(FACTOR * x[i]); }}",
        "k",
        lambda x: 2 * x + 1,
        ("FACTOR 2", "FACTOR 3"),
        given={"options": (f"-I{PROJECT}",)},
    ),
    "classes of the host that a macro declares, and friends of a class that are of the host": Construct(
        f'#include "handlers.h"\n__global__ void k{LIST};\nALGORITHM(k, k_algorithm)\n'
        f"__global__ void k{LIST} {{ {AT} const Hit hit = {{2}}; Allocator<int> none; if (i < n) y[i] = hit.v * x[i]; }}",
        "k",
        lambda x: 2 * x,
        ("hit = {2}", "hit = {3}"),
        given={"headers": {"handlers.h": _HANDLERS}},
    ),
    "static members and classes of templates for containers of the host": Construct(
        f'#include "printing.h"\n__global__ void k{LIST} {{ {AT} if (i < n) y[i] = 2 * x[i]; }}',
        "k",
        lambda x: 2 * x,
        ("2 * x[i]", "3 * x[i]"),
        given={"headers": {"printing.h": _PRINTING}},
    ),
    "members of classes of one name within other classes, and kinds of iterators": Construct(
        f'#include "graphs.h"\n__global__ void k{LIST} {{ {AT} OfDevice::Edge edge; edge.v = 2;\n'
        " if (i < n) y[i] = x[i] + edge.get<float>(3); }",
        "k",
        lambda x: x + 6,
        ("edge.v = 2", "edge.v = 3"),
        given={"headers": {"graphs.h": _GRAPHS}},
    ),
    "integers and functions of the text with names of CUDA's headers": Construct(
        "typedef ptrdiff_t intptr_t;\ntypedef size_t uintptr_t;\n#include <cuda/std/array>\n"
        "__device__ float2 make_float2(float a, float b) { return {a, b}; }\n"
        f"__global__ void k{LIST} {{ {AT} if (i >= n) return;\n cuda::std::array<float, 2> a = {{x[i], 2}}; const intptr_t one = 1;\n"
        " const float2 pair = make_float2(a[0], a[1]);\n"
        " y[i] = pair.x * pair.y + one + reinterpret_cast<uintptr_t>(x) % 4; }",
        "k",
        lambda x: 2 * x + 1,
        ("one = 1", "one = 3"),
    ),
    "names in templates that nothing instantiates": Construct(
        "template <int N> __device__ float never(float v) { return of_another_build * v; }\n"
        "template <typename T> struct Scale { T by; __device__ T of(T v) const { return by * v; }\n"
        " __device__ T in_rows(T v) const { return v * width_of_another_build(3); } };\n"
        f"__global__ void k{LIST} {{ {AT} const Scale<float> twice = {{2}}; if (i < n) y[i] = twice.of(x[i]); }}",
        "k",
        lambda x: 2 * x,
        ("twice = {2}", "twice = {3}"),
    ),
    "struct templates under an alias, in another namespace": Construct(
        "#if defined(__x86_64__) || defined(__LP64__)\ntypedef long long dim_t;\n#else\ntypedef int dim_t;\n#endif\n"
        "namespace a { template <int N, typename T> struct Vec { T v[N]; }; template <typename T> using Vec2 = Vec<2, T>;\n"
        " using Size = Vec<1, dim_t>; using Twice = Vec2<float>; }\nusing namespace a;\nusing a::Vec2;\n"
        "template <typename T> __global__ void k(const T* x /* (n) */, T* y /* (n) */, int n, Vec2<T> s, const Twice* t /* (1) */, Size one) {\n"
        f" {AT} if (i < n) y[i] = s.v[0] * x[i] + s.v[1] * one.v[0] + t->v[0]; }}",
        "k<float>",
        lambda x: 2 * x + 6,
        ("s.v[0] * x", "s.v[1] * x"),
        more=(([2.0, 3.0],), torch.tensor([[3.0, 0.0]]).view(torch.uint8), ([1],)),
    ),
    "classes with virtual functions by value": Construct(
        "class Strides { public: virtual ~Strides() = default; __device__ float of(int i) const { return stride[i]; }\n"
        " protected: float stride[2]; };\n"
        f"__global__ void k{LIST[:-1]}, const Strides s) {{ {AT} if (i < n) y[i] = s.of(0) * x[i] + s.of(1); }}",
        "k",
        lambda x: 2 * x + 3,
        ("s.of(0)", "s.of(1)"),
        more=(([2.0, 3.0],),),
    ),
    "names that macros make, of a header": Construct(
        f'#include "vectors.h"\n__global__ void k{LIST} {{ {AT} Vector<bool> yes; yes.x = true; if (i < n) y[i] = x[i] + yes.x; }}',
        "k",
        lambda x: x + 1,
        ("yes.x = true", "yes.x = false"),
        given={"headers": {"vectors.h": _VECTORS}},
    ),
    "namespaces that macros open, and a header in two namespaces": Construct(
        '#include "spaces.h"\nnamespace other {\n#include "twice.h"\n}\n#include "twice.h"\nOPEN_SPACE\n'
        "inline __device__ __shared__ float room[1024];\n"
        f"__global__ void k{LIST} {{ {AT} room[threadIdx.x] = 1; __syncthreads();\n"
        " if (i < n) y[i] = twice(x[i]) + other::twice(room[0]); }\nCLOSE_SPACE\n",
        "k",
        lambda x: 2 * x + 2,
        ("= 1; __syncthreads", "= 2; __syncthreads"),
        given={"headers": {"spaces.h": _SPACES, "twice.h": "__device__ inline float twice(float v) { return 2 * v; }\n"}},
    ),
}  # fmt: skip
