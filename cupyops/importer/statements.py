"""Writes C++ statements as Python."""

import ast
import re
from typing import Any

from .blocks import Line, end_offset, refusal_of
from .cursors import record_of, stripped, subexpressions
from .expression import Refused
from .loops import Loops, negated
from .tree import evaluated, operator_of, place_of, source_of
from .types import is_reference, is_value, number, plain, record_word

__all__ = ["Statements"]


class Statements(Loops):
    """Expressions as statements, returns, branches and handlers: the part of a function's writer that writes statements."""

    # Expressions as statements

    def expression_statement(self, cursor: Any) -> None:
        inner = stripped(cursor)
        kind = inner.kind.name
        if kind == "CXX_THROW_EXPR":
            parts = subexpressions(inner)
            if parts and plain(parts[0].type).kind.name != "RECORD":
                raise Refused(f"`{self.shown(inner)}`, which throws no object of a class")
            self.emit(f"raise {self.text(parts[0])}" if parts else "raise")
            return
        if kind == "CSTYLE_CAST_EXPR" and plain(inner.type).kind.name == "VOID":
            parts = subexpressions(inner)
            inner = stripped(parts[-1]) if parts else inner
            kind = inner.kind.name
            if kind in ("DECL_REF_EXPR", "INTEGER_LITERAL", "CSTYLE_CAST_EXPR"):
                return
        if kind == "BINARY_OPERATOR" and operator_of(inner) == ",":
            for part in subexpressions(inner):
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
        """Returns the calls of a chain ``m.def(...).def(...)``, the last call first, and then the object, ``m``."""
        found = []
        while (
            cursor.kind.name == "CALL_EXPR"
            and cursor.referenced is not None
            and cursor.referenced.kind.name == "CXX_METHOD"
        ):
            owner = subexpressions(next(iter(cursor.get_children())))[:1]
            if not owner or not record_of(cursor.referenced).startswith(("pybind11::", "c10::RegisterOperators")):
                break
            found.append((cursor, owner[0]))
            cursor = stripped(owner[0])
        return found

    def without_problems(self, parts: list[Any]) -> None:
        """Refuses expressions in which clang found an error."""
        for problem in (p for part in parts for p in self.program.problems_in(part)):
            raise Refused(f"what clang refuses: {problem.message}")

    def chain(self, links: list[Any]) -> None:
        """Writes a chain of definitions as one statement each, so that a definition without a translation does not
        affect the others."""
        base = links[-1][1]
        holder = self.text(base)
        if not holder.isidentifier():
            value, holder = holder, self.new_name("bound")
            self.emit(f"{holder} = {value}")
        for link, owner in reversed(links):
            self.held[owner.hash] = holder
            file, line, _ = place_of(self.unit, next(iter(self.written(link)), link))
            start = len(self.lines)
            try:
                self.without_problems(self.written(link))
                text = self.text(link)
                self.emit(text)
            except Refused as refused:
                del self.lines[start:]
                why = f"{self.program.shown_file(file)}:{line}: no translation of {refused}"
                self.program.refused((file, line), str(refused))
                names = [self.text(a) for a in self.written(link)[:1] if stripped(a).kind.name == "STRING_LITERAL"]
                self.emit(refusal_of(holder, why, [ast.literal_eval(name) for name in names]))

    def conditional_statement(self, cursor: Any) -> None:
        condition, then, other = subexpressions(cursor)
        empty = [_is_nothing(then), _is_nothing(other)]
        test = self.expression(condition)
        if empty[0] and not empty[1]:
            with self.block(f"if {negated(test)}:"):
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
                lambda_ = stripped(right)
                if lambda_.kind.name == "LAMBDA_EXPR":
                    value = self.write_lambda(lambda_).text
            return f"{self.place(left)} = {value}"
        if operator in ("+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=") and len(arguments) == 2:
            inner = stripped(arguments[0])
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
        parts = subexpressions(cursor)
        if not parts:
            self.emit("return")
            return
        if stripped(parts[0]).kind.name == "CALL_EXPR" and plain(parts[0].type).kind.name == "VOID":
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
        inner = stripped(cursor)
        while inner.kind.name == "CALL_EXPR":
            declared = inner.referenced
            arguments = [a for a in inner.get_arguments() if a is not None]
            if declared is None or declared.kind.name != "CONSTRUCTOR" or len(arguments) != 1:
                return False
            inner = stripped(arguments[0])
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
        inner = stripped(condition)
        is_negated = inner.kind.name == "UNARY_OPERATOR" and operator_of(inner) == "!"
        test = negated(self.expression(subexpressions(inner)[0])) if is_negated else self.text(condition)
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
        piece = text[end_offset(self.unit, first) : place_of(self.unit, second)[2]].decode(errors="replace")
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

    def s_cxx_try_stmt(self, cursor: Any) -> None:
        body, *handlers = cursor.get_children()
        with self.block("try:"):
            self.nested(body)
        with self.block("except NotTranslated:"):  # C++ handlers must not catch it
            self.emit("raise")
        for handler in handlers:
            parts = list(handler.get_children())
            declared = [c for c in parts if c.kind.name == "VAR_DECL"]
            block = parts[-1]
            kind = self.type_text(declared[0].type).strip("'").replace("::", ".") if declared else "Exception"
            if kind == "std.exception":  # every exception class of the words is one
                kind = "Exception"
            name = f" as {self.declare(declared[0])}" if declared and declared[0].spelling else ""
            with self.block(f"except {kind}{name}:"):
                self.nested(block)

    def s_goto_stmt(self, cursor: Any) -> None:
        raise Refused("a goto")

    s_label_stmt = s_goto_stmt


def _is_nothing(cursor: Any) -> bool:
    """Returns whether an expression is ``(void)0``."""
    inner = stripped(cursor)
    if inner.kind.name != "CSTYLE_CAST_EXPR":
        return False
    parts = subexpressions(inner)
    return bool(parts) and stripped(parts[-1]).kind.name == "INTEGER_LITERAL"


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-\d.]+", text) is not None
