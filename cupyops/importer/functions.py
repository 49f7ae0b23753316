"""Writes the functions, structs and variables of a program's host half as one Python module."""

import builtins
import keyword
import os
import re
from typing import Any

from .expressions import Expression, Refused, _expressions, _python_name
from .numbers import NUMBERS
from .statements import Line, Statements
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
    gives_place,
    holds_values,
    is_guard,
    is_mutable,
    is_reference,
    is_value,
    number,
    plain,
    qualified,
    spelled,
)
from .words import namespaces, words

__all__ = ["Host", "is_host_function", "runtime_names"]

# Names of generated code besides the words.
_OWN = {
    "address", "address_of", "assign", "Bits", "char_at", "copied", "distance", "divide", "Element", "flat_row", "host",
    "kernels", "left_out", "Member", "moved", "NotTranslated", "Pointer", "pointer_cast", "quotient", "remainder",
    "self", "statics", "string_at", "Struct", "throw", "TupleElement", "Variable",
}  # fmt: skip


def runtime_names() -> set[str]:
    """Returns the names that generated code uses, which no variable may have."""
    roots = {name for name, _ in namespaces() if "." not in name}
    return {*_OWN, *NUMBERS, *roots, *keyword.kwlist, *(n for n in dir(builtins) if n.islower())}


def _captures(source: str) -> tuple[set[str], bool]:
    """Returns the names that a lambda captures by value, and whether it captures all others that it uses so."""
    depth, items, item = 0, [], ""
    for character in source[1:]:
        depth += (character in "([{<") - (character in ")]}>")
        if depth < 0:
            break
        if character == "," and depth == 0:
            items.append(item.strip())
            item = ""
        else:
            item += character
    items.append(item.strip())
    return {i for i in items if i.isidentifier()}, "=" in items


