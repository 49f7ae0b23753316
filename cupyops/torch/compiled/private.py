"""Asks PyTorch for the private parts that compiled graphs use, and warns once of each use that lacks a part.

PyTorch's compiler has no public interface for most of :mod:`cupyops.torch.compiled`. Another version of PyTorch may
have renamed a part, or changed its parameters. Each use therefore asks :func:`has` first, and is left out if a part is
missing: graphs then compute the same, and a warning says what they lack.
"""

import functools
import importlib
import inspect
import warnings
from typing import Any

import torch

__all__ = ["CHOSEN", "DIRECT", "INLINED", "KEYS", "RECOMPUTED", "REWRITTEN", "has"]

CHOSEN = "the choice between kernels and the operations of references"
DIRECT = "direct calls of operators, repeated launches and results in place"
INLINED = "the inlining of functions where a model cannot be compiled as a whole"
KEYS = "graphs on disk for later processes"
RECOMPUTED = "the recomputation and the sharing of saved results"
REWRITTEN = "the rewriting of graphs before Inductor"

# For each use: the module, the part, and the parameters of a function that this package passes, or the attributes that
# the constructor of a class sets.
_NEEDED: dict[str, list[tuple[str, str, str]]] = {
    CHOSEN: [
        ("torch._inductor.compile_fx", "_recursive_post_grad_passes", "gm"),
        ("torch._inductor.decomposition", "select_decomp_table", ""),
        ("torch._inductor.fx_passes.joint_graph", "pass_patterns", ""),
        ("torch._inductor.graph", "GraphLowering.__init__", "gm example_inputs is_inference"),
        ("torch._inductor.graph", "GraphLowering._update_scheduler", ""),
        ("torch._inductor.graph", "GraphLowering.compile_to_module", ""),
        ("torch._inductor.graph", "GraphLowering.count_bytes", ""),
        ("torch._inductor.graph", "GraphLowering.init_wrapper_code", ""),
        ("torch._inductor.lowering", "fallbacks", ""),
        ("torch._inductor.lowering", "lowerings", ""),
        ("torch._inductor.runtime.benchmarking", "benchmarker.benchmark_gpu", ""),
        ("torch._inductor.virtualized", "V.set_extern_kernel_nodes", ""),
        ("torch._inductor.virtualized", "V.set_fake_mode", ""),
        ("torch._inductor.virtualized", "V.set_graph_handler", ""),
        ("torch.utils.flop_counter", "flop_registry", ""),
    ],
    DIRECT: [
        ("torch._inductor.lowering", "make_fallback", "layout_constraint warn override_decomp"),
        ("torch._inductor.lowering", "register_lowering", "type_promotion_kind"),
        ("torch._inductor.lowering", "tag_to_layout_constraint", ""),
        ("torch._inductor.ir", "FallbackKernel.create", "kernel"),
        ("torch._inductor.ir", "FallbackKernel.codegen", "wrapper"),
        ("torch._inductor.ir", "FallbackKernel.get_kernel_name", ""),
        ("torch._inductor.ir", "Buffer.get_inputs_that_alias_output", ""),
        ("torch._inductor.ir", "Buffer.get_mutation_names", ""),
        ("torch._inductor.ir", "Buffer.get_output_spec", ""),
        ("torch._inductor.ir", "MutationLayoutSHOULDREMOVE", ""),
        ("torch._inductor.ir", "NonOwningLayout", ""),
        ("torch._inductor.ir", "TensorBox.create", ""),
        ("torch._inductor.ir", "is_storage_and_layout", ""),
        (
            "torch._inductor.graph",
            "GraphLowering",
            "constants cpp_wrapper graph_inputs name_to_buffer never_reuse_buffers",
        ),
        ("torch._inductor.graph", "GraphLowering", "sizevars unaligned_buffers"),
        ("torch._inductor.codegen.wrapper", "PythonWrapperCodegen", "add_import_once header"),
        ("torch._inductor.utils", "tensor_is_aligned", ""),
        ("torch._library.utils", "get_layout_constraint_tag", "with_default"),
    ],
    INLINED: [
        ("torch._C._dynamo.eval_frame", "_FrameAction.SKIP", ""),
        ("torch._C._dynamo.eval_frame", "_FrameExecStrategy", ""),
        ("torch._C._dynamo.eval_frame", "set_code_exec_strategy", ""),
    ],
    KEYS: [("torch._inductor.codecache", "FxGraphHashDetails.__init__", "gm")],
    RECOMPUTED: [
        ("torch._functorch.partitioners", "_extract_fwd_bwd_modules", "joint_module saved_values"),
        ("torch._functorch.partitioners", "classify_nodes", "joint_module"),
        ("torch._functorch.partitioners", "get_default_op_list", ""),
        ("torch._functorch.partitioners", "solve_min_cut", "joint_graph"),
    ],
    REWRITTEN: [("torch._inductor.compile_fx", "_recursive_pre_grad_passes", "gm")],
}


@functools.cache
def has(use: str) -> bool:
    """Returns whether this PyTorch has all parts of a use. If not, the first call warns which features compiled graphs
    lack.

    Imports the modules of the parts.
    """
    missing = [f"{module}.{part}" for module, part, words in _NEEDED[use] if not _is_there(module, part, words.split())]
    if missing:
        warnings.warn(
            f"PyTorch {torch.__version__} lacks {missing[0]}, as cupyops calls it, so that compiled graphs go without "
            f"{use}. Their results are the same",
            stacklevel=2,
        )
    return not missing


def _is_there(module: str, part: str, words: list[str]) -> bool:
    try:
        found: Any = importlib.import_module(module)
        for name in part.split("."):
            found = getattr(found, name)
        if inspect.isclass(found) and words:
            return set(words) <= _set_by(found)
        return not words or set(words) <= set(inspect.signature(found).parameters)
    except (ImportError, AttributeError):
        return False


def _set_by(found: type) -> set[str]:
    """Returns the names in the code of the constructors of a class."""
    codes: list[Any] = [getattr(vars(base).get("__init__"), "__code__", None) for base in found.__mro__]
    return {name for code in codes if code is not None for name in code.co_names}
