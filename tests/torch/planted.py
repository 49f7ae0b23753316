"""The faults that the tests of check_op plant, with the check that finds each and the words of its message."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from tests.exploits import exploits
from tests.torch import faulty_gpu, faulty_scale
from tests.torch import faulty_ops as faulty
from tests.torch.faulty_common import Totals
from tests.torch.faulty_ops import Body, Mix, changed

Sample = Callable[[], tuple[Tensor, Tensor, float]]

# A fault, and the words of its message. In the simulator, all checks run and only this one fails.
PLANTED: dict[str, tuple[str, Callable[[], Mix], str]] = {
    "returns nothing": (
        "returned",
        lambda: Mix(body=lambda x, w, factor: None),
        r"faulty::mix\d+: the body returned None; it must return 1 tensor \(out\).* Count what body and backward return",
    ),
    "returns one gradient of two": (
        "returned",
        lambda: Mix(backward_body=lambda grad_y, x, w, factor: grad_y * 2),
        r"mix\d+_backward: the body returned 1 tensor; it must return 2 tensors \(out0, out1\)",
    ),
    "a bound off by one": (
        "sanitizer",
        lambda: Mix(
            body=changed(("    if (i < n) {\n        const acc_t v", "    if (i <= n) {\n        const acc_t v"))
        ),
        r"mix<float32>: out of bounds: reads 4 bytes at element 133 of `x` .* at mix.cu:10",
    ),
    "a sum of all threads into one element": (
        "sanitizer",
        lambda: Mix(body=faulty.adds_up_in_one_element()),
        r"total<float32>: a race in global memory: reads element 0 of `y` \(float32\[1\] on cpu\), which thread \(0, 0, 0\) "
        r"wrote at total.cu:7 with nothing that orders the two at total.cu:7, by block \(0, 0, 0\), thread \(1, 0, 0\)",
    ),
    "a last element left out": (
        "written",
        lambda: Mix(
            body=changed(("    if (i < n) {\n        const acc_t v", "    if (i < n - 1) {\n        const acc_t v"))
        ),
        r"float32: 1 of 133 elements of output still hold what was in memory before.*\[18, 6\] of \[19, 7\].* Have the kernel write",
    ),
    "writes into an input": (
        "inputs_kept",
        lambda: Mix(body=faulty.into_its_input),
        r"`w` is written into.*Tensor\(a!\) x",
    ),
    "writes into a gradient": (
        "inputs_kept",
        lambda: Mix(backward=faulty.into_its_gradient),
        "the gradient of an output is written into",
    ),
    "returns its input": ("returned", lambda: Mix(body=faulty.itself), "the body returned `out` in the memory of `x`"),
    "counts its calls": (
        "determinism",
        lambda: Mix(body=faulty.counting()),
        r"float32, run 2: \d+ of 133 elements of output differ, the first at .* without atomics",
    ),
    "a wrong factor": (
        "values",
        lambda: Mix(body=lambda x, w, factor: faulty.body(x, w, factor * 1.001)),
        r"float32: output\[\d+, \d\] is .*, and the reference in float64 gives .*: off by .* eps of float32, 16 are allowed",
    ),
    "recomputes with a wrong sign": (
        "recompute",
        lambda: Mix(recompute=lambda x, w, factor: x - factor * x * w),
        r"float32, recomputed: output\[\d+, \d\] is .*, and the reference in float64 gives .* Have the function of `recompute=`",
    ),
    "recomputes a result of another shape": (
        "recompute",
        lambda: Mix(recompute=lambda x, w, factor: faulty.reference(x, w, factor).sum(0)),
        r"float32, recomputed: output has shape \(7,\), and the reference in float64 gives \(19, 7\)",
    ),
    "a common result that follows from another input": (
        "common",
        Totals,
        r"float32: `total` changes with `w`, which `common` does not name.* Name in `common=` each input and result",
    ),
    "a common result that follows from a number": (
        "common",
        lambda: Totals(total=lambda x, w, factor: (x * factor).sum(-1)),
        r"float32: `total` changes with `factor`, which `common` does not name",
    ),
    "another factor in place": (
        "inplace",
        lambda: Mix(inplace=lambda x, w, factor: faulty.in_place(x, w, 2 * factor)),
        r"float32, in place: output\[\d+, \d\] is .*, and the reference in float64 gives .* Have the body of `inplace=`",
    ),
    "takes NaN for 0": (
        "special_values",
        lambda: Mix(body=faulty.without_nan),
        r"with nan as element 66 of `x`, output\[9, 3\] is 0.0, and the reference gives nan",
    ),
    "a value of its own at 0": (
        "special_values",
        lambda: Mix(body=changed(("y[i] = scalar_t(", "y[i] = v == 0 ? scalar_t(1e-3) : scalar_t("))),
        r"float32, with 0, ±1, powers of 2 and integers as every third element in `x`: output\[\d+, \d\] is 0.001.*, and the "
        r"reference gives -?0.0",
    ),
    "no gradient at 0": (
        "special_values",
        lambda: Mix(backward_body=faulty.gradient_without_zeros),
        r"in `w`: gradient of x\[\d+, \d\] is 0.0, and the reference gives",
    ),
    "the number of the sample": (
        "numbers",
        lambda: Mix(body=lambda x, w, factor: faulty.body(x, w, 0.5)),
        r"float32, with factor=-0.5: output\[\d+, \d\] is .*, and the reference gives .* use the argument as the reference does",
    ),
    "a number without its sign": (
        "numbers",
        lambda: Mix(body=lambda x, w, factor: faulty.body(x, w, abs(factor))),
        "float32, with factor=-0.5: output",
    ),
    "the result of a number is kept": (
        "numbers",
        lambda: Mix(body=faulty.kept_by_a_number()),
        r"with factor=1.0 and other data: output\[\d+, \d\] is",
    ),
    "no small values": (
        "data",
        lambda: Mix(body=faulty.without_small_values),
        r"float32, small data in `x`: output\[\d+, \d\] is -?0.0, and the reference gives .* Have the kernel read every input",
    ),
    "more than a thousand columns": (
        "sizes",
        lambda: Mix(body=faulty.wrong_where(lambda x: x.dim() > 0 and x.shape[-1] > 1024)),
        r"float32, the first tensor of \[2, 1031\]: output",
    ),
    "more than 65536 elements": (
        "sizes",
        lambda: Mix(body=faulty.wrong_where(lambda x: not isinstance(x, FakeTensor) and x.numel() > 65536)),
        r"float32, the first tensor of \[9\d\d\d, 7\]: output",
    ),
    "a choice by the number of elements": (
        "export",
        lambda: Mix(body=faulty.by_the_number_of_elements),
        "float32, with a dynamic number of rows: .* keep size-dependent choices for calls",
    ),
    "a wrong gradient": (
        "gradients",
        lambda: Mix(backward_body=faulty.wrong_gradient),
        r"gradient of w\[\d+, \d\] is .* Look at the backward's algebra",
    ),
    "a wrong gradient, and no reference": (
        "gradcheck",
        lambda: Mix(backward_body=faulty.wrong_gradient, reference=None),
        "Jacobian mismatch for output 0 with respect to input 1",
    ),
    "a wrong gradient at a default, which no sample has": (
        "gradients",
        lambda: Mix(backward=faulty.wrong_at_a_quarter, schema="(Tensor x, Tensor w, float factor=0.25) -> Tensor"),
        r"float32: gradient of [xw]\[\d+, \d\] is .* Look at the backward's algebra",
    ),
    "saves what it has computed": (
        "gradgradcheck",
        lambda: Mix(save=faulty.save_intermediates, backward=faulty.from_intermediates),
        "Jacobian mismatch for output . with respect to input .* save inputs rather than what was computed",
    ),
    "launches in its backward": (
        "gradgradcheck",
        lambda: Mix(backward=faulty.launched_in_backward),
        "Let the backward call operators, not kernels",
    ),
    "differentiates what it has saved": (
        "derivatives",
        lambda: Mix(gradient=faulty.DifferentiatedAgain),
        "autograd of autograd, with create_graph at the last: the derivative of order 2 by `[xw]`.* is .*, and autograd of "
        "autograd of the reference gives .*; wrong, too: .*three times.* on copies of its own",
    ),
    "detaches in a transform": (
        "transforms",
        lambda: Mix(backward=faulty.detached_in_a_transform),
        "torch.func.grad of grad: the derivative of order 2 by .* by ctx.save_for_backward, never on ctx",
    ),
    "takes the memory of every gradient for its values": (
        "gradient_strides",
        lambda: Mix(backward=faulty.launched_as_it_comes),
        r"gradients with the negative bit: ValueError: mix_backward: `grad_y` must not have the negative bit.*resolve_neg\(\)",
    ),
    "forgets a gradient wanted alone": (
        "subsets",
        lambda: Mix(backward=faulty.all_or_nothing),
        "gradients wanted by w alone: gradient of w is None, .* ctx.needs_input_grad",
    ),
    "takes every tensor for contiguous, and is told": (
        "strides",
        lambda: Mix(body=faulty.without_contiguous),
        r"transposed: ValueError: mix: `x` must be contiguous, .* Begin the body with `x = x.contiguous\(\)`",
    ),
    "takes every tensor for contiguous, and is not told": (
        "strides",
        lambda: Mix(body=faulty.strided_unseen()),
        r"transposed: output\[\d+, \d\] is .*, and a contiguous copy gives",
    ),
    "takes every tensor of the last sample for contiguous": (
        "strides",
        lambda: Mix(body=faulty.only_factors_are_made_contiguous),
        "transposed: ValueError: mix: `x` must be contiguous",
    ),
    "takes every address for aligned": (
        "misaligned",
        lambda: Mix(
            body=changed(("acc_t v = acc_t(x[i]);", "acc_t v = (unsigned long long)x % 16 ? acc_t(2) : acc_t(x[i]);"))
        ),
        "one element after a multiple of 16 bytes: output.* Look at the address before an access wider",
    ),
    "takes every gradient for contiguous": (
        "gradient_strides",
        lambda: Mix(backward_body=faulty.gradient_without_contiguous),
        r"gradients of stride 0: ValueError: mix_backward: `grad_y` must be contiguous.* `grad = grad.contiguous\(\)`",
    ),
    "a shape that nothing has": (
        "empties",
        lambda: Mix(body=faulty.rows_by_name, elementwise=False),
        r"no rows: RuntimeError: cannot reshape tensor of 0 elements.* reshape\(-1, ...\)",
    ),
    "one row is forgotten": ("sizes", lambda: Mix(body=faulty.one_row_otherwise), "float32, 1 rows: output"),
    "looks at a value": (
        "fakes",
        lambda: Mix(body=faulty.looks_at_values, reference=None),
        r"on fake tensors: RuntimeError.*: give the Operator `fake=`",
    ),
    "has another default than its schema": (
        "defaults",
        faulty.OtherDefault,
        "float32, the operator, with the default of factor: output.*, and the operator with all arguments gives",
    ),
    "goes another way when compiled": (
        "compile_static",
        lambda: Mix(backward=faulty.otherwise_when_compiled),
        "compiled by aot_eager: gradient of x.*, and eager mode gives",
    ),
    "makes a number of a size": (
        "compile_dynamic",
        lambda: Mix(body=faulty.tied_to_a_size),
        r"compiled for 5 rows, and again for 11.* int\(x.shape\[0\]\)",
    ),
    "says that it is elementwise": (
        "vmap",
        lambda: Mix(
            body=faulty.a_row_further, reference=faulty.reference_a_row_further, backward=faulty.gradient_a_row_further
        ),
        "batched, number 0: output.* Declare `elementwise=True` only where",
    ),
    "follows autocast in its body": (
        "autocast",
        lambda: Mix(body=faulty.in_autocast),
        "under autocast: TypeError: mix: `y` must have dtype float32 .* got bfloat16.* dtypes of its arguments",
    ),
    "a text that the compiler warns of": (
        "compiles",
        lambda: Mix(body=changed(("const acc_t v = ", "const int unused = 1; const acc_t v = "))),
        r"mix<float32> for sm_\d+: mix.cu\(10\): warning .*unused.* never referenced.*`python -m cupyops compile`",
    ),
    "keeps a buffer between calls": (
        "threads",
        lambda: Mix(body=faulty.one_buffer_for_all()),
        "in one of 4 threads: .* Keep no buffers",
    ),
    "a reference with a wrong tangent": (
        "jvp",
        lambda: Mix(reference=faulty_scale.reference_with_a_wrong_tangent),
        "float64, torch.func.jvp: the tangents times a gradient are .*, and reverse mode gives .* a right `jvp`",
    ),
    "a jvp without a term": (
        "jvp",
        lambda: Mix(jvp=faulty_scale.jvp_without_a_term),
        "float64, torch.func.jvp: the tangents times a gradient are .*, and reverse mode gives .* the declared `jvp`",
    ),
    "counts no FLOPs": (
        "flops",
        lambda: Mix(reference=faulty_scale.reference_with_a_product),
        r"float32, \(19, 7\), \(19, 7\): 0 FLOPs of the call, and the reference has 2 .* Declare `flops=`",
    ),
    "a backward of matrices alone": (
        "nested",
        lambda: Mix(backward=faulty_scale.of_matrices_alone),
        r"on jagged tensors: NotImplementedError: aten.t.default .* operations that PyTorch has for jagged tensors",
    ),
    "keeps its inputs on ctx": (
        "checkpointing",
        lambda: Mix(save=faulty_scale.save_on_ctx),
        "after the forward under checkpoint, `x`, `w` is still in memory.* ctx.save_for_backward",
    ),
    "says that its rows are apart": (
        "sharding",
        lambda: Mix(
            body=faulty.a_row_further,
            reference=faulty.reference_a_row_further,
            backward=faulty.gradient_a_row_further,
            elementwise=False,
            sharding="elementwise",
        ),
        r"on a mesh of 2 ranks, tensors \(19, 7\) as S\(0\), \(19, 7\) as S\(0\): output 0.* and whole tensors give",
    ),
    "repeats a choice by a value": (
        "repeats",
        lambda: Mix(body=faulty.chosen(faulty.by_a_value), repeats=True),
        r"`repeats=True` of faulty::mix\d+ is not true. float32, with .* values: step \d is a launch of mix<float32> on a grid of "
        r"\(1, 1, 1\) with x=x, w=w, y=t.*, factor=0.5, n=133, by another kernel of this name, .* have the kernel look at values",
    ),
    "repeats a choice by a value of the gradient": (
        "repeats",
        lambda: Mix(backward_body=faulty.chosen_by_a_value_of_the_gradient, repeats=True),
        r"of faulty::mix\d+_backward is not true. float32, with .*: step \d is clone\(grad_y\), .*, and in the first call empty_like",
    ),
    "repeats a choice by an address": (
        "repeats",
        lambda: Mix(body=faulty.chosen(lambda x: x.data_ptr() % 16 > 0), repeats=True),
        "is not true. float32, one element after an aligned address: step 2 is a launch of mix<float32>",
    ),
    "repeats a choice by whether a gradient is needed": (
        "repeats",
        lambda: Mix(body=faulty.chosen(lambda x: x.requires_grad), repeats=True),
        "is not true. float32, with tensors that require grad: step 2 is a launch",
    ),
    "repeats a choice by the grad mode": (
        "repeats",
        lambda: Mix(body=faulty.chosen(lambda x: torch.is_grad_enabled()), repeats=True),
        "is not true. float32, with gradients enabled: step 2 is a launch",
    ),
}
# The others show in any sample.
OF_TWO_SAMPLES = {"returns its input", "takes every tensor of the last sample for contiguous"}
# Most of these faults show elsewhere first; the check that is run alone finds them, too.
ALONE: dict[str, tuple[Callable[[], Mix], str]] = {
    "storage": (
        lambda: Mix(body=exploits.kept(lambda x, w, factor: x.data_ptr())),
        "float32, other values in the same storage: .* Keep no result by the address",
    ),
    "side_effects": (lambda: Mix(body=exploits.in_a_thread), "float32: the call leaves a thread running: writer"),
    "subsets": (faulty.BothGradientsOrNone, "output 0 alone in use: gradient of x is None"),
    "compile_dynamic": PLANTED["makes a number of a size"][1:],
    "opcheck": (
        lambda: Mix(body=faulty.itself),
        r"test_schema failed with faulty::mix\d+: the body returned `out` in the memory of `x`",
    ),
    "repeats": (
        lambda: Mix(body=faulty.looks_at_values, repeats=True),
        "float32: the body reads a value of a tensor, on which its further steps may depend",
    ),
    "export": (
        lambda: Mix(body=faulty.looks_at_values, reference=None),
        "the steps of the body depend on a value of a tensor",
    ),
    "torch_func": (lambda: Mix(backward=faulty.launched_in_backward), "Cannot access data pointer"),
    "fsdp": (
        lambda: Mix(body=faulty_scale.packed_by_version()),
        "under fully_shard: output of step 1.* without a new version",
    ),
}
# On a GPU alone.
PLANTED_ON_A_GPU: dict[str, tuple[str, Callable[[], Mix], str]] = {
    "a write past the end": (
        "guard_bands",
        lambda: Mix(
            body=changed(("    if (i < n) {\n        const acc_t v", "    if (i <= n) {\n        const acc_t v"))
        ),
        "wrote outside its output `y`: element 133 of 133",
    ),
    "the default stream": (
        "side_stream",
        lambda: Mix(body=faulty_gpu.on_the_default_stream),
        "on a side stream: .* elements of output differ.* no default stream",
    ),
    "data of an earlier call": (
        "graph_replay",
        lambda: Mix(body=faulty_gpu.prefetched()),
        "replayed with new data: .* of output differ.* runs no Python",
    ),
    "a wrong factor": ("values", lambda: Mix(body=lambda x, w, factor: faulty.body(x, w, factor * 1.001)), "off by"),
    "keeps a buffer between calls": ("threads", lambda: Mix(body=faulty.one_buffer_for_all()), "in one of 8 threads"),
}

# With samples whose sizes or values hide the fault from the other checks.
HIDDEN: dict[str, tuple[str, Body, Sample, str]] = {
    "the last of 4n + 3 elements left out": (
        "sizes",
        faulty.last_of_four_left_out,
        lambda: (torch.randn(4, 8), torch.randn(4, 8), 0.5),
        r"float32, the first tensor of \[\d+, \d+\]: output\[\d+, \d+\] is nan",
    ),
    "wrong for one column": (
        "sizes",
        faulty.wrong_where(lambda x: x.dim() > 1 and x.shape[1] == 1),
        lambda: (torch.randn(4, 8), torch.randn(4, 8), 0.5),
        r"float32, the first tensor of \[4, 1\]: output",
    ),
    "a weight that is always 1": (
        "data",
        lambda x, w, factor: faulty.body(x, torch.ones_like(w), factor),
        lambda: (torch.randn(4, 8), torch.ones(4, 8), 0.5),
        "float32, other data in `w`: output",
    ),
}
