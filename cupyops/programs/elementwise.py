"""Generates readable CUDA sources from element-wise programs such as ``"y = x / (1 + exp(-x))"``."""

from dataclasses import dataclass

from cupyops.dtypes import FLOATS
from cupyops.launch.geometry import Elementwise, Threads

from .expressions import Statement, arithmetic, kernel_name
from .names import ProgramKernel, in_source, type_in_source

__all__ = ["Program", "alike_kernel", "strided_kernel", "text_of"]


@dataclass(frozen=True)
class Program:
    """An element-wise program and the roles of its names.

    Attributes:
        name: the name of the kernel. The kernel for operands of different layouts has this name with ``_strided``
            appended.
        statements: the assignments, in order.
        inputs: names of the arrays that are read.
        scalars: names of the parameters that are numbers.
        results: assigned names that are written to arrays. If there are several results, a call may omit some of them.
        headers: names of headers with functions that the program calls.
    """

    name: str
    statements: tuple[Statement, ...]
    inputs: tuple[str, ...]
    scalars: tuple[str, ...]
    results: tuple[str, ...]
    headers: tuple[str, ...] = ()


def text_of(program: Program, placed: bool = False) -> str:
    """Returns the CUDA source: the two kernels, and the device function that they share.

    Args:
        program: the program.
        placed: the kernel for operands of different layouts writes its results to views, too.

    >>> from .expressions import parse
    >>> swish = Program("swish", tuple(parse("y = x / (1 + exp(-x))", "swish")), ("x",), (), ("y",))
    >>> print(text_of(swish).partition("extern")[0])
    // y = x / (1 + exp(-x))
    //
    //   x: x__t    y: scalar_t    arithmetic in acc_t
    #include "pointwise.cuh"
    #include "scalar.cuh"
    #include "strided.cuh"
    <BLANKLINE>
    // One element; an operand is rounded to the result's dtype first, as PyTorch promotes.
    __device__ __forceinline__ void swish_of(acc_t x_, scalar_t (&results)[1]) {
        const acc_t y_ = x_ / (1 + exp(-x_));
        results[0] = convert<scalar_t>(y_);
    }
    <BLANKLINE>
    template <typename T> __device__ __forceinline__ acc_t operand(T v) { return convert<acc_t>(convert<scalar_t>(v)); }
    __device__ __forceinline__ acc_t operand(scalar_t v) { return convert<acc_t>(v); }
    <BLANKLINE>
    <BLANKLINE>
    """
    name, inputs, scalars, results = kernel_name(program.name), program.inputs, program.scalars, program.results
    numbers = [f"acc_t {in_source(s)}" for s in scalars]
    count = len(results)
    null = " or null" if count > 1 else ""
    arrays = [f"    const {type_in_source(x)}* __restrict__ {in_source(x)}," for x in inputs]
    outputs = [f"    scalar_t* __restrict__ {in_source(y)}," for y in results]
    width = max(map(len, (*arrays, *outputs)))
    arrays, outputs = [a.ljust(width) for a in arrays], [o.ljust(width) for o in outputs]
    names = [in_source(x) for x in inputs]
    capture = ", ".join(map(in_source, scalars))
    operands = ", ".join(f"operand({x})" for x in names)
    given = "".join(f", {in_source(s)}" for s in scalars)
    views = (*inputs, *results) if placed else inputs
    strides = ", ".join(f"Int64s<NDIM> {x}__stride" for x in views)
    told = ", ".join(f"{x}: {type_in_source(x)}" for x in inputs)
    lines = [
        *(f"// {s}" for s in program.statements),
        "//",
        f"//   {told}    {', '.join(results)}: scalar_t    arithmetic in acc_t",
        '#include "pointwise.cuh"',
        '#include "scalar.cuh"',
        '#include "strided.cuh"',
        *(f'#include "{header}"' for header in program.headers),
        "",
        "// One element; an operand is rounded to the result's dtype first, as PyTorch promotes.",
        f"__device__ __forceinline__ void {name}_of({', '.join([f'acc_t {x}' for x in names] + numbers)}, "
        f"scalar_t (&results)[{count}]) {{",
        *(
            f"    const acc_t {in_source(s.name)} = {arithmetic(s.expression, names=in_source)};"
            for s in program.statements
        ),
        *(f"    results[{i}] = convert<scalar_t>({in_source(y)});" for i, y in enumerate(results)),
        "}",
        "",
        "template <typename T> __device__ __forceinline__ acc_t operand(T v) { return convert<acc_t>(convert<scalar_t>(v)); }",
        "__device__ __forceinline__ acc_t operand(scalar_t v) { return convert<acc_t>(v); }",
        "",
        f'extern "C" __global__ void __launch_bounds__(BLOCK_THREADS) {name}(',
        *(f"{a}  // (n__)" for a in arrays),
        *(f"{o}  // (n__){null}" for o in outputs),
        f"    {', '.join([*numbers, 'long long n__'])}) {{",
        f"    scalar_t* const out[] = {{{', '.join(map(in_source, results))}}};",
        f"    each(n__, [{capture}]({', '.join(f'{type_in_source(x)} {in_source(x)}' for x in inputs)}, "
        f"scalar_t (&results)[{count}]) {{ {name}_of({operands}{given}, results); }}, out, {', '.join(names)});",
        "}",
        "",
        "// Operands of different layouts: each thread makes VECTOR_WIDTH elements of one innermost row.",
        f'extern "C" __global__ void __launch_bounds__(128) {name}_strided(',
        *(f"{a}  // a view" for a in arrays),
        *(f"{o}  // {'a view' if placed else '(groups__, VECTOR_WIDTH)'}{null}" for o in outputs),
        f"    {', '.join([*numbers, 'long long groups__', 'Int64s<NDIM> size__', 'Int64s<NDIM> divider__', strides])}) {{",
        "    const long long group = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;",
        "    if (group >= groups__) return;",
        f"    const Int64s<NDIM> strides[] = {{{', '.join(f'{x}__stride' for x in views)}}};",
        f"    long long at[{len(views)}];",
        "    places_of<VECTOR_WIDTH, WIDE>(group, size__, divider__, strides, at);",
        *(
            f"    const Vector<{type_in_source(x)}, VECTOR_WIDTH> {x}__vector = "
            f"load_vector<VECTOR_WIDTH>({in_source(x)} + at[{i}], {x}__stride[0]);"
            for i, x in enumerate(inputs)
        ),
        f"    Vector<scalar_t, VECTOR_WIDTH> packs[{count}];",
        "#pragma unroll",
        "    for (int k = 0; k < VECTOR_WIDTH; ++k) {",
        f"        scalar_t results[{count}];",
        f"        {name}_of({', '.join(f'operand({x}__vector.element[k])' for x in inputs)}{given}, results);",
        *(f"        packs[{i}].element[k] = results[{i}];" for i in range(count)),
        "    }",
        *(
            f"    {f'if ({in_source(y)}) ' if count > 1 else ''}"
            + (
                f"store_vector({in_source(y)} + at[{len(inputs) + i}], {y}__stride[0], packs[{i}]);"
                if placed
                else f"reinterpret_cast<Vector<scalar_t, VECTOR_WIDTH>*>({in_source(y)})[group] = packs[{i}];"
            )
            for i, y in enumerate(results)
        ),
        "}",
    ]
    return "\n".join(lines) + "\n"


def alike_kernel(program: Program, text: str) -> ProgramKernel:
    """Returns the kernel for operands that all have the same layout."""
    return ProgramKernel(text, kernel_name(program.name), Elementwise("n__"), dtypes=FLOATS)


def strided_kernel(program: Program, text: str, ndim: int, vector_width: int, wide: bool) -> ProgramKernel:
    """Returns the kernel for operands of different layouts.

    Args:
        program: the program.
        text: the program's CUDA source.
        ndim: dimensions of the loop.
        vector_width: elements of a thread.
        wide: indices need 64 bits.
    """
    constants = {"NDIM": ndim, "VECTOR_WIDTH": vector_width, "WIDE": int(wide)}
    geometry = Threads("groups__", block=(128, 1, 1))
    return ProgramKernel(text, f"{kernel_name(program.name)}_strided", geometry, dtypes=FLOATS, constants=constants)
