"""Writes the statements of a C++ function as Python."""

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from .expressions import Expression, Expressions, Refused, _expressions, _is_place, _stripped, record_of
from .numbers import NUMBERS
from .tree import evaluated, initializer, operator_of, place_of, source_of
from .types import holds_values, is_guard, is_reference, is_value, number, plain, record_word

__all__ = ["Line", "Statements"]


class Line(NamedTuple):
    """A line of generated code, with the file and the line of the C++ that it translates."""

    indent: int
    text: str
    place: tuple[str, int]


class Loop(NamedTuple):
    """What surrounds a statement: a loop, or a switch that is written as a loop of one turn.

    Attributes:
        step: the expression that C++ evaluates before the next turn, or None.
        condition: of a loop that tests behind its body, or None.
        flag: of a switch, the variable that tells the loop around it to go on with its next turn.
    """

    step: Any = None
    condition: Any = None
    flag: str = ""


class Statements(Expressions):
    """Writes statements into :attr:`lines`."""

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
        """Writes the head of a block, and what is written inside one step further in."""
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
        """Writes a statement. What has no translation raises where it stands."""
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
        if self.module and self.indent == 1:  # what else the module defines is there
            text = "\n".join(self.unit.files.get(file, "").split("\n")[line - 1 :]).partition(";")[0]
            self.emit(_refusal(self.module, f"{place}: no translation of {why}", _DEFINES.findall(text)[:1]))
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
            end = _end_of(self.unit, child)
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
        if start is not None and _stripped(start).kind.name == "LAMBDA_EXPR" and not boxed:
            self.write_lambda(_stripped(start), name)
            return
        self.owns_no_guard(type)
        self.owning = plain(type).get_declaration() if self.program.destructor(type) else None
        if self.owning is not None and not self.owns:
            raise Refused(f"`{self.shown(cursor)}`, whose class has a destructor, in the head of a statement")
        value = self.default(type).text if start is None else self.initial(start, type)
        self.owning = None
        self.emit(f"{name} = {f'Variable({value})' if boxed else value}")

    def initial(self, start: Any, type: Any) -> str:
        inner = start
        characters = plain(type).kind.name == "CONSTANTARRAY" and not plain(type).element_type.is_const_qualified()
        if characters and _stripped(start).kind.name == "STRING_LITERAL":
            text = ast.literal_eval(self.text(_stripped(start)))
            codes = [NUMBERS["int8"](ord(c)) for c in text]
            return f"std.vector({codes + [0] * (plain(type).element_count - len(codes))})"
        if inner.kind.name == "INIT_LIST_EXPR":
            return self.init_list(inner, type).text
        return self.copied(inner, type)

    def declared_reference(self, cursor: Any, start: Any) -> None:
        inner = _stripped(start)
        is_same = number(inner.type) == number(cursor.type)  # else the reference is to a converted copy
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
        if constant:  # such a name shows what others assign to a number
            wanted = number(pointee) is not None and is_same and _is_place(start)
        else:
            wanted = record_word(pointee) is None or cursor.hash in self.assigned
            wanted = wanted and (_is_place(start) or cursor.type.get_canonical().kind.name == "LVALUEREFERENCE")
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
        if _binds_places(self.unit, cursor) and _is_place(start):
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

    # Expressions as statements

    def expression_statement(self, cursor: Any) -> None:
        inner = _stripped(cursor)
        kind = inner.kind.name
        if kind == "CXX_THROW_EXPR":
            parts = _expressions(inner)
            if parts and plain(parts[0].type).kind.name != "RECORD":
                raise Refused(f"`{self.shown(inner)}`, which throws no object of a class")
            self.emit(f"raise {self.text(parts[0])}" if parts else "raise")
            return
        if kind == "CSTYLE_CAST_EXPR" and plain(inner.type).kind.name == "VOID":
            parts = _expressions(inner)
            inner = _stripped(parts[-1]) if parts else inner
            kind = inner.kind.name
            if kind in ("DECL_REF_EXPR", "INTEGER_LITERAL", "CSTYLE_CAST_EXPR"):
                return
        if kind == "BINARY_OPERATOR" and operator_of(inner) == ",":
            for part in _expressions(inner):
                self.expression_statement(part)
            return
        if kind == "CONDITIONAL_OPERATOR" and plain(inner.type).kind.name == "VOID":
            self.conditional_statement(inner)
            return
        if kind == "CALL_EXPR" and (text := self.operator_statement(inner)):
            self.emit(text)
            return
        if self.module and self.indent == 1 and len(links := self.links(inner)) > 1:
            self.chain(links)
            return
        text = self.assignment(inner) or self.text(inner)
        if text.isidentifier() or _is_number(text):
            return
        self.emit(text)

    def links(self, cursor: Any) -> list[Any]:
        """Returns the calls of a chain ``m.def(...).def(...)``, from the last one to the object of the first."""
        found = []
        while (
            cursor.kind.name == "CALL_EXPR"
            and cursor.referenced is not None
            and cursor.referenced.kind.name == "CXX_METHOD"
        ):
            owner = _expressions(next(iter(cursor.get_children())))[:1]
            if not owner or not record_of(cursor.referenced).startswith("pybind11::"):
                break
            found.append((cursor, owner[0]))
            cursor = _stripped(owner[0])
        return found

    def chain(self, links: list[Any]) -> None:
        """Writes a chain of definitions as a statement for each, so that one without a translation is lost alone."""
        base = links[-1][1]
        holder = self.text(base)
        if not holder.isidentifier():
            value, holder = holder, self.new_name("bound")
            self.emit(f"{holder} = {value}")
        for link, owner in reversed(links):
            self.held[owner.hash] = holder
            file, line, _ = place_of(self.unit, next(iter(link.get_children())))
            start = len(self.lines)
            try:
                text = self.text(link)
                self.emit(text)
            except Refused as refused:
                del self.lines[start:]
                why = f"{self.program.shown_file(file)}:{line}: no translation of {refused}"
                self.program.refused((file, line), str(refused))
                names = [self.text(a) for a in self.written(link)[:1] if _stripped(a).kind.name == "STRING_LITERAL"]
                self.emit(_refusal(holder, why, [ast.literal_eval(name) for name in names]))

    def conditional_statement(self, cursor: Any) -> None:
        condition, then, other = _expressions(cursor)
        empty = [_is_nothing(then), _is_nothing(other)]
        test = self.expression(condition)
        if empty[0] and not empty[1]:
            with self.block(f"if {_negated(test)}:"):
                self.expression_statement(other)
            return
        with self.block(f"if {test.text}:"):
            self.expression_statement(then)
        if not empty[1]:
            with self.block("else:"):
                self.expression_statement(other)

    def operator_statement(self, cursor: Any) -> str:
        """Returns an overloaded assignment as a statement; ``""`` for another call."""
        declared = cursor.referenced
        if declared is None or not declared.spelling.startswith("operator") or self.unit.mine(declared):
            return ""
        operator = declared.spelling[8:]
        arguments = list(cursor.get_arguments())
        if operator == "=" and len(arguments) == 2:
            left, right = arguments
            if is_value(left.type) and self.assigned_object(left, right) is None:
                return f"{self.text(left, 12)}.assign({self.text(right)})"
            if found := self.assigned_object(left, right):
                return found.text
            value = self.copied(right)
            if isinstance(self.place(left), str) and record_word(left.type) is not None:
                lambda_ = _stripped(right)
                if lambda_.kind.name == "LAMBDA_EXPR":
                    value = self.write_lambda(lambda_).text
            return f"{self.place(left)} = {value}"
        if operator in ("+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=") and len(arguments) == 2:
            inner = _stripped(arguments[0])
            if inner.kind.name == "CALL_EXPR" and inner.spelling != "operator[]" and not self.is_own_place(inner):
                return ""  # x.view(-1) += 1 works on the object
            a, b = number(arguments[0].type), number(arguments[1].type)
            if a is not None and b is not None:
                return ""
            value = self.text(arguments[1])
            if self.may_change(arguments[0], arguments[1]):  # C++ evaluates the right side first
                value, text = self.new_name("value"), value
                self.emit(f"{value} = {text}")
            return f"{self.place(arguments[0])} {operator} {value}"
        return ""

    # Control flow

    def s_return_stmt(self, cursor: Any) -> None:
        parts = _expressions(cursor)
        if not parts:
            self.emit("return")
            return
        if _stripped(parts[0]).kind.name == "CALL_EXPR" and plain(parts[0].type).kind.name == "VOID":
            self.expression_statement(parts[0])
            self.emit("return")
            return
        value = self.returned(parts[0])
        self.emit(f"return {value}")

    returns_reference = returns_place = False

    def returned(self, cursor: Any) -> str:
        if self.returns_place:
            return self.reference(cursor)
        if not self.returns_reference and self.program.destructor(cursor.type):
            raise Refused(f"`{self.shown(cursor)}`, whose class has a destructor, as a result")
        if self.returns_reference or self.local(cursor):
            return self.text(cursor)
        return self.copied(cursor)

    def local(self, cursor: Any) -> bool:
        """Returns whether an expression is a local variable, which C++ moves out of the function."""
        inner = _stripped(cursor)
        while inner.kind.name == "CALL_EXPR":
            declared = inner.referenced
            arguments = [a for a in inner.get_arguments() if a is not None]
            if declared is None or declared.kind.name != "CONSTRUCTOR" or len(arguments) != 1:
                return False
            inner = _stripped(arguments[0])
        declared = inner.referenced if inner.kind.name == "DECL_REF_EXPR" else None
        return declared is not None and declared.kind.name == "VAR_DECL" and not is_reference(declared.type)

    def s_if_stmt(self, cursor: Any) -> None:
        children = list(cursor.get_children())
        source = source_of(self.unit, cursor)
        while (children and children[0].kind.is_declaration()) or children[0].kind.name == "DECL_STMT":
            self.statement(children.pop(0)) if children[0].kind.name == "DECL_STMT" else self.declaration(
                children.pop(0)
            )
        condition, *branches = children
        if re.match(r"if\s+constexpr\b", source):
            self.chosen(condition, branches)
            return
        inner = _stripped(condition)
        is_negated = inner.kind.name == "UNARY_OPERATOR" and operator_of(inner) == "!"
        test = _negated(self.expression(_expressions(inner)[0])) if is_negated else self.text(condition)
        with self.block(f"if {test}:"):
            self.nested(branches[0])
        if len(branches) > 1:
            other = branches[1]
            start = len(self.lines)
            with self.block("else:"):
                self.nested(other)
            if other.kind.name == "IF_STMT" and self._is_one_if(start + 1):
                self._elif(start)

    def chosen(self, condition: Any, branches: list[Any]) -> None:
        """Writes the branch of an ``if constexpr`` that is compiled. The tree of an instantiation lacks the other one."""
        value = evaluated(condition)
        if value is None:
            raise Refused(f"`if constexpr` on `{self.shown(condition)}`, whose value clang does not tell")
        between = [self._between(condition, branch) for branch in branches]
        is_else = [bool(re.search(r"\belse\b", text)) or i == 1 for i, text in enumerate(between)]
        for branch, otherwise in zip(branches, is_else, strict=True):
            if bool(value) != otherwise:
                self.nested(branch)

    def _between(self, first: Any, second: Any) -> str:
        file, _, _ = place_of(self.unit, first)
        text = self.unit.files.get(file, "").encode()
        piece = text[_end_of(self.unit, first) : place_of(self.unit, second)[2]].decode(errors="replace")
        return re.sub(r"//[^\n]*|/\*.*?\*/|\{.*\}", " ", piece, flags=re.S)

    def _is_one_if(self, start: int) -> bool:
        """Returns whether the lines from `start` are one ``if`` with its branches."""
        indent = self.lines[start].indent
        heads = [line.text for line in self.lines[start:] if line.indent == indent]
        return heads[0].startswith("if ") and all(h.startswith(("elif ", "else:")) for h in heads[1:])

    def _elif(self, start: int) -> None:
        inner = self.lines[start + 1 :]
        first = inner[0]
        del self.lines[start:]
        self.lines.append(Line(first.indent - 1, f"el{first.text}", first.place))
        self.lines += [Line(line.indent - 1, line.text, line.place) for line in inner[1:]]

    def s_while_stmt(self, cursor: Any) -> None:
        children = list(cursor.get_children())
        *declared, condition, body = children
        start = len(self.lines)
        test = self.text(condition) if not declared else ""
        if declared or len(self.lines) > start:
            del self.lines[start:]
            with self.block("while True:"):
                for d in declared:
                    self.declaration(d)
                with self.block(f"if {_negated(self.expression(condition))}:"):
                    self.emit("break")
                self.looped(body, Loop())
            return
        with self.block(f"while {test}:"):
            self.looped(body, Loop())

    def looped(self, body: Any, loop: Loop) -> None:
        self.loops.append(loop)
        self.turns += 1
        self.nested(body)
        self.turns -= 1
        self.loops.pop()

    def s_do_stmt(self, cursor: Any) -> None:
        body, condition = cursor.get_children()
        if evaluated(condition) == 0 and not _jumps(body):
            self.nested(body)
            return
        with self.block("while True:"):
            self.looped(body, Loop(condition=condition))
            with self.block(f"if {_negated(self.expression(condition))}:"):
                self.emit("break")

    def s_for_stmt(self, cursor: Any) -> None:
        first, condition, step, body = self._parts_of_for(cursor)
        if first is not None:
            if first.kind.name == "DECL_STMT":
                self.s_decl_stmt(first)
            else:
                self.expression_statement(first)
        start = len(self.lines)
        test = "True" if condition is None else self.text(condition)
        hoisted = len(self.lines) > start
        if hoisted:
            del self.lines[start:]
        with self.block(f"while {'True' if hoisted else test}:"):
            if hoisted:
                with self.block(f"if {_negated(self.expression(condition))}:"):
                    self.emit("break")
            self.looped(body, Loop(step=step))
            if step is not None and not self._ended():
                self.expression_statement(step)

    def _ended(self) -> bool:
        last = self.lines[-1]
        return last.indent == self.indent and last.text.startswith(("return", "raise", "break", "continue"))

    def _parts_of_for(self, cursor: Any) -> tuple[Any, Any, Any, Any]:
        """Returns the initialization, the condition, the step and the body. The tree does not say which are left out."""
        children = list(cursor.get_children())
        *parts, body = children
        if len(parts) == 3:
            return (*parts, body)
        file, _, begin = place_of(self.unit, cursor)
        text = self.unit.files.get(file, "").encode()
        head = text[begin : place_of(self.unit, body)[2]].decode(errors="replace")
        opened = begin + len(head[: head.index("(") + 1].encode())
        marks, depth = [], 0
        for i, character in enumerate(head[head.index("(") + 1 :]):
            depth += (character in "([{") - (character in ")]}")
            if character == ";" and depth == 0:
                marks.append(opened + len(head[head.index("(") + 1 :][:i].encode()))
        if len(marks) != 2:
            raise Refused(f"the loop `{self.shown(cursor)}`")
        found: list[Any] = [None, None, None]
        for part in parts:
            place = place_of(self.unit, part)[2]
            found[(place > marks[0]) + (place > marks[1])] = part
        return (*found, body)

    def s_cxx_for_range_stmt(self, cursor: Any) -> None:
        children = list(cursor.get_children())
        declared = next(c for c in children if c.kind.is_declaration())
        body = children[-1]
        ranges = [c for c in children[:-1] if c.kind.is_expression()]
        if not ranges:
            raise Refused(f"the loop `{self.shown(cursor)}`")
        over = plain(ranges[-1].type)
        container = record_word(over)
        if over.kind.name == "RECORD" and container is None:
            raise Refused(f"the loop over `{self.shown(ranges[-1])}`")
        values = self.text(ranges[-1])
        if container is not None and container.name == "std::string":
            values = f"std.string_.characters({values})"
        places = f"{values}.places()" if container is None or hasattr(container.object, "places") else ""
        type = declared.type
        if declared.spelling.startswith("["):
            bound = [c for c in declared.get_children() if c.kind.name == "UNEXPOSED_DECL"]
            by_places = _binds_places(self.unit, declared)
            assigns = by_places and self.assigns(bound, plain(type))
            if assigns and not places:
                raise Refused(f"an assignment to the elements of `{values}`")
            item = self.new_name("item")
            with self.block(f"for {item} in {places if assigns else values}:"):
                if by_places:
                    self.bound_places(bound, item, plain(type))
                else:
                    self.bound_values(bound, f"copied({item})" if holds_values(type) else item, plain(type))
                self.looped(body, Loop())
            return
        by_reference = type.get_canonical().kind.name == "LVALUEREFERENCE"
        if by_reference and not is_value(type) and declared.hash in self.assigned:
            if not places:
                raise Refused(f"an assignment to the elements of `{values}`")
            name = self.declare(declared, boxed=True)
            with self.block(f"for {name} in {places}:"):
                self.looped(body, Loop())
            return
        boxed = self.is_boxed(declared)
        name = self.declare(declared, boxed=boxed)
        with self.block(f"for {name} in {values}:"):
            if is_value(type) and not is_reference(type):
                self.emit(f"{name} = {name}.copy()")
            elif not is_reference(type) and (holds_values(type) or self.has_state(type)):
                self.emit(f"{name} = copied({name})")
            if boxed:
                self.emit(f"{name} = Variable({name})")
            self.looped(body, Loop())

    def s_break_stmt(self, cursor: Any) -> None:
        if self.loops and self.loops[-1] is None:
            raise Refused("a break of this switch")
        self.emit("break")

    def s_continue_stmt(self, cursor: Any) -> None:
        loop = self.loops[-1] if self.loops else None
        if loop is not None and loop.flag:  # the switch around it is a loop of one turn
            self.emit(f"{loop.flag} = True")
            self.emit("break")
            return
        self.go_on(loop)

    def go_on(self, loop: Loop | None) -> None:
        """Writes ``continue`` with what C++ does before the next turn."""
        if loop is not None and loop.step is not None:
            self.expression_statement(loop.step)
        if loop is not None and loop.condition is not None:
            with self.block(f"if {_negated(self.expression(loop.condition))}:"):
                self.emit("break")
        self.emit("continue")

    def s_switch_stmt(self, cursor: Any) -> None:
        """Writes a switch. Sections stand one behind the other, and a value enters at its own."""
        children = list(cursor.get_children())
        while children[0].kind.is_declaration() or children[0].kind.name == "DECL_STMT":
            self.statement(children.pop(0))
        value, body = children
        sections = _sections(body)
        if sections is None:
            raise Refused(f"the switch `{self.shown(cursor)}`")
        held = self.new_name("case")
        self.emit(f"{held} = {self.text(value)}")
        tests = [self._test(held, labels) for labels, _ in sections]
        outer = next((loop for loop in reversed(self.loops) if loop is not None and not loop.flag), None)
        if all(_leaves(statements) and not _inner_break(statements) for _, statements in sections[:-1]) and not (
            _inner_break(sections[-1][1]) if sections else False
        ):
            self._chain(sections, tests, outer)
            return
        flag = self.new_name("next_turn")
        entry = self.new_name("section")
        order = [f"{i} if {test} else " for i, test in enumerate(tests) if test]
        default = next((i for i, test in enumerate(tests) if not test), len(sections))
        self.emit(f"{entry} = {''.join(order)}{default}")
        has_continue = any(_has_continue(s) for _, statements in sections for s in statements)
        if has_continue:
            self.emit(f"{flag} = False")
        with self.block("while True:"):
            self.loops.append(Loop(flag=flag))
            for i, (_, statements) in enumerate(sections):
                with self.block(f"if {entry} <= {i}:"):
                    self.body(statements, body)
            self.loops.pop()
            if not (self.lines[-1].indent == self.indent and self.lines[-1].text == "break"):
                self.emit("break")
        if has_continue:
            with self.block(f"if {flag}:"):
                if self.loops and self.loops[-1] is not None and self.loops[-1].flag:
                    self.emit(f"{self.loops[-1].flag} = True")
                    self.emit("break")
                else:
                    self.go_on(outer)

    def _chain(self, sections: list[tuple[list[Any], list[Any]]], tests: list[str], outer: Loop | None) -> None:
        """Writes the sections as ``if`` and ``elif``: each leaves the switch at its end."""
        ordered = [(t, s) for t, (_, s) in zip(tests, sections, strict=True) if t]
        default = [s for t, (_, s) in zip(tests, sections, strict=True) if not t]
        for i, (test, statements) in enumerate(ordered):
            with self.block(f"{'el' if i else ''}if {test}:"):
                self._section(statements)
        if default:
            if ordered:
                with self.block("else:"):
                    self._section(default[0])
            else:
                self._section(default[0])

    def _section(self, statements: list[Any]) -> None:
        kept = list(statements)
        while kept and kept[-1].kind.name == "BREAK_STMT":
            kept.pop()
        if len(kept) == 1 and kept[0].kind.name == "COMPOUND_STMT":
            inner = list(kept[0].get_children())
            while inner and inner[-1].kind.name == "BREAK_STMT":
                inner.pop()
            kept = inner
        for child in kept:
            self.statement(child)

    def _test(self, held: str, labels: list[Any]) -> str:
        """Returns the test of a section's labels; ``""`` for the default."""
        if any(label is None for label in labels):
            return ""
        values = [self.text(label) for label in labels]
        if len(values) == 1:
            return f"{held} == {values[0]}"
        return f"{held} in ({', '.join(values)})"

    def s_cxx_try_stmt(self, cursor: Any) -> None:
        body, *handlers = cursor.get_children()
        with self.block("try:"):
            self.nested(body)
        with self.block("except NotTranslated:"):  # which no handler of C++ catches
            self.emit("raise")
        for handler in handlers:
            parts = list(handler.get_children())
            declared = [c for c in parts if c.kind.name == "VAR_DECL"]
            block = parts[-1]
            kind = self.type_text(declared[0].type).strip("'").replace("::", ".") if declared else "Exception"
            if kind == "std.exception":  # every exception of words is one
                kind = "Exception"
            name = f" as {self.declare(declared[0])}" if declared and declared[0].spelling else ""
            with self.block(f"except {kind}{name}:"):
                self.nested(block)

    def s_goto_stmt(self, cursor: Any) -> None:
        raise Refused("a goto")

    s_label_stmt = s_goto_stmt

    # What the writer of functions has.

    assigned: set[int]

    def declare(self, cursor: Any, boxed: bool = False) -> str:
        raise NotImplementedError

    def knows(self, cursor: Any) -> bool:
        raise NotImplementedError

    def alias(self, cursor: Any, other: Any) -> None:
        raise NotImplementedError

    def write_lambda(self, cursor: Any, name: str = "") -> Expression:
        raise NotImplementedError