class Host:
    """The host half of a program, written as Python.

    Args:
        unit: the parsed program.

    Attributes:
        untranslated: what has no translation: the function, the place and the reason.
        launched: the name expressions of the kernels that it launches, with clang's declarations.
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
        return ".".join(_python_name(part) for part in name.split("::"))

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
        """Returns the names that clang's errors leave without a meaning: of what they stand in, and the macros that use them.

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
        """Returns whether an error stands in a block inside a statement, which raises it by itself."""
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
        key = declared.get_usr() or str(declared.hash)
        if key not in self.names:
            definition = self.unit.definition(declared) or declared
            self.names[key] = self.unique(self._base_name(declared))
            self.queue.append((definition, self.names[key]))
        return self.names[key]

    def _base_name(self, declared: Any) -> str:
        name = declared.spelling
        if name.startswith("operator"):
            return f"operator_{_OPERATORS.get(name[8:], re.sub(r'[^a-z]', '_', name[8:]))}"
        arguments = []
        for argument in template_arguments(declared):
            if isinstance(argument, int):
                arguments.append(str(argument).replace("-", "minus"))
            elif argument is not None:
                arguments.append(re.sub(r"\W+", "_", argument.spelling.split("::")[-1]))
        return "_".join([name, *arguments])

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
            self._kernels[key] = _has_attribute(declared, "CUDAGLOBAL_ATTR")
        return self._kernels[key]

    def has_kernels(self) -> bool:
        return any(self.is_kernel(d) for d in self.unit.declarations() if d.kind.name.startswith("FUNCTION"))

    def kernel(self, declared: Any, cursor: Any) -> str:
        """Returns the name expression of a kernel, ``"scale<float, 4>"``."""
        name = qualified(declared)
        given = template_arguments(declared)
        if given:
            arguments = []
            # libclang tells a template among the arguments by the name of the instance alone.
            templates = re.findall(r"@ST>[^@]*@(\w+)", declared.get_usr())
            template = clang().conf.lib.clang_getSpecializedCursorTemplate(declared)
            parameters = [c for c in template.get_children() if c.kind.name.startswith("TEMPLATE_")]
            for i, argument in enumerate(given):
                if isinstance(argument, int):
                    arguments.append(
                        _enumerator_of(parameters[i].type, argument) if i < len(parameters) else str(argument)
                    )
                elif argument is not None:
                    spelling = argument.get_canonical().spelling
                    if "(lambda" in spelling:
                        raise Refused(f"the lambda that `{name}` gets as a template argument")
                    arguments.append(spelling)
                elif (pack := _pack(declared)) is not None and argument is given[-1]:
                    arguments += pack
                elif len(templates) == given.count(None):
                    arguments.append(templates.pop(0))
                else:  # a pack, or a template: as the user writes them
                    arguments = re.findall(r"<(.*)>$", " ".join(source_of(self.unit, cursor).split()))[:1]
                    if not arguments:
                        raise Refused(f"the template arguments of `{name}`")
                    break
            name = f"{name}<{', '.join(arguments)}>"
        self.launched.setdefault(name, declared)
        return name

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
                        value = repr(_constant(constant_value, number(found.type)))
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

    # Structs

    def struct(self, type: Any) -> str:
        """Returns the Python class of a user's struct."""
        type = plain(type)
        declared = type.get_declaration()
        key = declared.get_usr() or type.spelling
        if key not in self.structs:
            if not self.unit.mine(declared):
                raise Refused(f"`{type.spelling}`, which has no Python meaning")
            if declared.kind.name == "UNION_DECL":
                raise Refused(f"the union `{type.spelling}`")
            self.is_valid(declared)
            self.destructor(type)
            self.structs[key] = self.unique(declared.spelling or "Unnamed")
            self._open.append(key)
            outer = self.current
            try:
                self._write_struct(type, declared, self.structs[key])
            except Refused:
                self.current = outer
                del self.structs[key]
                raise
            finally:
                self._open.remove(key)
        return self.structs[key]

    def _struct_in_field(self, type: Any) -> str:
        """Returns the class of a struct for the type of a member; its name if the class is being written."""
        is_open = (plain(type).get_declaration().get_usr() or plain(type).spelling) in self._open
        return repr(plain(type).spelling) if is_open else self.struct(type)

    def _write_struct(self, type: Any, declared: Any, name: str) -> None:
        bases = [c for c in declared.get_children() if c.kind.name == "CXX_BASE_SPECIFIER"]
        parents = [self.struct(b.type) for b in bases]
        outer, self.current = self.current, name
        writer = Writer(self, declared)
        file, line, _ = place_of(self.unit, declared)
        writer.here = (file, line)
        fields = list(type.get_fields())
        names = [self.member(f) for f in fields]
        with writer.block(f"class {name}({', '.join(parents) or 'Struct'}):"):
            inherited = "".join(f"*{p}.fields, " for p in parents)
            listed = ", ".join(
                f"({n!r}, {spelled(f.type, self._struct_in_field)}, {f.get_field_offsetof() // 8})"
                for n, f in zip(names, fields, strict=True)
            )
            writer.emit(f"fields = ({inherited}{listed}{',' if listed else ''})")
            writer.emit(f"size, alignment = {type.get_size()}, {type.get_align()}")
            if references := [n for n, f in zip(names, fields, strict=True) if is_reference(f.type)]:
                writer.emit(f"references = {set(references)!r}")
            with writer.block(f"def __init__(self, {', '.join(f'{n}=None' for n in [*names])}):".replace(", )", ")")):
                for parent in parents:
                    writer.emit(f"{parent}.__init__(self)")
                for n, f in zip(names, fields, strict=True):
                    inner = _expressions(f)
                    start = (
                        inner[-1]
                        if (inner and "=" in source_of(self.unit, f)) or (inner and "{" in source_of(self.unit, f))
                        else None
                    )
                    try:
                        if is_reference(f.type):
                            value = "None" if start is None else writer.member_value(start, f.type)
                        else:
                            value = writer.default(f.type).text if start is None else writer.initial(start, f.type)
                        writer.emit(f"self.{n} = {value} if {n} is None else {n}")
                    except Refused as refused:
                        writer.refuse(str(refused))
            members = list(declared.get_children())
            self.written |= {c.get_usr() for c in members if c.is_definition()}
            for child in members:
                if child.kind.name in ("CXX_METHOD", "CONVERSION_FUNCTION") and child.is_definition():
                    if _device_only(child):
                        continue
                    method = Writer(self, child, writer.indent)
                    method.whole_function(child, self.method(child), method=True)
                    writer.lines.append(Line(writer.indent, "", writer.here))
                    writer.lines += method.lines
                elif child.kind.name == "DESTRUCTOR" and self.destructor(type) is not None:
                    method = Writer(self, child, writer.indent)
                    method.whole_function(self.unit.definition(child), "destroy", method=True)
                    writer.lines.append(Line(writer.indent, "", writer.here))
                    writer.lines += method.lines
                elif child.kind.name == "CONSTRUCTOR" and child.is_definition() and not _device_only(child):
                    method = Writer(self, child, writer.indent)
                    method.whole_constructor(child, self.constructor_name(child), name)
                    writer.lines.append(Line(writer.indent, "", writer.here))
                    writer.lines += method.lines
        for child in members if self.binds_classes else ():
            is_method = child.kind.name == "CXX_METHOD" or child.kind.name == "CONSTRUCTOR"
            if is_method and child.is_definition() and not _device_only(child):
                own = self.constructor_name(child) if child.kind.name == "CONSTRUCTOR" else self.method(child)
                function = f"{own}.__func__" if child.kind.name == "CONSTRUCTOR" else own
                head = Writer(self, child)
                head.parameters(child)
                writer.emit(f"{head.signature(child, own)[1:]}({name}.{function})")
        self.current = outer
        self.parts.append(writer.lines)

    def method(self, declared: Any) -> str:
        """Returns the Python name of a method."""
        key = declared.get_usr()
        if key not in self.names:
            name = declared.spelling
            if name.startswith("operator") and not name[8:9].isalnum() and name[8:9] != "_":
                other = name[8:].strip()
                found = f"operator_{_OPERATORS.get(other, re.sub(r'[^a-z0-9]', '_', other))}"
            else:
                found = self.member(declared)
                # Python's methods are virtual. A name that a base class has, too, becomes another one if C++'s are not.
                if not declared.is_virtual_method() and _hides(declared):
                    found += f"_of_{declared.semantic_parent.spelling}"
            siblings = [c for c in declared.semantic_parent.get_children() if c.spelling == declared.spelling]
            if len(siblings) > 1:
                found += (
                    f"_{[c.get_usr() for c in siblings].index(key) if key in [c.get_usr() for c in siblings] else 0}"
                )
            self.names[key] = found
            if declared.get_usr() not in self.written and self.unit.mine(declared):
                # The tree of an instance of a class template has no members. They are written as they are used.
                self.later.append((self.unit.definition(declared) or declared, f"{self.struct_of(declared)}.{found}"))
        return self.names[key]

    def member(self, declared: Any) -> str:
        """Returns the Python name of a member of a struct."""
        name = _python_name(declared.spelling)
        if not self.unit.mine(declared):
            return name
        return f"{name}_" if name in self.members else name

    def destructor(self, type: Any) -> Any:
        """Returns the destructor of a struct that does something, or None.

        Raises:
            Refused: a class above it, a member or the template that it is made of has one.
        """
        type = plain(type)
        declared = type.get_declaration()
        if type.kind.name != "RECORD" or "(lambda" in type.spelling:
            return None
        if not self.unit.mine(declared):
            return declared if is_guard(type) else None
        key = declared.get_usr() or type.spelling
        if key not in self._destructors:
            self._destructors[key] = None
            template = clang().conf.lib.clang_getSpecializedCursorTemplate(declared)
            own = [c for c in declared.get_children() if c.kind.name == "DESTRUCTOR" and _does_something(c)]
            made_of = list(template.get_children()) if template is not None and not own else []
            inner = [c.type for c in declared.get_children() if c.kind.name == "CXX_BASE_SPECIFIER"]
            inner += [f.type.element_type if f.type.kind.name == "CONSTANTARRAY" else f.type for f in type.get_fields()]
            unwritten = any(c.kind.name == "DESTRUCTOR" and _does_something(c) for c in made_of)
            unwritten = unwritten or any(not is_reference(t) and self.destructor(t) for t in inner)
            if unwritten or (own and self.unit.definition(own[0]) is None):
                del self._destructors[key]
                raise Refused(f"the destructor of `{type.spelling}`")
            self._destructors[key] = own[0] if own else None
        return self._destructors[key]

    def struct_of(self, declared: Any) -> str:
        """Returns the Python class of a method."""
        parent = declared.semantic_parent
        return self.struct(parent.type)

    def constructor_name(self, declared: Any) -> str:
        siblings = [c.get_usr() for c in declared.semantic_parent.get_children() if c.kind.name == "CONSTRUCTOR"]
        key = declared.get_usr()
        if key not in siblings:
            siblings = self.constructors.setdefault(declared.semantic_parent.get_usr(), [])
            if key not in siblings:
                siblings.append(key)
        return f"construct_{siblings.index(key)}"

    def constructor(self, type: Any, declared: Any) -> str:
        """Returns what makes an object by a constructor."""
        name = self.struct(type)
        if not self.unit.mine(declared) or not declared.is_definition():
            return name
        if declared.location == declared.semantic_parent.location:  # clang's own
            return name
        made = f"{name}.{self.constructor_name(declared)}"
        if declared.get_usr() not in self.written:
            self.written.add(declared.get_usr())
            self.later.append((self.unit.definition(declared) or declared, made))
        return made

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


