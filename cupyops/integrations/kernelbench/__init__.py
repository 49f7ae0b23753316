"""The backend ``cupyops`` of KernelBench's prompts: :func:`entry`, and an example of a program.

::

    python -m cupyops.integrations.kernelbench >> src/kernelbench/prompts/prompts.toml

:func:`cupyops.testing.score` judges a program. :func:`.evaluation.simulated` lets KernelBench's own function judge programs
on a CPU. ``python -m cupyops run scripts/run_and_check.py ...`` runs KernelBench's own evaluation of programs that call
PyTorch's ``load_inline``, without a compiler.
"""

from pathlib import Path

__all__ = ["EXAMPLE", "entry"]

EXAMPLE = Path(__file__).parent / "example.py"
"""KernelBench's example of an addition, on a kernel of cupyops. Its comments are what a prompt has to say."""


def entry() -> str:
    """Returns the lines that ``prompts.toml`` needs for the backend."""
    return f"""
[backends.cupyops]
backend_display = "CUDA C++ kernels, compiled at run time by cupyops"
one_shot_new_arch = {str(EXAMPLE)!r}
"""