# What a statement of PYBIND11_MODULE defines.
_DEFINES = re.compile(r'(?:(?:class_|enum_)<[^;"]*>\s*\w*\(\s*\w+\s*,|\.def\w*\(|\.attr\()\s*"(\w+)"')
_SILENT = {
    "TYPEDEF_DECL", "TYPE_ALIAS_DECL", "USING_DECLARATION", "USING_DIRECTIVE", "STATIC_ASSERT", "UNEXPOSED_DECL",
    "NAMESPACE_ALIAS", "ENUM_DECL", "TYPE_ALIAS_TEMPLATE_DECL", "UNION_DECL", "FUNCTION_DECL",
}  # fmt: skip
# Statements that have statements inside, where an error may stand.
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


def _refusal(holder: str, why: str, names: list[str]) -> str:
    return f"{holder}.refuse({', '.join(map(repr, [why, *names]))})"


def _end_of(unit: Any, cursor: Any) -> int:
    from .tree import end_of

    return end_of(unit, cursor)


def _is_nothing(cursor: Any) -> bool:
    """Returns whether an expression is ``(void)0``."""
    inner = _stripped(cursor)
    if inner.kind.name != "CSTYLE_CAST_EXPR":
        return False
    parts = _expressions(inner)
    return bool(parts) and _stripped(parts[-1]).kind.name == "INTEGER_LITERAL"


