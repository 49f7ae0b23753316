"""Finds which variables a function assigns, and of which a reference or an address is taken.

Python's variables are not places. A variable that another function assigns through a reference lives in a
:class:`.references.Variable`, and a parameter that is a reference takes one where its function assigns it.
"""

from typing import Any

from .cursors import calls_result
from .tree import clang, operator_of
from .types import gives_place, holds_reference, is_owner, is_reference, is_value, number, plain, qualified, record_word
from .words import words

__all__ = ["Survey"]

_STEPS = ("++", "--", "x++", "x--")


class Survey:
    """How the functions of a program use their variables.

    Args:
        unit: the parsed program.
    """

    def __init__(self, unit: Any) -> None:
        self.unit = unit
        self._found: dict[int, tuple[set[int], set[int]]] = {}
        self._changes: dict[str, bool] = {}

    def assigned(self, function: Any) -> set[int]:
        """Returns the hashes of the variables that a function assigns, itself or through a reference."""
        return self._of(function)[0]

    def boxed(self, function: Any) -> set[int]:
        """Returns the hashes of the variables that need a place of their own."""
        return self._of(function)[1]

    def takes_reference(self, function: Any, index: int, type: Any) -> bool:
        """Returns whether an argument is passed as a :class:`.references.Reference`: the function may assign it."""
        type = type.get_canonical()
        if type.kind.name != "LVALUEREFERENCE" or is_value(type):
            return False
        if type.get_pointee().is_const_qualified():  # a member may be bound to it
            return function.kind.name == "CONSTRUCTOR" and self.unit.mine(function) and self._is_kept(function, index)
        if type.get_pointee().get_canonical().kind.name == "FUNCTIONPROTO":
            return False
        if not self.unit.mine(function):
            return not function_is_operator(function, type) and not _forwards(function, index)
        definition = self.unit.definition(function) or function
        parameters = [c for c in definition.get_arguments() if c is not None]
        return index < len(parameters) and parameters[index].hash in self.assigned(definition)

    def _is_kept(self, constructor: Any, index: int) -> bool:
        """Returns whether a constructor binds a member to a parameter."""
        definition = self.unit.definition(constructor) or constructor
        parameters = [c for c in definition.get_arguments() if c is not None]
        bound = [_stripped(value) for _, value in _members_bound(definition)]
        named = {b.referenced.hash for b in bound if b.kind.name == "DECL_REF_EXPR" and b.referenced is not None}
        return index < len(parameters) and parameters[index].hash in named

    def changes(self, method: Any) -> bool:
        """Returns whether a method of a word without Python methods changes its object, which is then a reference.

        Strings and optionals are immutable in Python.
        """
        key = method.get_usr()
        if key not in self._changes:
            parent = method.semantic_parent
            word = words().get(qualified(parent))
            immutable = word is not None and bool(word.methods) and word.name != "at::Tensor"
            constant = method.is_const_method() or method.is_static_method()
            alike = [c for c in parent.get_children() if c.spelling == method.spelling and c.is_const_method()]
            self._changes[key] = immutable and not constant and not alike
        return self._changes[key]

    def _of(self, function: Any) -> tuple[set[int], set[int]]:
        key = function.hash
        if key not in self._found:
            self._found[key] = (set(), set())  # a recursive function asks again
            assigned: set[int] = set()
            boxed: set[int] = set()
            self._walk(function, assigned, boxed)
            if gives_place(function):
                for place in _returned(function):
                    _add(assigned, place)
                    _add(boxed, place)
            for name, other, is_part in reversed(_aliases(function)):
                for found in (assigned, boxed):
                    if name in found or (is_part and name in assigned):
                        found.add(other)
            inner = [c for c in function.walk_preorder() if c.kind.name == "LAMBDA_EXPR"]
            parameters = {
                c.hash
                for of in (function.get_arguments(), *(lambda_.get_children() for lambda_ in inner))
                for c in of
                if c is not None and c.kind.name == "PARM_DECL" and is_reference(c.type) and not is_value(c.type)
            }
            self._found[key] = (assigned, boxed | (parameters & assigned))
        return self._found[key]

    def _walk(self, cursor: Any, assigned: set[int], boxed: set[int]) -> None:
        kind = cursor.kind.name
        children = list(cursor.get_children())
        if (
            kind == "BINARY_OPERATOR" and children and operator_of(cursor) == "="
        ) or kind == "COMPOUND_ASSIGNMENT_OPERATOR":
            self._assign(children[0], assigned, boxed)
        elif kind == "UNARY_OPERATOR" and children:
            operator = operator_of(cursor)
            if operator in _STEPS:
                self._assign(children[-1], assigned, boxed)
            elif operator == "&":
                for place in (assigned, boxed):
                    _add(place, children[-1], values=False)
                    for owner in self._owners(children[-1]):
                        _add(place, owner)
        elif kind == "VAR_DECL" and is_reference(cursor.type):
            pointee = cursor.type.get_canonical().get_pointee()
            if children and _is_number_like(pointee):
                if not pointee.is_const_qualified():
                    _add(assigned, children[-1])
                if _stripped(children[-1]).kind.name == "CONDITIONAL_OPERATOR":
                    _add(boxed, children[-1])
        elif kind == "CALL_EXPR" and cursor.referenced is not None:
            self._call(cursor, assigned, boxed)
        elif kind in ("CONSTRUCTOR", "INIT_LIST_EXPR"):
            for _, value in _members_bound(cursor):
                _add(assigned, value)
                _add(boxed, value)
        for child in children:
            self._walk(child, assigned, boxed)

    def _assign(self, place: Any, assigned: set[int], boxed: set[int]) -> None:
        """Records an assignment. An assignment to a part of an immutable object, ``p.first`` or ``*o``, assigns the
        variable of the object."""
        _add(assigned, place)
        inner = _stripped(place)
        if inner.kind.name == "CONDITIONAL_OPERATOR":  # `(c ? a : b) = x` finds the place first
            _add(boxed, place, values=False)
        for owner in self._owners(inner):
            _add(assigned, owner)
            _add(boxed, owner)

    def _owners(self, place: Any) -> list[Any]:
        """Returns the immutable objects of which a place may be a part."""
        inner = _stripped(place)
        owners: list[Any] = []
        if inner.kind.name == "MEMBER_REF_EXPR":
            owners = [c for c in inner.get_children() if c.kind.is_expression()][:1]
        elif inner.kind.name == "CALL_EXPR" and inner.referenced is not None and not self.unit.mine(inner.referenced):
            owners = [a for a in inner.get_arguments() if a is not None]
            callee = next(iter(inner.get_children()), None)
            if callee is not None and callee.kind.name == "MEMBER_REF_EXPR":
                owners += [c for c in callee.get_children() if c.kind.is_expression()][:1]
        words_of = [(owner, record_word(owner.type)) for owner in owners]
        return [
            o
            for o, word in words_of
            if word is not None and (word.methods or number(o.type) is not None) and word.name != "at::Tensor"
        ]

    def _call(self, cursor: Any, assigned: set[int], boxed: set[int]) -> None:
        declared = cursor.referenced
        if calls_result(cursor) or declared.kind.name not in ("FUNCTION_DECL", "CXX_METHOD", "CONSTRUCTOR"):
            return
        arguments = list(cursor.get_arguments())
        name = declared.spelling
        if name.startswith("operator") and name.endswith("=") and name not in _COMPARISONS and arguments:
            if arguments[0] is not None and (name == "operator=" or not _is_tensor(arguments[0].type)):
                self._assign(arguments[0], assigned, boxed)
            if not self.unit.mine(declared):
                return
        if declared.type.kind.name != "FUNCTIONPROTO":
            return
        if declared.kind.name == "CXX_METHOD" and not self.unit.mine(declared) and self.changes(declared):
            callee = next(iter(cursor.get_children()))
            for owner in list(callee.get_children())[:1]:
                for place in (assigned, boxed):
                    _add(place, owner)
        if name == "move" and arguments and arguments[0] is not None and is_owner(arguments[0].type):
            self._assign(arguments[0], assigned, boxed)
            _add(boxed, arguments[0])
        types = list(declared.type.argument_types())
        if name.startswith("operator") and declared.kind.name == "CXX_METHOD":
            arguments = arguments[1:]
        for i, (argument, type) in enumerate(zip(arguments, types, strict=False)):
            if (
                argument is not None
                and type.get_canonical().kind.name == "LVALUEREFERENCE"
                and self.takes_reference(declared, i, type)
            ):
                _add(assigned, argument, values=False)
                _add(boxed, argument, values=False)


