"""Writes the user's structs as Python classes."""

import re
from typing import Any

from .blocks import Line
from .cursors import python_name, subexpressions
from .expression import Refused
from .tree import (
    clang,
    place_of,
    source_of,
)
from .types import (
    is_guard,
    is_reference,
    plain,
    record_word,
    spelled,
)
from .writer import Writer

__all__ = ["OPERATORS", "Structs"]


class Structs:
    """The part of a program that writes the user's structs as Python classes."""

    unit: Any
    names: dict[str, str]
    structs: dict[str, str]
    constructors: dict[str, list[str]]
    members: set[str]
    written: set[str]
    later: list[tuple[Any, str]]
    parts: list[list[Line]]
    binds_classes: bool
    current: str
    _destructors: dict[str, Any]
    _open: list[str]

    def unique(self, name: str) -> str:
        raise NotImplementedError

    def is_valid(self, cursor: Any) -> None:
        raise NotImplementedError

    def word_name(self, name: str) -> str:
        raise NotImplementedError

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
        words = [record_word(b.type) for b in bases]
        above = [w if w is not None and hasattr(w.object, "fields") else None for w in words]  # classes that are words
        parents = [
            self.struct(b.type) if w is None else self.word_name(w.name) for b, w in zip(bases, above, strict=True)
        ]
        parents += [] if None in above else ["Struct"]
        outer, self.current = self.current, name
        writer = Writer(self, declared)
        file, line, _ = place_of(self.unit, declared)
        writer.here = (file, line)
        fields = list(type.get_fields())
        names = [self.member(f) for f in fields]
        with writer.block(f"class {name}({', '.join(parents)}):"):
            parents = [p for p in parents if p != "Struct"]
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
                    inner = subexpressions(f)
                    start = (
                        inner[-1]
                        if (inner and "=" in source_of(self.unit, f)) or (inner and "{" in source_of(self.unit, f))
                        else None
                    )
                    try:
                        if f.is_bitfield():
                            raise Refused(f"the bit-field `{f.spelling}` of `{declared.spelling}`")
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
                found = f"operator_{OPERATORS.get(other, re.sub(r'[^a-z0-9]', '_', other))}"
            else:
                found = self.member(declared)
                # Python's methods are virtual. A method that hides one of a base class, and is not virtual in C++, gets
                # another name.
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
        name = python_name(declared.spelling)
        if not self.unit.mine(declared):
            return name
        return f"{name}_" if name in self.members else name

    def destructor(self, type: Any) -> Any:
        """Returns the destructor of a struct that does something, or None.

        Raises:
            Refused: a base class, a member or the template has one.
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
        """Returns the function that makes an object by a constructor."""
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


OPERATORS = {
    "()": "call", "[]": "index", "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "remainder",
    "==": "equal", "!=": "unequal", "<": "less", ">": "greater", "<=": "at_most", ">=": "at_least", "=": "assign",
    "+=": "add_to", "-=": "subtract_from", "*=": "multiply_by", "/=": "divide_by", "!": "not", "++": "increment",
    "--": "decrement", "<<": "left_shift", ">>": "right_shift", "&": "and", "|": "or", "^": "xor", "->": "arrow",
}  # fmt: skip


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


def _device_only(declared: Any) -> bool:
    kinds = {c.kind.name for c in declared.get_children()}
    return "CUDADEVICE_ATTR" in kinds and "CUDAHOST_ATTR" not in kinds
