"""Writes C++ lambdas as Python functions."""

import re
from typing import Any

from .blocks import Line
from .expression import ATOM, Expression, Refused
from .statements import Statements
from .tree import (
    initializer,
    source_of,
)
from .types import (
    holds_values,
    is_mutable,
    is_reference,
    is_value,
)

__all__ = ["Lambdas", "is_constant", "parameters_of"]


class Lambdas(Statements):
    """The part of a function's writer that writes lambdas."""

    bound: dict[int, str]
    boxes: set[int]
    frames: list[tuple[set[str], set[str]]]
    root: Any
    instances: dict[int, str]
    _put_back: set[int]

    def default_of(self, cursor: Any) -> str | None:
        raise NotImplementedError

    def signature(self, function: Any, name: str) -> str:
        raise NotImplementedError

    # Lambdas

    def write_lambda(self, cursor: Any, name: str = "") -> Expression:
        """Writes a lambda as a function before the statement that contains it."""
        children = list(cursor.get_children())
        parameters = [c for c in children if c.kind.name == "PARM_DECL"]
        body = children[-1]
        if body.kind.name != "COMPOUND_STMT":
            raise Refused(f"the lambda `{self.shown(cursor)}`")
        name = name or self.new_name("function")
        if _is_generic(cursor.type.get_declaration()):
            return self._generic(cursor, name)
        return self._one_lambda(cursor, name, parameters, body, children)

    def _generic(self, cursor: Any, name: str) -> Expression:
        """Writes the instances of a generic lambda that the function calls, and that the functions call which get the lambda."""
        found: dict[int, Any] = {}
        place = cursor.type.get_declaration().location
        passed = called = False  # to functions of the program; to words, which call it
        functions, seen = [self.root], {self.root.hash}
        for function in functions:
            for call in (
                c for c in function.walk_preorder() if c.kind.name == "CALL_EXPR" and c.referenced is not None
            ):
                declared = call.referenced
                if declared.spelling == "operator()" and declared.semantic_parent.location == place:
                    found.setdefault(declared.hash, declared)
                    mine = function is self.root or self.unit.mine(function)
                    passed |= mine and function is not self.root
                    called |= not mine
                elif declared.hash not in seen and any(
                    "(lambda" in a.type.spelling for a in call.get_arguments() if a is not None
                ):
                    seen.add(declared.hash)
                    functions.append(self.unit.definition(declared) or declared)
        if not found:
            raise Refused(f"the generic lambda `{self.shown(cursor)}`, which no function of the program calls")
        if called and (passed or len(found) > 1):
            raise Refused(f"the generic lambda `{self.shown(cursor)}`, which the library calls with several types")
        children = list(cursor.get_children())
        listed = []
        for declared in found.values():
            body = next(c for c in declared.get_children() if c.kind.name == "COMPOUND_STMT")
            held = name if len(found) == 1 and not passed else self.new_name(name)
            self.instances[declared.hash] = held
            self.boxes |= self.program.survey.boxed(declared)
            self.assigned |= self.program.survey.assigned(declared)
            self._one_lambda(cursor, held, parameters_of(declared), body, children)
            listed.append(f"{self.program.instance_key(declared)}: {held}")
        if passed:
            self.emit(f"{name} = {{{', '.join(listed)}}}")
        return Expression(name if passed else held)

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
                # Python's loop reassigns its variables in each iteration.
                has_state = self.has_state(declared.type)
                if (
                    unchanged
                    and not has_state
                    and not is_value(declared.type)
                    and not self.is_boxed(declared)
                    and not self.turns
                ):
                    continue
                value = self.variable(declared).text
                value = f"{value}.copy()" if is_value(declared.type) else f"copied({value})" if has_state else value
            else:
                start = initializer(declared)
                if start is None:
                    raise Refused(f"the lambda `{self.shown(cursor)}`")
                value = self.initial(start, declared.type)
            held = self.new_name(declared.spelling)
            copies.append(f"{held}={value}")
            self.bound[declared.hash] = held
            self._unboxed(declared.hash)
            copies_too = is_value(declared.type) or holds_values(declared.type) or self.has_state(declared.type)
            owned.append((held, copies_too))
        saved_loops, self.loops = self.loops, []
        saved_boxes = set(self.boxes) | self._put_back
        self.frames.append((set(), set()))
        for copy in copies:
            self.frames[-1][0].add(copy.split("=")[0])
        texts, boxes, places = [], [], False
        for child in parameters:
            wants = child.hash in self.boxes
            taken = is_reference(child.type) and wants
            places |= taken
            held = self.declare(child, boxed=wants)
            default = self.default_of(child)
            if default is not None and not is_constant(default):
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
        if self.program.current.startswith("cupyops_"):  # a bound function has the types of its parameters
            self.program.signed.add(name)
            self.emit(self.signature(cursor, name))
        # A lambda that changes its captures is made by a function around it, so that a copy of the lambda has its own
        # captures.
        maker = self.new_name(f"make_{name}") if is_mutable(cursor.type) else ""
        if maker:
            self.emit(f"def {maker}({', '.join(held for held, _ in owned)}):")
            self.indent += 1
        start = len(self.lines)
        with self.block(f"def {name}({', '.join([*texts, *(() if maker else copies)])}):"):
            for box in boxes:
                self.emit(box)
            self.s_compound_stmt(body)
        if places:
            self.emit(f"{name}.takes_places = True")
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

    def instance(self, declared: Any, callee: Any) -> str:
        if declared.hash in self.instances:
            return self.instances[declared.hash]
        if not _is_generic(declared.semantic_parent):
            return ""
        return f"{self.text(callee, ATOM)}[{self.program.instance_key(declared)}]"


def _is_generic(declared: Any) -> bool:
    """Returns whether the class of a lambda is that of a generic one."""
    return any(c.kind.name == "FUNCTION_TEMPLATE" and c.spelling == "operator()" for c in declared.get_children())


def _captures(source: str) -> tuple[set[str], bool]:
    """Returns the names that a lambda captures by value, and whether it captures all other names by value, too."""
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


def is_constant(text: str) -> bool:
    """Returns whether the text of a default is a value that all calls may share."""
    return (
        re.fullmatch(r"None|True|False|-?[\d.]+(e[-+]?\d+)?|'[^'\\]*'|\w+(\.\w+)+|float\(\"-?\w+\"\)", text) is not None
    )


def parameters_of(function: Any) -> list[Any]:
    """Returns the parameters of a function. Its children have those of function types, too."""
    if function.kind.name == "LAMBDA_EXPR":
        return [c for c in function.get_children() if c.kind.name == "PARM_DECL"]
    return [c for c in function.get_arguments() if c is not None]
