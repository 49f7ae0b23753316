"""Row programs with operands per sample: rows (samples, M, N), beside which an operand has one row (N) for each sample.

The kernel of a sample is that of all rows, whose pointers point to the arrays of the sample. The blocks of a sample
have its index in y and z. A sum over rows is a sum over the rows of a sample.
"""

import re
from dataclasses import dataclass

from cupyops.launch.geometry import Rows

from .names import in_source
from .rows import RowProgram

__all__ = ["RowsOfSamples", "by_samples"]

_MOST_Y = 65535  # blocks of a grid in y
_PARAMETER = re.compile(r"(?m)^(    .*?\b(\w+),\s*// )\((.*?)\)( or null)?$")


@dataclass(frozen=True)
class RowsOfSamples(Rows):
    """Launches the blocks of :class:`Rows` for each sample.

    Args:
        samples: the size parameter that counts samples.
    """

    samples: str = "samples__"

    @property
    def sizes(self) -> tuple[str, ...]:
        return (*super().sizes, self.samples)

    @property
    def blocks(self) -> tuple[str, str, str]:
        return (super().blocks[0], f"min({self.samples}, {_MOST_Y})", f"-(-{self.samples} // {_MOST_Y})")


def by_samples(text: str, program: RowProgram) -> str:
    """Returns the CUDA source of a row program, changed to compute each sample.

    Args:
        text: the source for rows (M, N) and operands (N).
        program: the program, whose ``samples`` are the operands with a row for each sample.
    """
    head, entry, kernel = text.partition('extern "C"')
    parameters, brace, body = kernel.partition(") {\n")
    whole = {in_source(x) for x in program.columns if x not in program.samples}
    moves = []

    def of_sample(found: re.Match[str]) -> str:
        declared, name, shape, null = found.groups()
        if name in whole:
            return found[0]
        place = f"sample__ * {shape.replace(', ', ' * ')}"
        moves.append(f"    {name} += {f'{name} ? {place} : 0' if null else place};")
        return f"{declared}(samples__, {shape}){null or ''}"

    parameters = _PARAMETER.sub(of_sample, parameters)
    lines = [
        f"    const long long sample__ = blockIdx.y + {_MOST_Y}ll * blockIdx.z;",
        "    if (sample__ >= samples__) return;",
        *moves,
    ]
    return f"{head}{entry}{parameters}, long long samples__{brace}" + "\n".join(lines) + f"\n{body}"