class Writer(Statements):
    """Writes one function.

    Args:
        program: the program of the function.
        function: its declaration.
    """

    def __init__(self, program: Host, function: Any, indent: int = 0) -> None:
        super().__init__(program)
        self.indent = indent
        self.bound: dict[int, str] = {}
        self.used: set[str] = set()
        self.boxes: set[int] = set()
        self.assigned: set[int] = set()
        self.frames: list[tuple[set[str], set[str]]] = [(set(), set())]
        self.root = function
        self.instances: dict[int, str] = {}
        self._put_back: set[int] = set()
        if function.kind.name not in ("STRUCT_DECL", "CLASS_DECL", "CLASS_TEMPLATE"):
            self.assigned = program.survey.assigned(function)
            self.boxes = set(program.survey.boxed(function))

    # Names

    def new_name(self, name: str) -> str:
        base = re.sub(r"\W", "_", name) or "unnamed"
        reserved = self.program.reserved
        found, n = (f"{base}_" if base in reserved or base in self.program.taken else base), 1
        while found in self.used:
            found, n = f"{base}_{n}", n + 1
        self.used.add(found)
        self.frames[-1][0].add(found)
        return found

    def declare(self, cursor: Any, boxed: bool = False) -> str:
        name = self.new_name(cursor.spelling)
        self.bound[cursor.hash] = name
        if boxed:
            self.boxes.add(cursor.hash)
        return name

    def knows(self, cursor: Any) -> bool:
        return cursor.hash in self.bound

    def alias(self, cursor: Any, other: Any) -> None:
        self.bound[cursor.hash] = self.bound[other.hash]
        if other.hash in self.boxes:
            self.boxes.add(cursor.hash)
        else:
            self.boxes.discard(cursor.hash)

    def is_boxed(self, cursor: Any) -> bool:
        return cursor.hash in self.boxes

    def variable(self, cursor: Any) -> Expression:
        name = self.bound.get(cursor.hash)
        if name is not None:
            return Expression(f"{name}.value" if self.is_boxed(cursor) else name)
        if self.program.is_device_variable(cursor):
            return Expression(f"kernels.variable({qualified(cursor)!r})")
        if not self.unit.mine(cursor):
            known = qualified(cursor)
            if known in self.program.words:
                return Expression(self.word_name(known))
            value = evaluated(cursor)
            if value is None:
                raise Refused(f"`{known}`, which has no Python meaning")
            return Expression(repr(value))
        parent = cursor.semantic_parent
        if parent is not None and parent.kind.name in ("FUNCTION_DECL", "CXX_METHOD", "FUNCTION_TEMPLATE"):
            start = initializer(cursor)
            value = evaluated(start) if start is not None and cursor.type.is_const_qualified() else None
            if value is not None:
                return Expression(repr(_constant(value, number(cursor.type))))
            raise Refused(f"the variable `{cursor.spelling}`, whose declaration has none")
        name, boxed = self.program.global_variable(cursor)
        return Expression(f"{name}.value" if boxed else name)

    def box(self, cursor: Any) -> str:
        name = self.bound.get(cursor.hash)
        if name is not None:
            if not self.is_boxed(cursor):
                raise Refused(f"a reference to `{cursor.spelling}`")
            return name
        name, boxed = self.program.global_variable(cursor)
        return name if boxed else f"Variable({name})"

    def place(self, cursor: Any) -> str:
        text = super().place(cursor)
        if text.isidentifier():
            self.frames[-1][1].add(text)
        return text

    # Functions

    def parameters(self, function: Any) -> tuple[list[str], list[str]]:
        """Declares the parameters of a function. Returns them with their defaults, and the lines that box them."""
        texts, boxes = [], []
        for i, child in enumerate(_parameters(function)):
            taken = self.program.survey.takes_reference(function, i, child.type)
            wants = child.hash in self.boxes and not taken
            name = self.declare(child, boxed=taken or wants)
            if not taken and not wants:
                self.boxes.discard(child.hash)
            if wants:
                boxes.append(f"{name} = Variable({name})")
            default = self.default_of(child)
            if default is not None and not _is_constant(default):  # C++ makes it anew for each call
                boxes.insert(0, f"{name} = {default} if {name} is left_out else {name}")
                default = "left_out"
            texts.append(name if default is None else f"{name}={default}")
        return texts, boxes

    def default_of(self, cursor: Any) -> str | None:
        inner = [c for c in cursor.get_children() if c.kind.is_expression()]
        if not inner or "=" not in source_of(self.unit, cursor):
            return None
        try:
            return self.initial(inner[-1], cursor.type)
        except Refused:
            return None

    def whole_function(self, function: Any, name: str, method: bool = False) -> None:
        """Writes a function."""
        file, line, _ = place_of(self.unit, function)
        self.here = (file, line)
        static = method and function.is_static_method()
        self.returns_reference = function.result_type.get_canonical().kind.name == "LVALUEREFERENCE"
        self.returns_place = gives_place(function)
        texts, boxes = self.parameters(function)
        if method and static:
            self.emit("@staticmethod")
        elif method:
            texts = ["self", *texts]
        else:
            self.emit(self.signature(function, name))
        body = next((c for c in function.get_children() if c.kind.name == "COMPOUND_STMT"), None)
        self.module = texts[0] if function.spelling == "cupyops_module" else ""
        with self.block(f"def {name}({', '.join(texts)}):"):
            for box in boxes:
                self.emit(box)
            if body is None:
                problem = next(iter(self.unit.problems), None)
                why = f" (clang: {problem.message})" if problem else ""
                self.refuse(f"`{function.spelling}`, whose body is not in the program{why}")
            else:
                try:
                    self.program.is_valid(function)
                except Refused as refused:
                    self.refuse(str(refused))
                else:
                    self.s_compound_stmt(body)

    def signature(self, function: Any, name: str) -> str:
        """Returns the decorator that has the types of the parameters, for calls from Python."""
        parameters = []
        for i, child in enumerate(_parameters(function)):
            default = self.default_of(child)
            try:
                type = self.type_text(child.type)
            except Refused:
                type = repr(child.type.spelling)
            if self.program.survey.takes_reference(function, i, child.type):
                type = f'("&", {type})'
            given = "" if default is None or not _is_constant(default) else f", {default}"
            parameters.append(f'("{child.spelling}", {type}{given})')
        returned = function.result_type if function.kind.name != "LAMBDA_EXPR" else _returned_by(function)
        try:
            result = "None" if returned is None else self.type_text(returned)
        except Refused:
            result = repr(returned.spelling)
        return f'@host("{name}", {", ".join([result, *parameters])})'

    def whole_constructor(self, function: Any, name: str, struct: str) -> None:
        """Writes a constructor as a function that makes the object."""
        file, line, _ = place_of(self.unit, function)
        self.here = (file, line)
        texts, boxes = self.parameters(function)
        self.emit("@classmethod")
        with self.block(f"def {name}(cls, {', '.join(texts)}):".replace(", )", ")")):
            self.emit("self = cls()")
            for box in boxes:
                self.emit(box)
            children = list(function.get_children())
            for i, child in enumerate(children):
                try:
                    if child.kind.name == "MEMBER_REF":
                        value = children[i + 1]
                        type = child.referenced.type
                        if not (value.kind.name == "CALL_EXPR" and not list(value.get_arguments())):
                            made = self.member_value(value, type) if is_reference(type) else self.initial(value, type)
                            self.emit(f"self.{self.program.member(child.referenced)} = {made}")
                    elif (
                        child.kind.name == "TYPE_REF" and i + 1 < len(children) and children[i + 1].kind.is_expression()
                    ):
                        self.emit(f"self.assign_base({self.text(children[i + 1])})")
                except Refused as refused:
                    self.refuse(str(refused))
            body = children[-1]
            if body.kind.name == "COMPOUND_STMT":
                self.s_compound_stmt(body)
            self.emit("return self")

    # Lambdas

    def write_lambda(self, cursor: Any, name: str = "") -> Expression:
        """Writes a lambda as a function before the statement in which it stands."""
        children = list(cursor.get_children())
        parameters = [c for c in children if c.kind.name == "PARM_DECL"]
        body = children[-1]
        if body.kind.name != "COMPOUND_STMT":
            raise Refused(f"the lambda `{self.shown(cursor)}`")
        name = name or self.new_name("function")
        if any(re.search(r"\bauto\b", c.type.spelling) for c in parameters):
            return self._generic(cursor, name)
        return self._one_lambda(cursor, name, parameters, body, children)

    def _generic(self, cursor: Any, name: str) -> Expression:
        """Writes the instances of a generic lambda that the function calls."""
        found: dict[int, Any] = {}
        place = cursor.type.get_declaration().location
        for call in (c for c in self.root.walk_preorder() if c.kind.name == "CALL_EXPR" and c.spelling == "operator()"):
            declared = call.referenced
            if declared is not None and declared.semantic_parent.location == place:
                found.setdefault(declared.hash, declared)
        if not found:
            raise Refused(f"the generic lambda `{self.shown(cursor)}`, which the function does not call itself")
        children = list(cursor.get_children())
        for declared in found.values():
            body = next(c for c in declared.get_children() if c.kind.name == "COMPOUND_STMT")
            held = name if len(found) == 1 else self.new_name(name)
            self.instances[declared.hash] = held
            self._one_lambda(cursor, held, _parameters(declared), body, children)
        return Expression(held)

    def _one_lambda(self, cursor: Any, name: str, parameters: list[Any], body: Any, children: list[Any]) -> Expression:
        copies: list[str] = []
        owned: list[tuple[str, bool]] = []
        outer_names = dict(self.bound)
        changed = self._changed(body)
        explicit = [c.referenced for c in children if c.kind.name == "VARIABLE_REF"]
        by_value, others = _captures(source_of(self.unit, cursor))
        captured = [d for d in explicit if not self.knows(d) or d.spelling in by_value]
        if others:  # `[=]`
            known = {d.hash for d in explicit}
            for used in (c.referenced for c in body.walk_preorder() if c.kind.name == "DECL_REF_EXPR"):
                if used is not None and used.hash not in known and self.knows(used):
                    known.add(used.hash)
                    captured.append(used)
        for declared in captured:
            own = not self.knows(declared)
            if not own:
                unchanged = declared.hash not in self.assigned and declared.hash not in changed
                # Python's loop gives its variables other values in each turn.
                if unchanged and not is_value(declared.type) and not self.is_boxed(declared) and not self.turns:
                    continue
                value = self.variable(declared).text
                value = f"{value}.copy()" if is_value(declared.type) else value
            else:
                start = initializer(declared)
                if start is None:
                    raise Refused(f"the lambda `{self.shown(cursor)}`")
                value = self.initial(start, declared.type)
            held = self.new_name(declared.spelling)
            copies.append(f"{held}={value}")
            self.bound[declared.hash] = held
            self._unboxed(declared.hash)
            owned.append((held, is_value(declared.type) or holds_values(declared.type)))
        saved_loops, self.loops = self.loops, []
        saved_boxes = set(self.boxes) | self._put_back
        self.frames.append((set(), set()))
        for copy in copies:
            self.frames[-1][0].add(copy.split("=")[0])
        texts, boxes = [], []
        for child in parameters:
            wants = child.hash in self.boxes
            taken = is_reference(child.type) and wants
            held = self.declare(child, boxed=wants)
            default = self.default_of(child)
            if default is not None and not _is_constant(default):
                raise Refused(f"the default of `{child.spelling}`")
            texts.append(held if default is None else f"{held}={default}")
            if wants and not taken:
                boxes.append(f"{held} = Variable({held})")
        here = self.here
        returns = self.returns_reference, self.returns_place
        called = next((c for c in cursor.type.get_declaration().get_children() if c.spelling == "operator()"), None)
        self.returns_reference = (
            called is not None and called.result_type.get_canonical().kind.name == "LVALUEREFERENCE"
        )
        self.returns_place = False
        if self.program.current.startswith("cupyops_"):  # what a module binds has the types of its parameters
            self.program.signed.add(name)
            self.emit(self.signature(cursor, name))
        # A lambda that changes its copies has a function around it that makes it, and a copy of it has its own ones.
        maker = self.new_name(f"make_{name}") if is_mutable(cursor.type) else ""
        if maker:
            self.emit(f"def {maker}({', '.join(held for held, _ in owned)}):")
            self.indent += 1
        start = len(self.lines)
        with self.block(f"def {name}({', '.join([*texts, *(() if maker else copies)])}):"):
            for box in boxes:
                self.emit(box)
            self.s_compound_stmt(body)
        declared_here, assigned_here = self.frames.pop()
        outside = sorted(n for n in assigned_here - (declared_here - ({held for held, _ in owned} if maker else set())))
        if outside:
            self.lines.insert(start + 1, Line(self.indent + 1, f"nonlocal {', '.join(outside)}", here))
            self.frames[-1][1].update(n for n in outside if not maker or n not in dict(owned))
        if maker:
            again = ", ".join(f"copied({held})" if value else held for held, value in owned)
            self.emit(f"{name}.copy = lambda: {maker}({again})")
            self.emit(f"return {name}")
            self.indent -= 1
            self.emit(f"{name} = {maker}({', '.join(copy.partition('=')[2] for copy in copies)})")
        self.here = here
        self.returns_reference, self.returns_place = returns
        self.loops = saved_loops
        self.boxes = saved_boxes
        self._put_back = set()
        self.bound = {**self.bound, **outer_names}
        return Expression(name)

    def _unboxed(self, key: int) -> None:
        """Treats a boxed variable as a plain one inside a lambda that has a copy of it."""
        if key in self.boxes:
            self.boxes.discard(key)
            self._put_back = self._put_back | {key}

    def _changed(self, body: Any) -> set[int]:
        assigned: set[int] = set()
        self.program.survey._walk(body, assigned, set())
        return assigned

    def instance(self, declared: Any) -> str:
        return self.instances.get(declared.hash, "")


