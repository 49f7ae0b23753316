"""Writes the host code of a program, its functions, structs and variables, as one Python module."""

import builtins
import keyword
import os
import re
from collections import Counter
from typing import Any

from cupyops.launch.definitions import parameter_types

from .blocks import Line
from .cursors import python_name, takes_function
from .declarations import enumerator_of, functions_among, has_attribute, pack_of, parameters_of
from .expression import Refused
from .numbers import NUMBERS
from .structs import OPERATORS, Structs
from .survey import Survey
from .tree import (
    Problem,
    Unit,
    clang,
    end_of,
    evaluated,
    initializer,
    is_invalid,
    place_of,
    source_of,
    template_arguments,
)
from .types import (
    number,
    qualified,
)
from .words import namespaces, words
from .writer import Writer, of_kind

__all__ = ["REGISTRATION", "Host", "runtime_names"]

# The beginning of the names of functions that have the initializers of variables that register operators.
REGISTRATION = "cupyops_registered_"


# Names of generated code besides the words.
_OWN = {
    "address", "address_of", "assign", "Bits", "char_at", "copied", "distance", "divide", "Element", "flat_row", "host",
    "kernels", "left_out", "Member", "moved", "NotTranslated", "Pointer", "pointer_cast", "quotient", "remainder",
    "self", "statics", "string_at", "Struct", "taken", "throw", "TupleElement", "Variable",
}  # fmt: skip


def runtime_names() -> set[str]:
    """Returns the names that generated code uses, which no variable may have."""
    roots = {name for name, _ in namespaces() if "." not in name}
    return {*_OWN, *NUMBERS, *roots, *keyword.kwlist, *(n for n in dir(builtins) if n.islower())}


