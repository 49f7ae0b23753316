"""Writes C++ blocks and declarations as Python."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from .cursors import is_place, stripped
from .expression import Expression, Refused
from .expressions import Expressions
from .tree import initializer, place_of, source_of
from .types import is_guard, is_reference, is_value, number, plain, record_word

__all__ = ["Blocks", "Line", "Loop", "binds_places", "end_offset", "refusal_of"]


class Line(NamedTuple):
    """A line of generated code, with the file and the line of the C++ that it translates."""

    indent: int
    text: str
    place: tuple[str, int]


class Loop(NamedTuple):
    """The loop around a statement, or a switch that is written as a loop of one iteration.

    Attributes:
        step: the expression that C++ evaluates before the next iteration, or None.
        condition: of a loop that tests after its body, or None.
        flag: for a switch, the variable that makes the surrounding loop continue with its next iteration.
    """

    step: Any = None
    condition: Any = None
    flag: str = ""


class Blocks(Expressions):
    """Blocks and declarations. Statements are written into :attr:`lines`."""

    def __init__(self, program: Any) -> None:
        self.program, self.unit = program, program.unit
        self.lines: list[Line] = []
        self.indent = 0
        self.here = ("", 0)
        self.loops: list[Loop | None] = []
        self.turns = 0  # loops around the statement, also those around a lambda
        self.owning: Any = None  # the class with a destructor of which a variable is declared
        self.held = {}
        self.module = ""  # the name of the module, in PYBIND11_MODULE
        self.owns = False  # whether the statement is one of a block, whose end destroys such a variable

    def emit(self, text: str) -> None:
        self.lines.append(Line(self.indent, text, self.here))

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Writes the head of a block. Lines that are written inside are indented one step further."""
        self.emit(head)
        start = len(self.lines)
        self.indent += 1
        try:
            yield
            if len(self.lines) == start:
                self.emit("pass")
        finally:
            self.indent -= 1

    def statement(self, cursor: Any) -> None:
        """Writes a statement. A statement without a translation raises an error where it is executed."""
        outer = self.here
        file, line, _ = place_of(self.unit, cursor)
        self.here = (file, line)
        start, indent, loops, turns = len(self.lines), self.indent, len(self.loops), self.turns
        try:
            kind = cursor.kind.name
            method = getattr(self, f"s_{kind.lower()}", None)
            if method is not None:
                method(cursor)
            elif cursor.kind.is_expression():
                self.expression_statement(cursor)
            elif cursor.kind.is_declaration():
                self.declaration(cursor)
            else:
                raise Refused(f"{kind.lower().replace('_', ' ')} `{self.shown(cursor)}`")
        except (
            Exception
        ) as error:  # Refused, or a tree that the translator does not expect: only this statement is lost
            del self.lines[start:]
            del self.loops[loops:]
            self.indent, self.turns, self.owning = indent, turns, None
            unexpected = f"`{self.shown(cursor)}`, whose tree is unexpected ({type(error).__name__}: {error})"
            self.refuse(str(error) if isinstance(error, Refused) else unexpected)
        self.here = outer

    def refuse(self, why: str) -> None:
        """Writes an error in place of a statement."""
        file, line = self.here
        place = f"{self.program.shown_file(file)}:{line}"
        self.program.refused(self.here, why)
        if self.module and self.indent == 1:  # the module's other definitions exist
            text = "\n".join(self.unit.files.get(file, "").split("\n")[line - 1 :]).partition(";")[0]
            self.emit(refusal_of(self.module, f"{place}: no translation of {why}", _DEFINES.findall(text)[:1]))
            return
        self.emit(f"raise NotTranslated({f'{place}: no translation of {why}'!r})")

    # Blocks

    def s_compound_stmt(self, cursor: Any) -> None:
        self.body(list(cursor.get_children()), cursor)

    def body(self, statements: list[Any], around: Any, problems: Any = None) -> None:
        """Writes statements. An error of clang may have taken one from the tree: it is raised at its place."""
        problems = self.program.problems_in(around) if problems is None else problems
        for i, child in enumerate(statements):
            _, _, begin = place_of(self.unit, child)
            end = end_offset(self.unit, child)
            while problems and problems[0].offset < begin:
                self.clang_error(problems.pop(0))
            inside = [p for p in problems if begin <= p.offset <= end]
            if inside and child.kind.name not in _WITH_BLOCKS:
                self.clang_error(inside[0])
                problems = [p for p in problems if p not in inside]
                continue
            if inside:
                header = [p for p in inside if not self.program.in_block(child, p)]
                problems = [p for p in problems if p not in inside]
                if header:
                    self.clang_error(header[0])
                    continue
            outer, self.owns = self.owns, child.kind.name == "DECL_STMT"
            self.statement(child)
            self.owns = outer
            if child.kind.name == "DECL_STMT" and (names := self.destroyed(child)):
                if all(names.values()):
                    with self.block(f"with {', '.join(names)}:"):
                        self.body(statements[i + 1 :], around, problems)
                    return
                with self.block("try:"):
                    self.body(statements[i + 1 :], around, problems)
                with self.block("finally:"):
                    for name, guard in reversed(names.items()):
                        self.emit(f"{name}.{'close' if guard else 'destroy'}()")
                return
        for problem in problems:
            self.clang_error(problem)

    def destroyed(self, cursor: Any) -> dict[str, bool]:
        """Returns the variables of a declaration whose destructors run at the end of the block, and which are guards of words."""
        variables = [c for c in cursor.get_children() if c.kind.name == "VAR_DECL" and self.knows(c)]
        own = [c for c in variables if c.storage_class.name != "STATIC" and not is_reference(c.type)]
        return {self.variable(c).text: is_guard(c.type) for c in own if self.has_destructor(c.type)}

    def has_destructor(self, type: Any) -> bool:
        try:
            return self.program.destructor(type) is not None
        except Refused:
            return False

    def clang_error(self, problem: Any) -> None:
        outer, self.here = self.here, (problem.file, problem.line)
        self.refuse(f"what clang refuses: {problem.message}")
        self.here = outer

    def nested(self, cursor: Any) -> None:
        """Writes the statements of a branch or a loop."""
        if cursor.kind.name == "COMPOUND_STMT":
            self.s_compound_stmt(cursor)
        else:
            self.body([cursor], cursor)

    def s_null_stmt(self, cursor: Any) -> None:
        pass

    def s_unexposed_stmt(self, cursor: Any) -> None:
        """Writes a statement with attributes, such as ``[[fallthrough]];``."""
        for child in cursor.get_children():
            if child.kind.is_statement() or child.kind.is_expression():
                self.statement(child)

    def s_decl_stmt(self, cursor: Any) -> None:
        for child in cursor.get_children():
            self.declaration(child)

    # Declarations

    def declaration(self, cursor: Any) -> None:
        kind = cursor.kind.name
        if kind == "VAR_DECL":
            self.declared_variable(cursor)
        elif kind == "UNEXPOSED_DECL" and cursor.spelling.startswith("["):
            self.bindings(cursor)
        elif kind in ("STRUCT_DECL", "CLASS_DECL"):
            pass  # written where it is used
        elif kind not in _SILENT:
            raise Refused(f"{kind.lower().replace('_', ' ')} `{self.shown(cursor)}`")

    def declared_variable(self, cursor: Any) -> None:
        start = initializer(cursor)
        type = cursor.type
        if plain(type).kind.name == "VARIABLEARRAY" and self.declared_sized(cursor):
            return
        if plain(type).kind.name in ("VARIABLEARRAY", "INT128", "UINT128"):
            raise Refused(f"`{self.shown(cursor)}`, a variable of the type `{type.spelling}`")
        if cursor.storage_class.name == "STATIC":
            value = self.default(type).text if start is None else self.initial(start, type)
            name = self.declare(cursor, boxed=True)
            self.emit(f"{name} = statics.setdefault({self.program.static_key(cursor)!r}, Variable({value}))")
            return
        if is_reference(type) and start is not None:
            self.declared_reference(cursor, start)
            return
        boxed = self.is_boxed(cursor)
        name = self.declare(cursor, boxed=boxed)  # C++ has the name in its own initializer
        if start is not None and stripped(start).kind.name == "LAMBDA_EXPR" and not boxed:
            self.write_lambda(stripped(start), name)
            return
        self.owns_no_guard(type)
        self.owning = plain(type).get_declaration() if self.program.destructor(type) else None
        if self.owning is not None and not self.owns:
            raise Refused(f"`{self.shown(cursor)}`, whose class has a destructor, in the head of a statement")
        value = self.default(type).text if start is None else self.initial(start, type)
        self.owning = None
        self.emit(f"{name} = {f'Variable({value})' if boxed else value}")

    def declared_sized(self, cursor: Any) -> bool:
        """Declares an array of a size of run time, ``float a[n]``, which is read once. Returns False for arrays of
        arrays and of objects."""
        element = plain(cursor.type).element_type
        sizes = [c for c in cursor.get_children() if c.kind.is_expression()]
        if len(sizes) != 1 or is_value(element):
            return False
        size, value = self.text(sizes[0]), self.default(element).text
        name = self.declare(cursor, boxed=(boxed := self.is_boxed(cursor)))
        made = f"std.vector([{value}] * ({size}))"
        self.emit(f"{name} = {f'Variable({made})' if boxed else made}")
        return True

    def initial(self, start: Any, type: Any) -> str:
        if start.kind.name == "INIT_LIST_EXPR":
            return self.init_list(start, type).text
        return self.copied(start, type)

    def declared_reference(self, cursor: Any, start: Any) -> None:
        inner = stripped(start)
        is_same = number(inner.type) == number(cursor.type)  # otherwise the reference is to a converted copy
        if (
            inner.kind.name == "DECL_REF_EXPR"
            and inner.referenced is not None
            and self.knows(inner.referenced)
            and is_same
        ):
            self.alias(cursor, inner.referenced)
            return
        pointee = cursor.type.get_canonical().get_pointee()
        constant = pointee.is_const_qualified()
        if constant:  # such a name refers to a number that other code may assign
            wanted = number(pointee) is not None and is_same and is_place(start)
        else:
            wanted = record_word(pointee) is None or cursor.hash in self.assigned
            wanted = wanted and (is_place(start) or cursor.type.get_canonical().kind.name == "LVALUEREFERENCE")
        if not is_value(pointee) and wanted and (place := self.reference(start, anything=not constant)):
            self.emit(f"{self.declare(cursor, boxed=True)} = {place}")
            return
        value = self.text(start)
        self.emit(f"{self.declare(cursor)} = {value}")

    def bindings(self, cursor: Any) -> None:
        """Writes ``auto [a, b] = f();``."""
        children = list(cursor.get_children())
        start = next(c for c in reversed(children) if c.kind.is_expression())
        bound = [c for c in children if c.kind.name == "UNEXPOSED_DECL"]
        type = plain(start.type)
        if binds_places(self.unit, cursor) and is_place(start):
            self.bound_places(bound, self.reference(start) if self.assigns(bound, type) else self.text(start), type)
            return
        self.bound_values(bound, self.copied(start), type)

    def assigns(self, bound: list[Any], type: Any) -> bool:
        """Returns whether names of a tuple's elements are assigned, which gives its place another tuple."""
        return not is_value(type) and any(c.hash in self.assigned for c in bound)

    def bound_values(self, bound: list[Any], value: str, type: Any) -> None:
        if type.kind.name == "RECORD" and record_word(type) is None:
            value = f"{value}.values()"
        names = [self.declare(c, boxed=False) for c in bound]
        self.emit(f"{', '.join(names)}{',' * (len(names) == 1)} = {value}")
        for c, name in zip(bound, names, strict=True):
            if self.is_boxed(c):
                self.emit(f"{name} = Variable({name})")

    def bound_places(self, bound: list[Any], value: str, type: Any) -> None:
        """Writes ``auto& [a, b] = x;``, whose names are the members or the elements themselves."""
        if type.kind.name == "RECORD" and record_word(type) is None:
            places = [f"Member({value}, {self.program.member(f)!r})" for f in type.get_fields()]
        elif is_value(type):
            places = [f"Element({value}, {i})" for i in range(len(bound))]
        elif self.assigns(bound, type):
            places = [f"TupleElement({value}, {i})" for i in range(len(bound))]
        else:
            self.bound_values(bound, value, type)
            return
        for c, place in zip(bound, places, strict=False):
            self.emit(f"{self.declare(c, boxed=True)} = {place}")

    def hoist(self, text: str) -> None:
        self.emit(text)

    # Provided by the other parts of the writer.

    assigned: set[int]

    def declare(self, cursor: Any, boxed: bool = False) -> str:
        raise NotImplementedError

    def knows(self, cursor: Any) -> bool:
        raise NotImplementedError

    def alias(self, cursor: Any, other: Any) -> None:
        raise NotImplementedError

    def write_lambda(self, cursor: Any, name: str = "") -> Expression:
        raise NotImplementedError

    def expression_statement(self, cursor: Any) -> None:
        raise NotImplementedError


