"""Writes one C++ function as Python."""

import re
from typing import Any

from .cursors import same_class, stripped
from .expression import Expression, Refused
from .lambdas import Lambdas, is_constant, parameters_of
from .tree import (
    evaluated,
    initializer,
    place_of,
    source_of,
)
from .types import (
    gives_place,
    is_reference,
    number,
    qualified,
)

__all__ = ["Writer", "of_kind"]


class Writer(Lambdas):
    """Writes one function.

    Args:
        program: the program of the function.
        function: its declaration.
    """

    def __init__(self, program: Any, function: Any, indent: int = 0) -> None:
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
            return Expression(self.program.device_variable(cursor))
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
                return Expression(repr(of_kind(value, number(cursor.type))))
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
        for i, child in enumerate(parameters_of(function)):
            taken = self.program.survey.takes_reference(function, i, child.type)
            wants = child.hash in self.boxes and not taken
            name = self.declare(child, boxed=taken or wants)
            if not taken and not wants:
                self.boxes.discard(child.hash)
            if wants:
                boxes.append(f"{name} = Variable({name})")
            default = self.default_of(child)
            if default is not None and not is_constant(default):  # C++ makes it anew for each call
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
        variadic = function.type.kind.name == "FUNCTIONPROTO" and function.type.is_function_variadic()
        texts += ["*_"] * variadic
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
                    if variadic:
                        raise Refused(f"`{function.spelling}`, which takes any number of arguments")
                    self.program.is_valid(function)
                except Refused as refused:
                    self.refuse(str(refused))
                else:
                    self.s_compound_stmt(body)

    def whole_registration(self, variable: Any, name: str) -> None:
        """Writes the initializer of a variable that registers operators as a function."""
        file, line, _ = place_of(self.unit, variable)
        self.here = (file, line)
        self.module = self.word_name("c10::RegisterOperators") + "()"
        with self.block(f"def {name}():"):
            try:
                start = stripped(initializer(variable))
                while len(copied := self.written(start)) == 1 and same_class(copied[0].type, start.type):
                    start = stripped(copied[0])
                if links := self.links(start):
                    self.chain(links)
                else:
                    self.without_problems([start])
                    self.emit(self.text(start))
            except Refused as refused:
                self.refuse(str(refused))

    def signature(self, function: Any, name: str) -> str:
        """Returns the decorator that has the types of the parameters, for calls from Python."""
        parameters = []
        for i, child in enumerate(parameters_of(function)):
            default = self.default_of(child)
            try:
                type = self.type_text(child.type)
            except Refused:
                type = repr(child.type.spelling)
            if self.program.survey.takes_reference(function, i, child.type):
                type = f'("&", {type})'
            given = "" if default is None or not is_constant(default) else f", {default}"
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


def of_kind(value: Any, kind: Any) -> Any:
    return kind(value) if kind is not None else value


def _returned_by(cursor: Any) -> Any:
    """Returns the type of the first value that a lambda returns, or None."""
    for child in cursor.get_children():
        if child.kind.name == "RETURN_STMT":
            return next((value.type for value in child.get_children()), None)
        if child.kind.name != "LAMBDA_EXPR" and (found := _returned_by(child)) is not None:
            return found
    return None
