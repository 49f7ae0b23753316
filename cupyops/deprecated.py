"""Resolves names of the previous release, with a DeprecationWarning that gives the new name.

Modules moved into folders: ``import cupyops.geometry`` finds :mod:`cupyops.launch.geometry`, with a warning. A former
module with the name of a public function (``cupyops.gelu``) is not resolved: ``cupyops.gelu`` is the function.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["MOVED", "MovedModules", "moved_names", "renamed", "warn"]

# Former module name to present module name, both relative to cupyops.
MOVED = {
    "broadcasting": "tiling.broadcasting",
    "bundle": "compile.bundle",
    "bundle_command": "commands.bundle",
    "cache": "compile.cache",
    "call": "launch.arguments",
    "checks": "ops.checks",
    "columns": "tiling.columns",
    "compile_command": "commands.compile",
    "compiler": "compile.compiler",
    "cuda_text": "compile.cuda_text",
    "debug": "launch.debug",
    "declaration": "launch.declaration",
    "doctor": "commands.doctor",
    "driver": "launch.driver",
    "elementwise_text": "programs.elementwise",
    "expressions": "programs.expressions",
    "fast_lane": "launch.generated",
    "geometry": "launch.geometry",
    "hopper_linear": "ops.linear.sm90",
    "kernel": "launch.kernel",
    "launches": "launch.recording",
    "layer_norm_plan": "ops.layer_norm.config",
    "linear_plan": "ops.linear.config",
    "lltm": "ops.lltm.cell",
    "lltm_checks": "ops.lltm.checks",
    "lltm_plan": "ops.lltm.config",
    "lltm_steps": "ops.lltm.steps",
    "new_command": "commands.new",
    "origin": "launch.locate",
    "plans": "tiling.config",
    "products": "ops.linear.products",
    "program_words": "programs.words",
    "remembered": "launch.memo",
    "row_checks": "ops.layer_norm.checks",
    "row_text": "programs.rows",
    "rows": "tiling.rows",
    "shapes": "ops.shapes",
    "signature": "launch.signature",
    "source": "compile.source",
    "teams": "tiling.teams",
    "tensor_map": "launch.tensor_map",
    "tiles": "tiling.tiles",
    "toolchain": "compile.toolchain",
    "torch.arrays": "torch.core.tensors",
    "torch.bench_report": "torch.bench.report",
    "torch.check_compare": "torch.check.compare",
    "torch.check_inputs": "torch.check.inputs",
    "torch.check_layouts": "torch.check.layouts",
    "torch.check_machinery": "torch.check.machinery",
    "torch.check_registry": "torch.check.registry",
    "torch.check_roads": "torch.check.roads",
    "torch.check_running": "torch.check.running",
    "torch.check_subject": "torch.check.subject",
    "torch.check_values": "torch.check.values",
    "torch.gelu": "torch.ops.gelu",
    "torch.gradients": "torch.core.gradients",
    "torch.implementations": "torch.core.implementations",
    "torch.layer_norm": "torch.ops.layer_norm",
    "torch.linear": "torch.ops.linear",
    "torch.lltm": "torch.ops.lltm",
    "torch.onnx_check": "torch.onnx.check",
    "torch.onnx_functions": "torch.onnx.functions",
    "torch.program_reference": "torch.programs.reference",
    "torch.results": "torch.core.results",
    "torch.roofline": "torch.bench.roofline",
    "torch.sequences": "torch.ops.sequences",
    "torch.timing": "torch.bench.timing",
    "torch.vmap_rules": "torch.core.vmap",
    "torch.way_in": "torch.core.dispatch",
    "trial": "tuning.measure",
    "tuned": "tuning.tuned",
    "variant": "launch.variant",
}


def warn(former: str, now: str) -> None:
    """Warns that a name has changed, at the line that uses the former name."""
    # Level 3 is that line: 1 is this function, 2 is its caller, and warnings skips importlib's frames.
    warnings.warn(f"{former} is {now} now; the next release drops the former name", DeprecationWarning, stacklevel=3)


class _Moved(Loader):
    def __init__(self, now: str) -> None:
        self._now = now

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._now)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Executes nothing: the import under the present name has executed the module. importlib has replaced the
        module's spec."""
        module.__spec__ = self._spec


class MovedModules(MetaPathFinder):
    """Finds modules by their former names. It is the last finder in ``sys.meta_path``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        now = MOVED.get(fullname.removeprefix("cupyops.")) if fullname.startswith("cupyops.") else None
        if now is None:
            return None
        warn(fullname, f"cupyops.{now}")
        return ModuleSpec(fullname, _Moved(f"cupyops.{now}"))


def moved_names(package: str, module: str) -> Callable[[str], Any]:
    """Returns a ``__getattr__`` for a package that was a module in the previous release.

    The function takes the names of the `__all__` of `module`, with a warning. Other names are
    absent: pickle searches all modules for an object without `__module__`, and would cause warnings for mere imports.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        found = None if name.startswith("__") else import_module(module)
        if found is None or name not in found.__all__:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(found, name)
        warn(f"{package}.{name}", f"{module}.{name}")
        return found

    return __getattr__


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a ``__getattr__`` for a module that renamed some of its names.

    `names` maps former to present names: ``{"Plan": "Config"}``.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(f"{module}.{name}", f"{module}.{names[name]}")
        return getattr(import_module(module), names[name])

    return __getattr__