_COMPARISONS = {"operator==", "operator!=", "operator<=", "operator>="}


def _members_bound(cursor: Any) -> list[tuple[Any, Any]]:
    """Returns the members that a constructor or a list binds to places, with these."""
    children = list(cursor.get_children())
    pairs: list[tuple[Any, Any]]
    if cursor.kind.name == "CONSTRUCTOR":
        named = [(c.referenced, i) for i, c in enumerate(children[:-1]) if c.kind.name == "MEMBER_REF"]
        pairs = [(member, children[i + 1]) for member, i in named]
    else:
        type = plain(cursor.type)
        fields = list(type.get_fields()) if type.kind.name == "RECORD" and record_word(type) is None else []
        pairs = list(zip(fields, [c for c in children if c.kind.is_expression()], strict=False))
    return [(member, value) for member, value in pairs if holds_reference(member.type)]


def _forwards(function: Any, index: int) -> bool:
    """Returns whether a word takes an argument by ``T&&`` of a template, which refers to a variable only to copy it."""
    template = clang().conf.lib.clang_getSpecializedCursorTemplate(function)
    parameters = [c for c in template.get_children() if c.kind.name == "PARM_DECL"] if template is not None else []
    return bool(parameters) and "&&" in parameters[min(index, len(parameters) - 1)].type.spelling