def _negated(value: Expression) -> str:
    if value.text.startswith("not ") and value.rank == 3:
        return value.text[4:]
    for one, other in ((" == ", " != "), (" != ", " == "), (" is not ", " is ")):
        if (
            value.rank == 4
            and value.text.count(one) == 1
            and re.fullmatch(r"[\w.]+(\([\w., ]*\))?", value.text.split(one)[0])
        ):
            return value.text.replace(one, other)
    return f"not {value.at(4)}" if value.rank != 4 else f"not ({value.text})"


def _binds_places(unit: Any, cursor: Any) -> bool:
    """Returns whether names in brackets are references, ``auto& [a, b]``."""
    return re.match(r"(const\s+)?auto\s*(const\s*)?&", source_of(unit, cursor)) is not None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-\d.]+", text) is not None


def _walk(cursor: Any) -> Iterator[Any]:
    for child in cursor.get_children():
        yield child
        if child.kind.name != "LAMBDA_EXPR":
            yield from _walk(child)


def _jumps(body: Any) -> bool:
    return any(c.kind.name in ("BREAK_STMT", "CONTINUE_STMT") for c in _walk(body))


def _has_continue(statement: Any) -> bool:
    if statement.kind.name == "CONTINUE_STMT":
        return True
    if statement.kind.name in ("FOR_STMT", "WHILE_STMT", "DO_STMT", "CXX_FOR_RANGE_STMT", "LAMBDA_EXPR"):
        return False
    return any(map(_has_continue, statement.get_children()))


