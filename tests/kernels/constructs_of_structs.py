"""Kernels whose structs by value hold arrays, classes and 16-bit floats, as kernels of libraries have them."""

import torch

from tests.kernels.construct import AT, LIST, Construct

_HEAD = LIST.removesuffix(")")
_ONE_FOUR = torch.tensor([1.0, 4.0])

OF_STRUCTS = {
    "structs by value that point to arrays": Construct(
        "template <typename T> struct Params { using pointer = T*; const T* __restrict__ weights; pointer sums; void* more;\n"
        " int64_t at; float scale = 1.f; const int* absent; };\n"
        f"template <typename T> __global__ void k{_HEAD}, __grid_constant__ const Params<T> p) {{ {AT}\n"
        " if (i == 0) p.sums[1] = n; if (i < n) y[i] = x[i] + p.weights[p.at] * p.scale + static_cast<int*>(p.more)[0] + !p.absent; }",
        "k<float>",
        lambda x: x + 8 + 7 + 1,
        ("p.weights[p.at]", "p.weights[0]"),
        more=((_ONE_FOUR, torch.zeros(2), torch.tensor([7], dtype=torch.int32), 1, 2.0, None),),
    ),
    "arrays that bases and members of a struct point to": Construct(
        "struct Query { using index_t = int64_t; void* q; index_t stride; int heads; };\n"
        "template <int N> struct Several { float v[N]; };\n"
        "struct Forward : public Query { void* out; float scale; Several<2> several; bool causal; const int* lengths; };\n"
        f"template <bool CAUSAL, typename P> __global__ void k{_HEAD}, const P p) {{ {AT}\n"
        " if (i < n) y[i] = x[i] + static_cast<float*>(p.q)[p.stride] * p.scale + p.several.v[1] + p.lengths[0] + (CAUSAL && p.causal); }",
        "k<true, Forward>",
        lambda x: x + 8 + 3 + 7 + 1,
        ("several.v[1]", "several.v[0]"),
        more=((_ONE_FOUR, 1, 3, None, 2.0, ((1.0, 3.0),), True, torch.tensor([7], dtype=torch.int32)),),
    ),
    "tables of arrays by value, whose sizes another table has": Construct(
        "constexpr int most[3] = {16, 8, 4};\n"
        "template <int N> struct Lists { void* addresses[N][most[N - 1]]; int sizes[most[N - 1]]; unsigned char of_block[32]; };\n"
        f"__global__ void k{_HEAD}, Lists<2> lists) {{ {AT} const float* a = (const float*)lists.addresses[0][1];\n"
        " const float* b = (const float*)lists.addresses[1][1]; if (i < n) y[i] = x[i] + a[0] + b[lists.sizes[1]] + lists.of_block[3]; }",
        "k",
        lambda x: x + 5 + 4 + 9,
        ("lists.addresses[0][1]", "lists.addresses[1][1]"),
        more=(
            (
                ((None, torch.tensor([5.0]), *[None] * 6), (None, _ONE_FOUR, *[None] * 6)),
                (0, 1, 0, 0, 0, 0, 0, 0),
                (0, 0, 0, 9, *[0] * 28),
            ),
        ),
    ),
    "arrays of pointers by a template of a pointer": Construct(
        "template <typename T, int N> struct Array { T data[N]; __host__ __device__ T& operator[](int i) { return data[i]; }\n"
        " __host__ __device__ const T& operator[](int i) const { return data[i]; } };\n"
        f"template <int N> __global__ void k{_HEAD}, Array<const float*, N> a, const Array<int, N> counts) {{ {AT}\n"
        " if (i < n) y[i] = x[i] + a[1][0] + counts[1]; }",
        "k<2>",
        lambda x: x + 4 + 6,
        ("counts[1]", "counts[0]"),
        more=(((torch.tensor([1.0]), torch.tensor([4.0])),), ((5, 6),)),
    ),
    "constructors with lists of initializers in braces": Construct(
        "template <typename T, int N> struct Vec { T x, y, z; Vec() = default; __device__ Vec(T a) : x{a}, y{a}, z{a} {}\n"
        " __host__ __device__ T operator[](int i) const { return (&x)[i]; } };\n"
        "using vec3 = Vec<float, 3>;\n"
        "struct Box { constexpr static int SIDES = 6; vec3 low = vec3(1e30f), high{-1e30f};\n"
        " __host__ __device__ Box() {} __host__ __device__ Box(const vec3& a, const vec3& b) : low{a}, high{b} {}\n"
        " __host__ __device__ bool contains(const vec3& p) const { return p.x >= low.x && p.x <= high.x; } };\n"
        f"__global__ void k{_HEAD}, Box box) {{ {AT} if (i < n) y[i] = x[i] + box.contains(vec3(.5f)) + box.high[2]; }}",
        "k",
        lambda x: x + 10,
        ("box.high[2]", "box.low[2]"),
        more=(((0.0, 0.0, 0.0), (9.0, 9.0, 9.0)),),
    ),
    "classes within a class as its members, also without names": Construct(
        "template <typename T> struct All { struct Part { T s; int k[2]; }; struct Whole { Part part; } whole;\n"
        " enum { A, B } kind; union { float f; int i; }; struct { T a, b; } pair; };\n"
        f"__global__ void k{_HEAD}, All<float> all) {{ {AT}\n"
        " if (i < n) y[i] = x[i] + all.whole.part.k[1] * all.whole.part.s + all.f + all.pair.b + all.kind; }",
        "k",
        lambda x: x + 6 + 4 + 7 + 1,
        ("all.pair.b", "all.pair.a"),
        more=((((2.0, (5, 3)),), 1, 4.0, 0x40800000, (1.0, 7.0)),),
    ),
    "16-bit floats in a struct by value": Construct(
        "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\nstruct Factors { half a; __nv_bfloat16 b; half2 c; };\n"
        f"__global__ void k{_HEAD}, Factors by) {{ {AT}\n"
        " if (i < n) y[i] = x[i] + __half2float(by.a) + __bfloat162float(by.b) + __high2float(by.c); }",
        "k",
        lambda x: x + 1 + 3 + 4,
        ("__high2float", "__low2float"),
        more=((1.0, 3.0, (2.0, 4.0)),),
    ),
    "arrays of the C++ library, pointers to functions and complex numbers in structs, and arrays by value": Construct(
        "#include <array>\n#include <cuComplex.h>\n#include <cuda/std/array>\n"
        "struct All { cuda::std::array<int, 3> a; float (*f)(float); cuFloatComplex z; double2 d[2]; char name[5]; };\n"
        f"__global__ void k{_HEAD}, All all, std::array<float, 2> by) {{ {AT}\n"
        " if (i < n) y[i] = x[i] + all.a[2] + !all.f + all.z.y + all.d[1].x + all.name[1] + by[1]; }",
        "k",
        lambda x: x + 3 + 1 + 2 + 3 + 9 + 7,
        ("all.a[2]", "all.a[1]"),
        more=(((1, 2, 3), 0, (1.0, 2.0), ((1.0, 2.0), (3.0, 4.0)), (8, 9, 0, 0, 0)), (6.0, 7.0)),
    ),
    "templates of structs with const types, and objects in memory that is there": Construct(
        "#include <new>\ntemplate <int N> struct Dims { int d[N]; };\n"
        "template <typename T, int N> struct View { T* data; Dims<N> stride; __device__ T& at(int i) const { return data[i * stride.d[0]]; } };\n"
        "struct Sum { float v; __device__ Sum(float a, float b) : v(a + b) {} };\n"
        f"template <typename T> __global__ void k{_HEAD}, View<const T, 1> more) {{ {AT} alignas(8) char memory[8];\n"
        " if (i < n) y[i] = (new (memory) Sum(x[i], more.at(1)))->v; }",
        "k<float>",
        lambda x: x + 4,
        ("more.at(1)", "more.at(0)"),
        more=((torch.tensor([1.0, 0.0, 4.0]), ((2,),)),),
    ),
    "partial specializations, and members by a macro": Construct(
        "#define BODY __host__ __device__ T& operator[](int i) { return ((T*)this)[i]; } \\\n"
        " __host__ __device__ static constexpr int size() { return N; }\n"
        "template <typename T, int N, size_t A = sizeof(T)> struct alignas(A) Vec {\n BODY\n T e[N]; };\n"
        "template <typename T, size_t A> struct alignas(A) Vec<T, 3, A> {\n static constexpr int N = 3;\n BODY\n"
        " union { T x, r; }; T y, z; };\n"
        "using vec3 = Vec<float, 3>; struct Box { vec3 low, high; Vec<int, 2, 8> cell; };\n"
        f"__global__ void k{_HEAD}, Box box) {{ {AT} if (i < n) y[i] = x[i] + box.high.z + box.cell[1] + box.low.r; }}",
        "k",
        lambda x: x + 7 + 9 + 1,
        ("box.high.z", "box.high.y"),
        more=(((1.0, 1.0, 2.0, 3.0), (4.0, 4.0, 5.0, 7.0), ((8, 9),)),),
    ),
}  # fmt: skip
