"""The records of the host half: functions, their parameters and their launches."""

from dataclasses import dataclass, field

__all__ = ["Argument", "HostFunction", "Launch"]


@dataclass
class Argument:
    """A parameter of a host function.

    Attributes:
        name: the name.
        kind: the type in an operator's schema, ``Tensor``, ``Tensor?``, ``int``, ``float`` or ``bool``; ``""`` if there is none.
        const: the declaration has ``const``.
        default: the default argument in Python, or None.
    """

    name: str
    kind: str
    const: bool
    default: str | None = None


@dataclass
class Launch:
    """A launch of the host half.

    Attributes:
        kernel: the kernel's name, without namespaces.
        template: the template arguments in C++.
        grid, block: the components in x, y, z, in Python; empty if they have no translation.
        shared: the bytes of dynamic shared memory in C++, or ``""``.
        arguments: the arguments in Python, or in C++ behind ``#`` for one that has no translation.
        text: the launch in C++, in one line.
        dtypes: the dtypes of the dispatch around the launch; empty without one.
        place: the name that stands for the launch in the lines of its function.
    """

    kernel: str
    template: tuple[str, ...]
    grid: tuple[str, ...]
    block: tuple[str, ...]
    shared: str
    arguments: tuple[str, ...]
    text: str
    dtypes: tuple[str, ...] = ()
    place: str = ""

    @property
    def shown(self) -> str:
        """The launch without its arguments, ``scale<scalar_t><<<blocks, 256>>>``."""
        return f"{self.text.partition('>>>')[0]}>>>"


@dataclass
class HostFunction:
    """A function of the host half.

    Attributes:
        name: the name.
        parameters: the parameters.
        returns: the type of the result in C++.
        lines: the body in Python. The line of a launch is the launch's ``place``.
        launches: the launches, in order.
        left: the number of statements without a translation.
        results: the expressions of each return statement.
        locals: the values of the variables, in Python.
        words: the identifiers in the function.
    """

    name: str
    parameters: list[Argument]
    returns: str
    lines: list[str] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    left: int = 0
    results: list[tuple[str, ...]] = field(default_factory=list)
    locals: dict[str, tuple[str, ...]] = field(default_factory=dict)
    words: frozenset[str] = frozenset()