_OPERATORS = {
    "()": "call", "[]": "index", "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "remainder",
    "==": "equal", "!=": "unequal", "<": "less", ">": "greater", "<=": "at_most", ">=": "at_least", "=": "assign",
    "+=": "add_to", "-=": "subtract_from", "*=": "multiply_by", "/=": "divide_by", "!": "not", "++": "increment",
    "--": "decrement", "<<": "left_shift", ">>": "right_shift", "&": "and", "|": "or", "^": "xor", "->": "arrow",
}  # fmt: skip
_MACRO = re.compile(r"(?m)^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)((?:\\\r?\n|[^\n])*)")
_OF_TYPES = {"STRUCT_DECL", "CLASS_DECL", "CLASS_TEMPLATE", "UNION_DECL"}
_DEVICE_VARIABLES = {"CUDADEVICE_ATTR", "CUDACONSTANT_ATTR", "CUDASHARED_ATTR"}


def _enumerator_of(type: Any, value: int) -> str:
    """Returns a value of an enumeration by its name, as C++ does not convert the number; another value as it is."""
    declared = type.get_canonical().get_declaration()
    for constant in declared.get_children() if type.get_canonical().kind.name == "ENUM" else ():
        if constant.kind.name == "ENUM_CONSTANT_DECL" and constant.enum_value == value:
            return qualified(constant)
    return str(value)