# The names that a statement of PYBIND11_MODULE defines.
_DEFINES = re.compile(r'(?:(?:class_|enum_)<[^;"]*>\s*\w*\(\s*\w+\s*,|\.def\w*\(|\.attr\()\s*"(\w+)"')


_SILENT = {
    "TYPEDEF_DECL", "TYPE_ALIAS_DECL", "USING_DECLARATION", "USING_DIRECTIVE", "STATIC_ASSERT", "UNEXPOSED_DECL",
    "NAMESPACE_ALIAS", "ENUM_DECL", "TYPE_ALIAS_TEMPLATE_DECL", "UNION_DECL", "FUNCTION_DECL",
}  # fmt: skip


# Statements that contain other statements, one of which may have the error.
_WITH_BLOCKS = {
    "COMPOUND_STMT",
    "IF_STMT",
    "FOR_STMT",
    "WHILE_STMT",
    "DO_STMT",
    "CXX_FOR_RANGE_STMT",
    "SWITCH_STMT",
    "CXX_TRY_STMT",
}


def refusal_of(holder: str, why: str, names: list[str]) -> str:
    return f"{holder}.refuse({', '.join(map(repr, [why, *names]))})"


def end_offset(unit: Any, cursor: Any) -> int:
    from .tree import end_of

    return end_of(unit, cursor)


def binds_places(unit: Any, cursor: Any) -> bool:
    """Returns whether names in brackets are references, ``auto& [a, b]``."""
    return re.match(r"(const\s+)?auto\s*(const\s*)?&", source_of(unit, cursor)) is not None
