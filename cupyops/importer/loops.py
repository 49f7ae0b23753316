"""Writes C++ loops and switches as Python."""

import re
from collections.abc import Iterator
from typing import Any

from .blocks import Blocks, Loop, binds_places
from .cursors import stripped
from .expression import Expression, Refused
from .tree import evaluated, place_of
from .types import holds_values, is_reference, is_value, plain, record_word

__all__ = ["Loops", "negated"]


class Loops(Blocks):
    """Loops and switches."""

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
                with self.block(f"if {negated(self.expression(condition))}:"):
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
            with self.block(f"if {negated(self.expression(condition))}:"):
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
                with self.block(f"if {negated(self.expression(condition))}:"):
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
            by_places = binds_places(self.unit, declared)
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
        if loop is not None and loop.flag:  # the switch around it is written as a loop of one iteration
            self.emit(f"{loop.flag} = True")
            self.emit("break")
            return
        self.go_on(loop)

    def go_on(self, loop: Loop | None) -> None:
        """Writes ``continue`` after the code that C++ runs before the next iteration."""
        if loop is not None and loop.step is not None:
            self.expression_statement(loop.step)
        if loop is not None and loop.condition is not None:
            with self.block(f"if {negated(self.expression(loop.condition))}:"):
                self.emit("break")
        self.emit("continue")

    def s_switch_stmt(self, cursor: Any) -> None:
        """Writes a switch. Its sections are written one after another, and a value begins at the section of its case."""
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


def negated(value: Expression) -> str:
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
    last = stripped(statements[-1]) if statements[-1].kind.is_expression() else statements[-1]
    kind = last.kind.name
    if kind == "COMPOUND_STMT":
        return _leaves(list(last.get_children()))
    return kind in ("BREAK_STMT", "RETURN_STMT", "CXX_THROW_EXPR", "CONTINUE_STMT")


def _inner_break(statements: list[Any]) -> bool:
    """Returns whether the switch has a break anywhere but at the end of a section."""
    kept = list(statements)
    while kept and kept[-1].kind.name == "BREAK_STMT":
        kept.pop()
    if len(kept) == 1 and kept[0].kind.name == "COMPOUND_STMT":
        return _inner_break(list(kept[0].get_children()))
    return any(map(_has_break, kept))