def _pack(declared: Any) -> list[str] | None:
    """Returns the types of a pack that the last parameters of a function have, ``f(int n, Args... args)``, else None."""
    template = clang().conf.lib.clang_getSpecializedCursorTemplate(declared)
    children = [] if template is None else list(template.get_children())
    parameters = [c for c in children if c.kind.name == "PARM_DECL"]
    packs = [c.spelling for c in children if c.kind.name == "TEMPLATE_TYPE_PARAMETER"][-1:]
    if not parameters or parameters[-1].type.spelling not in [f"{name}..." for name in packs]:
        return None
    types = list(declared.type.argument_types())[len(parameters) - 1 :]
    return [type.get_canonical().spelling for type in types]


def _does_something(destructor: Any) -> bool:
    definition = destructor.get_definition()
    if definition is None:
        return not destructor.is_default_method()
    return any(c.kind.name == "COMPOUND_STMT" and list(c.get_children()) for c in definition.get_children())


def _hides(method: Any) -> bool:
    """Returns whether a class above has a method of the same name."""
    above = [c for c in method.semantic_parent.get_children() if c.kind.name == "CXX_BASE_SPECIFIER"]
    while above:
        for child in plain(above.pop().type).get_declaration().get_children():
            if child.kind.name == "CXX_BASE_SPECIFIER":
                above.append(child)
            elif child.kind.name == "CXX_METHOD" and child.spelling == method.spelling:
                return True
    return False