class Host(Structs):
    """The host code of a program, written as Python.

    Args:
        unit: the parsed program.

    Attributes:
        untranslated: the code without a translation: the function, the place and the reason.
        launched: the name expressions of the kernels that it launches, and its device variables, with clang's declarations.
    """

    def __init__(self, unit: Unit) -> None:
        from .generated import Struct

        self.unit = unit
        self.words = words()
        self.survey = Survey(unit)
        self.reserved = runtime_names()
        self.members = {*dir(Struct), "alignment", "destroy", "size"}
        self.names: dict[str, str] = {}
        self.taken: set[str] = set()
        self.parts: list[list[Line]] = []
        self.signed: set[str] = set()
        self.untranslated: list[tuple[str, str, str]] = []
        self.launched: dict[str, Any] = {}
        self.structs: dict[str, str] = {}
        self.constructors: dict[str, list[str]] = {}
        self.variables: dict[int, tuple[str, bool]] = {}
        self.queue: list[tuple[Any, str]] = []
        self.current = ""
        self.written: set[str] = set()
        self.later: list[tuple[Any, str]] = []
        self._kernels: dict[int, bool] = {}
        self._instances: dict[int, int] = {}
        self._overloaded: set[str] | None = None  # the names that several kernels have
        self._destructors: dict[str, Any] = {}
        self.binds_classes = any("class_<" in text for text in unit.files.values())
        self.has_mutable = any(re.search(r"\bmutable\b", text) for text in unit.files.values())
        self._open: list[str] = []
        self.invalid = self._invalid() if unit.problems else {}

    # Names

    def unique(self, name: str) -> str:
        name = re.sub(r"\W", "_", name) or "unnamed"
        if name[0].isdigit():
            name = f"_{name}"
        found, n = (f"{name}_" if name in self.reserved else name), 1
        while found in self.taken:
            found, n = f"{name}_{n}", n + 1
        self.taken.add(found)
        return found

    def word_name(self, name: str) -> str:
        return ".".join(python_name(part) for part in name.split("::"))

    def shown_file(self, file: str) -> str:
        return os.path.basename(file) or "the program"

    def refused(self, place: tuple[str, int], why: str) -> None:
        self.untranslated.append((self.current, f"{self.shown_file(place[0])}:{place[1]}", why))

    def problems_in(self, cursor: Any) -> list[Problem]:
        """Returns clang's errors inside a statement, in their order."""
        if not self.unit.problems:
            return []
        file, _, begin = place_of(self.unit, cursor)
        end = end_of(self.unit, cursor)
        return sorted(
            (p for p in self.unit.problems if p.file == file and begin <= p.offset <= end), key=lambda p: p.offset
        )

    def _invalid(self) -> dict[str, str]:
        """Returns the names that clang's errors leave without a meaning: of the code around them, and the macros that use them.

        clang takes an unknown type for ``int``, and leaves out statements that use a declaration with an error.
        """
        found: dict[str, str] = {}
        declarations = list(self.unit.declarations())
        for declared in declarations:
            kind = declared.kind.name
            members = [
                c for c in declared.get_children() if c.kind.name in ("PARM_DECL", "FIELD_DECL", "CXX_BASE_SPECIFIER")
            ]
            if kind in _OF_TYPES:
                declarations += [
                    c for c in declared.get_children() if c.kind.is_declaration() and c.kind.name != "FIELD_DECL"
                ]
            if any(map(is_invalid, (declared, *members))) and declared.spelling:
                if kind in ("CXX_METHOD", "CONSTRUCTOR", "CONVERSION_FUNCTION", "DESTRUCTOR"):
                    found[declared.semantic_parent.spelling] = "a method's declaration has an error"
                    continue
                own = [p.message for c in (declared, *members) for p in self.problems_in(c)]
                if not any("redefinition of default argument" in message for message in own):
                    found[declared.spelling] = own[0] if own else "its declaration has an error"
        macros = [m.groups() for text in self.unit.files.values() for m in _MACRO.finditer(text)]
        for _ in range(3):  # macros of macros
            for name, body in macros:
                why = next((found[w] for w in re.findall(r"\w+", body) if w in found), None)
                if why is not None:
                    found.setdefault(name, why)
        return found

    def is_valid(self, cursor: Any) -> None:
        """Checks that the text of a declaration has no names that clang's errors leave without a meaning.

        Raises:
            Refused: it has one.
        """
        for word in re.findall(r"[A-Za-z_]\w*", source_of(self.unit, cursor)) if self.invalid else ():
            if word in self.invalid:
                raise Refused(f"`{word}`, as clang refuses: {self.invalid[word]}")

    def in_block(self, cursor: Any, problem: Problem) -> bool:
        """Returns whether an error is in a block inside a statement, which raises it by itself."""
        if cursor.kind.name == "COMPOUND_STMT":
            return True
        for child in cursor.get_children():
            is_statement = child.kind.is_statement() and child.kind.name != "NULL_STMT"
            if is_statement and place_of(self.unit, child)[2] <= problem.offset <= end_of(self.unit, child):
                return True
        return False

    # Functions

    def function(self, declared: Any) -> str:
        """Returns the Python name of a function of the user, and writes it later."""
        definition = self.unit.definition(declared) or declared
        key = definition.get_usr() or str(definition.hash)
        if "(lambda" in definition.type.spelling:  # the lambdas of a function have one name in it
            key += f" {definition.hash}"
        if self.unit.parts and declared.linkage.name != "EXTERNAL":  # each source has its own, also by one header
            key += f" {[part.cursor.translation_unit for part in self.unit.parts].index(declared.translation_unit)}"
        if key not in self.names:
            self.names[key] = self.unique(self._base_name(declared))
            self.queue.append((definition, self.names[key]))
        return self.names[key]

    def _base_name(self, declared: Any) -> str:
        name = declared.spelling
        if declared.kind.name == "VAR_DECL":
            return f"{REGISTRATION}{name}"
        if name.startswith("operator"):
            return f"operator_{OPERATORS.get(name[8:], re.sub(r'[^a-z]', '_', name[8:]))}"
        arguments = []
        for argument in template_arguments(declared):
            if isinstance(argument, int):
                arguments.append(str(argument).replace("-", "minus"))
            elif argument is not None:
                arguments.append(re.sub(r"\W+", "_", argument.spelling.split("::")[-1]))
        return "_".join([name, *arguments])

    def instance_key(self, declared: Any) -> int:
        """Returns the number of an instance of a generic lambda in the program."""
        return self._instances.setdefault(declared.hash, len(self._instances))

    def takes_reference(self, declared: Any, index: int, type: Any) -> bool:
        return self.survey.takes_reference(declared, index, type)

    def write_queued(self) -> None:
        """Writes the functions that have been used, and those that they use."""
        while self.queue or self.later:
            if not self.queue:
                self._write_method(*self.later.pop(0))
                continue
            definition, name = self.queue.pop(0)
            self.current = name
            writer = Writer(self, definition)
            if definition.kind.name == "VAR_DECL":
                writer.whole_registration(definition, name)
            else:
                writer.whole_function(definition, name)
            self.parts.append(writer.lines)

    def _write_method(self, definition: Any, name: str) -> None:
        """Writes a method outside of its class."""
        self.current = name
        writer = Writer(self, definition)
        function = self.unique(name.replace(".", "_"))
        if definition.kind.name == "CONSTRUCTOR":
            writer.whole_constructor(definition, function, name.partition(".")[0])
        else:
            writer.whole_function(definition, function, method=True)
        writer.emit(f"{name} = {function}")
        self.parts.append(writer.lines)

    # Kernels

    def is_kernel(self, declared: Any) -> bool:
        key = declared.hash
        if key not in self._kernels:
            self._kernels[key] = has_attribute(declared, "CUDAGLOBAL_ATTR")
        return self._kernels[key]

    def has_kernels(self) -> bool:
        return any(self.is_kernel(d) for d in self.unit.declarations() if d.kind.name.startswith("FUNCTION"))

    def kernel(self, declared: Any, cursor: Any) -> str:
        """Returns the name expression of a kernel, ``"scale<float, 4>"``."""
        name = qualified(declared)
        given = template_arguments(declared)
        if given:
            arguments = []
            # libclang reports a template among the arguments by the name of the instance alone.
            templates = re.findall(r"@ST>[^@]*@(\w+)", declared.get_usr())
            template = clang().conf.lib.clang_getSpecializedCursorTemplate(declared)
            parameters = [c for c in template.get_children() if c.kind.name.startswith("TEMPLATE_")]
            functions = functions_among(cursor, template)
            for i, argument in enumerate(given):
                if isinstance(argument, int):
                    arguments.append(
                        enumerator_of(parameters[i].type, argument) if i < len(parameters) else str(argument)
                    )
                elif argument is not None:
                    spelling = argument.get_canonical().spelling
                    if "(lambda" in spelling:
                        raise Refused(f"the lambda that `{name}` gets as a template argument")
                    arguments.append(spelling)
                elif i < len(parameters) and takes_function(parameters[i]) and functions:
                    arguments.append(functions.pop(0))
                elif (pack := pack_of(declared)) is not None and argument is given[-1]:
                    arguments += pack
                elif len(templates) == given.count(None):
                    arguments.append(templates.pop(0))
                else:  # a pack, or a template: as the user writes them
                    arguments = re.findall(r"<(.*)>$", " ".join(source_of(self.unit, cursor).split()))[:1]
                    if not arguments:
                        raise Refused(f"the template arguments of `{name}`")
                    break
            name = f"{name}<{', '.join(arguments)}>"
        name += self._overload(declared)
        first, home = self.home(self.launched.setdefault(name, declared)), self.home(declared)
        if self.unit.parts and home.translation_unit != first.translation_unit:
            same = home.location.file.name == first.location.file.name and home.linkage.name != "INTERNAL"
            if not same:
                raise Refused(f"the kernel `{name}`, which two sources have")
        return name

    def kernel_in_list(self, cursor: Any) -> str:
        """Returns the name expression of an instance ``scale<4>`` in a braced list, where libclang knows the template alone; ``""``
        if it is none of a kernel."""
        named = next((c for c in cursor.walk_preorder() if c.kind.name == "OVERLOADED_DECL_REF"), None)
        lib = clang().conf.lib
        if named is None or lib.clang_getNumOverloadedDecls(named) != 1:
            return ""
        template = lib.clang_getOverloadedDecl(named, 0)
        arguments = re.search(r"<.*>$", " ".join(source_of(self.unit, cursor).split()))
        if not self.is_kernel(template) or arguments is None:
            return ""
        name = f"{qualified(template)}{arguments[0]}"
        self.launched.setdefault(name, template)
        return name

    def device_variable(self, declared: Any) -> str:
        """Returns the symbol of a ``__device__`` or ``__constant__`` variable. Each source has its own one."""
        name = qualified(declared)
        first, home = self.home(self.launched.setdefault(name, declared)), self.home(declared)
        if self.unit.parts and home.translation_unit != first.translation_unit:
            raise Refused(f"the variable `{name}`, which two sources have")
        return f"kernels.variable({name!r})"

    def home(self, declared: Any) -> Any:
        """Returns the definition of a kernel or a variable, of a template's instance the template's."""
        own = clang().conf.lib.clang_getSpecializedCursorTemplate(declared) or declared
        return self.unit.definition(own) or own

    def _overload(self, declared: Any) -> str:
        """Returns the types of a kernel's parameters as the text spells them, ``"(float*, int)"``, if other kernels have its
        name, else ``""``."""
        if self._overloaded is None:
            kernels = [d for d in self.unit.declarations() if d.kind.name.startswith("FUNCTION") and self.is_kernel(d)]
            listed = {(qualified(d), *(p.type.get_canonical().spelling for p in parameters_of(d))) for d in kernels}
            self._overloaded = {name for name, n in Counter(name for name, *_ in listed).items() if n > 1}
        if qualified(declared) not in self._overloaded:
            return ""
        return f"({', '.join(kind for p in parameters_of(self.home(declared)) for kind in parameter_types(source_of(self.unit, p)))})"

    def is_device_variable(self, declared: Any) -> bool:
        if declared is None or declared.kind.name != "VAR_DECL" or not self.unit.mine(declared):
            return False
        return any(c.kind.name in _DEVICE_VARIABLES for c in declared.get_children())

    # Variables at file scope

    def global_variable(self, declared: Any) -> tuple[str, bool]:
        """Returns the Python name of a variable at file scope or of a class, and whether it is a Variable."""
        found = self.unit.definition(declared) or declared
        key = found.hash
        if key not in self.variables:
            constant = found.type.is_const_qualified()
            name = self.unique(found.spelling)
            self.variables[key] = (name, not constant)
            writer = Writer(self, found)
            file, line, _ = place_of(self.unit, found)
            writer.here = (file, line)
            start = initializer(found)
            outer, self.current = self.current, name
            try:
                self.is_valid(found)
                if start is None:
                    value = writer.default(found.type).text
                else:
                    constant_value = evaluated(start) if number(found.type) is not None else None
                    if constant_value is not None and constant:
                        value = repr(of_kind(constant_value, number(found.type)))
                    else:
                        value = writer.initial(start, found.type)
                writer.emit(f"{name} = {value if constant else f'Variable({value})'}")
            except Refused as refused:
                self.refused(writer.here, str(refused))
                del self.variables[key]
                raise
            finally:
                self.current = outer
            self.parts.append(writer.lines)
        return self.variables[key]

    def static_key(self, cursor: Any) -> str:
        return f"{self.current}.{cursor.spelling}.{cursor.hash & 0xFFFFFFFF}"

    # The module

    def text(self, title: str) -> tuple[str, list[tuple[str, int]]]:
        """Returns the Python text, and for each of its lines the file and the line of the C++."""
        lines: list[str] = [f'"""{title}"""', ""]
        places: list[tuple[str, int]] = [("", 0)] * len(lines)
        for part in self.parts:
            kept = [x for x in part if not x.text.startswith("@host(") or x.text.split('"')[1] in self.signed]
            multiple = len(kept) > 1
            if multiple:
                lines += ["", ""]
                places += [("", 0)] * 2
            for line in kept:
                lines.append(f"{'    ' * line.indent}{line.text}".rstrip())
                places.append(line.place)
        return "\n".join(lines) + "\n", places


_MACRO = re.compile(r"(?m)^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)((?:\\\r?\n|[^\n])*)")


_OF_TYPES = {"STRUCT_DECL", "CLASS_DECL", "CLASS_TEMPLATE", "UNION_DECL"}


_DEVICE_VARIABLES = {"CUDADEVICE_ATTR", "CUDACONSTANT_ATTR", "CUDASHARED_ATTR"}