def function_is_operator(function: Any, type: Any) -> bool:
    """Returns whether a word takes a tensor, or a stream of text, by reference without assigning the variable."""
    word = record_word(type)
    if word is None:
        return "(lambda" in plain(type).spelling
    if word.name in ("std::string", "std::optional", "std::pair", "std::tuple"):
        return False
    if word.name == "at::Tensor":
        parent = function.semantic_parent
        return parent is not None and parent.spelling in ("at", "Tensor")
    return not word.methods or word.name.startswith("std::basic_") or word.name.endswith("stream")


def _aliases(cursor: Any) -> list[tuple[int, int, bool]]:
    """Returns the references that are another name of a variable, ``int& r = x``, with the variable, in their order.

    The last item is true for the name of an element of a tuple, ``auto& [a, b] = x``.
    """
    found = []
    for child in cursor.walk_preorder():
        bound = []
        if child.kind.name == "UNEXPOSED_DECL" and child.spelling.startswith("["):
            bound = [c for c in child.get_children() if c.kind.name == "UNEXPOSED_DECL"]
        if bound or (child.kind.name == "VAR_DECL" and is_reference(child.type)):
            start = next((c for c in reversed(list(child.get_children())) if c.kind.is_expression()), None)
            inner: Any = _stripped(start) if start is not None else None
            named = inner is not None and inner.kind.name == "DECL_REF_EXPR" and inner.referenced is not None
            if named and not (bound and is_value(inner.type)):
                found += [(name.hash, inner.referenced.hash, bool(bound)) for name in bound or [child]]
    return found


def _returned(cursor: Any) -> list[Any]:
    """Returns the expressions that a function returns, without those of its lambdas."""
    found = []
    for child in cursor.get_children():
        if child.kind.name == "RETURN_STMT":
            found += [c for c in child.get_children() if c.kind.is_expression()]
        elif child.kind.name != "LAMBDA_EXPR":
            found += _returned(child)
    return found


def _is_tensor(type: Any) -> bool:
    word = record_word(type)
    return word is not None and word.name == "at::Tensor"


def _is_number_like(type: Any) -> bool:
    return not is_value(type) and not _is_tensor(type)


def _stripped(cursor: Any) -> Any:
    while cursor.kind.name in ("UNEXPOSED_EXPR", "PAREN_EXPR"):
        inner = [c for c in cursor.get_children() if c.kind.is_expression()]
        if not inner:
            break
        cursor = inner[-1]
    return cursor


def _add(found: set[int], cursor: Any, values: bool = True) -> None:
    """Adds the variable that an expression names, or both of a condition."""
    cursor = _stripped(cursor)
    if cursor.kind.name == "CONDITIONAL_OPERATOR":
        for branch in [c for c in cursor.get_children() if c.kind.is_expression()][1:]:
            _add(found, branch, values)
    if cursor.kind.name == "DECL_REF_EXPR" and cursor.referenced is not None and (values or not is_value(cursor.type)):
        found.add(cursor.referenced.hash)