def _is_constant(text: str) -> bool:
    """Returns whether the text of a default is a value that all calls may share."""
    return (
        re.fullmatch(r"None|True|False|-?[\d.]+(e[-+]?\d+)?|'[^'\\]*'|\w+(\.\w+)+|float\(\"-?\w+\"\)", text) is not None
    )


def _constant(value: Any, kind: Any) -> Any:
    return kind(value) if kind is not None else value


def _has_attribute(declared: Any, kind: str) -> bool:
    if any(c.kind.name == kind for c in declared.get_children()):
        return True
    template = clang().conf.lib.clang_getSpecializedCursorTemplate(declared)
    return template is not None and any(c.kind.name == kind for c in template.get_children())


def _device_only(declared: Any) -> bool:
    kinds = {c.kind.name for c in declared.get_children()}
    return "CUDADEVICE_ATTR" in kinds and "CUDAHOST_ATTR" not in kinds


def _returned_by(cursor: Any) -> Any:
    """Returns the type of the first value that a lambda returns, or None."""
    for child in cursor.get_children():
        if child.kind.name == "RETURN_STMT":
            return next((value.type for value in child.get_children()), None)
        if child.kind.name != "LAMBDA_EXPR" and (found := _returned_by(child)) is not None:
            return found
    return None


def _parameters(function: Any) -> list[Any]:
    """Returns the parameters of a function. Its children have those of function types, too."""
    if function.kind.name == "LAMBDA_EXPR":
        return [c for c in function.get_children() if c.kind.name == "PARM_DECL"]
    return [c for c in function.get_arguments() if c is not None]


def is_host_function(declared: Any) -> bool:
    """Returns whether a function runs on the host."""
    kinds = {c.kind.name for c in declared.get_children()}
    return "CUDAGLOBAL_ATTR" not in kinds and ("CUDADEVICE_ATTR" not in kinds or "CUDAHOST_ATTR" in kinds)