def _has_break(statement: Any) -> bool:
    if statement.kind.name == "BREAK_STMT":
        return True
    if statement.kind.name in ("FOR_STMT", "WHILE_STMT", "DO_STMT", "CXX_FOR_RANGE_STMT", "SWITCH_STMT", "LAMBDA_EXPR"):
        return False
    return any(map(_has_break, statement.get_children()))


def _sections(body: Any) -> list[tuple[list[Any], list[Any]]] | None:
    """Returns the sections of a switch: their labels, None for the default, and their statements."""
    if body.kind.name != "COMPOUND_STMT":
        return None
    sections: list[tuple[list[Any], list[Any]]] = []
    for child in body.get_children():
        if child.kind.name in ("CASE_STMT", "DEFAULT_STMT"):
            labels: list[Any] = []
            statement = child
            while statement is not None and statement.kind.name in ("CASE_STMT", "DEFAULT_STMT"):
                parts = list(statement.get_children())
                if statement.kind.name == "CASE_STMT":
                    labels.append(parts[0])
                    parts = parts[1:]
                else:
                    labels.append(None)
                statement = parts[-1] if parts else None
            sections.append((labels, [] if statement is None else [statement]))
        elif sections:
            sections[-1][1].append(child)
        elif child.kind.name != "DECL_STMT":
            return None
    return sections


def _leaves(statements: list[Any]) -> bool:
    """Returns whether statements leave the switch at their end."""
    if not statements:
        return False
    last = _stripped(statements[-1]) if statements[-1].kind.is_expression() else statements[-1]
    kind = last.kind.name
    if kind == "COMPOUND_STMT":
        return _leaves(list(last.get_children()))
    return kind in ("BREAK_STMT", "RETURN_STMT", "CXX_THROW_EXPR", "CONTINUE_STMT")


def _inner_break(statements: list[Any]) -> bool:
    """Returns whether a break of the switch stands anywhere but at the end of a section."""
    kept = list(statements)
    while kept and kept[-1].kind.name == "BREAK_STMT":
        kept.pop()
    if len(kept) == 1 and kept[0].kind.name == "COMPOUND_STMT":
        return _inner_break(list(kept[0].get_children()))
    return any(map(_has_break, kept))
