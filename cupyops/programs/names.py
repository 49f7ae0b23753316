"""The names of a program in the generated CUDA source.

No name of a program reaches the compiler as it is written. It could be a macro (``EOF``), an operator (``xor``), a function
or a type (``time``, ``clock_t``) of the headers, or a name of the source around it. Messages have the names of the program.
"""

import re
import weakref
from dataclasses import replace

from cupyops.launch.kernel import Kernel
from cupyops.launch.signature import Signature
from cupyops.sharing import computed_once

__all__ = ["ProgramKernel", "in_source", "type_in_source"]


# Of the kernels that are alive, by what decides it.
_signatures: "weakref.WeakValueDictionary[tuple[object, ...], Signature]" = weakref.WeakValueDictionary()
_NUMBER = re.compile(r"^(#define \w+) -?\d+$", re.MULTILINE)


def in_source(name: str) -> str:
    """Returns the name of a variable in the source. The source's own names do not end like it.

    >>> in_source("x"), in_source("x_")
    ('x_', 'x__u')
    """
    return f"{name}_u" if name.endswith("_") else f"{name}_"


def type_in_source(name: str) -> str:
    """Returns the name of the type of an array's elements in the source."""
    return f"{name}__t"


def _in_program(name: str) -> str:
    if name.endswith("__u"):
        return name.removesuffix("_u")
    return name if name.endswith("__") else name.removesuffix("_")


class ProgramKernel(Kernel):
    """A kernel that is generated from a program. Its messages have the names of the program."""

    by_an_author = False

    @computed_once
    def signature(self) -> Signature:
        """The parameters, parsed from the declaration in the text, with the names of the program."""
        # The numbers of the config decide no parameter. A program has a kernel for each config, and up to hundreds of them.
        key = (self.source.text, self.name, self._sizes, self.dtypes)
        if (known := _signatures.get(key)) is not None:
            return known
        found = Kernel.signature.function(self)
        parameters = tuple(replace(p, name=_in_program(p.name)) for p in found.parameters)
        return _signatures.setdefault(key, replace(found, parameters=parameters))

    def syntax(self, text: str) -> str:
        """Returns a final text without the numbers of the config. They choose among loops around the same expressions, so that a
        compiler that accepts one choice accepts all."""
        prelude, line, source = text.partition("#line")
        return _NUMBER.sub(r"\1", prelude) + line + source
