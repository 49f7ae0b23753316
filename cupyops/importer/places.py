"""Writes C++ names, members and elements in Python, and references and pointers to them."""

from typing import Any

from .conversions import Conversions
from .cursors import (
    enumerator_value,
    is_array_place,
    is_characters,
    only_part,
    python_name,
    record_of,
    stripped,
    subexpressions,
)
from .expression import ATOM, OR, SUM, UNARY, Expression, Refused, call
from .numbers import Number
from .tree import evaluated, operator_of, template_arguments
from .types import (
    gives_place,
    holds_reference,
    is_value,
    number,
    plain,
    qualified,
    record_word,
    type_arguments,
)
from .words import known

__all__ = ["Places"]


class Places(Conversions):
    """Names, members and elements, with their references and addresses."""

    # Names

    def _decl_ref_expr(self, cursor: Any) -> Expression:
        declared = cursor.referenced
        if declared is None or declared.kind.name in ("TEMPLATE_NON_TYPE_PARAMETER",):
            value = evaluated(cursor)
            if value is None:
                inner = [c for c in cursor.get_children() if c.kind.is_expression()]
                if inner:
                    return self.expression(inner[-1])
                raise Refused(f"`{self.shown(cursor)}`, whose value clang does not tell")
            found = number(cursor.type)
            if found is not None and found.name == "bool_":
                return Expression("True" if value else "False")
            return Expression(str(value), ATOM if value >= 0 else UNARY)
        kind = declared.kind.name
        if kind in ("PARM_DECL", "VAR_DECL", "UNEXPOSED_DECL"):
            return self.variable(declared)
        if kind in ("FUNCTION_DECL", "CXX_METHOD"):
            return self.function(declared, cursor)
        if kind == "ENUM_CONSTANT_DECL":
            name = qualified(declared)
            if name in self.program.words:
                return Expression(self.word_name(name))
            value = enumerator_value(declared)
            return Expression(str(value), ATOM if value >= 0 else UNARY)
        raise Refused(f"`{self.shown(cursor)}`")

    def function(self, declared: Any, cursor: Any) -> Expression:
        """Returns a function as a value."""
        name = qualified(declared)
        if self.program.is_kernel(declared):
            return Expression(f"kernels[{self.program.kernel(declared, cursor)!r}]")
        if not self.unit.mine(declared):
            if not known(name):
                raise Refused(f"`{name}`, which has no Python meaning")
            return Expression(self.word_name(name))
        if declared.kind.name == "CXX_METHOD" and not declared.is_static_method():
            if self.program.binds_classes:  # a method that a Python class binds
                return Expression(f"{self.program.struct_of(declared)}.{self.program.method(declared)}")
            raise Refused(f"a pointer to the method `{name}`")
        if cursor.kind.name != "CALL_EXPR" and gives_place(declared):
            raise Refused(f"a pointer to `{name}`, which returns a reference")
        if declared.kind.name == "CXX_METHOD":
            return Expression(f"{self.program.struct_of(declared)}.{self.program.method(declared)}")
        found = self.program.function(declared)
        if cursor.kind.name != "CALL_EXPR":  # its address is taken: Python may call it
            self.program.signed.add(found)
        return Expression(found)

    def word_name(self, name: str) -> str:
        return self.program.word_name(name)

    def template_arguments(self, declared: Any) -> list[str]:
        """Returns the template arguments of a specialisation for a typed word.

        libclang does not report those of a method. Its result has them: ``T*``, ``T``, or a class of them.
        """
        if declared.kind.name == "CXX_METHOD" and not declared.is_static_method():
            result = plain(declared.result_type)
            if result.kind.name == "POINTER":
                return [self.type_text(result.get_pointee())]
            if number(result) is None and result.kind.name == "RECORD":
                inner = self.template_arguments(result.get_declaration())
                return inner or [self.type_text(result)]
            return [self.type_text(result)]
        given = template_arguments(declared)
        if not given and declared.kind.name == "CXX_METHOD":  # of the class
            given = template_arguments(declared.semantic_parent)
        return [str(a) if isinstance(a, int) else self.type_text(a) for a in given if a is not None]

    def argument_types(self, type: Any) -> list[str]:
        """Returns the template arguments of a class of words. Those of a pack follow one another."""
        declared = template_arguments(plain(type).get_declaration())
        if None in declared:
            return [self.type_text(a) for a in type_arguments(type)]
        return [str(a) if isinstance(a, int) else self.type_text(a) for a in declared]

    def _member_ref_expr(self, cursor: Any) -> Expression:
        declared = cursor.referenced
        if declared is not None and declared.kind.name == "VAR_DECL":  # a static member
            return self.variable(declared)
        if declared is not None and declared.kind.name == "ENUM_CONSTANT_DECL":
            return Expression(str(enumerator_value(declared)))
        owner = self.owner(cursor)
        if declared is None or declared.kind.name != "FIELD_DECL":
            raise Refused(f"`{self.shown(cursor)}`")
        parent = record_of(declared)
        found = self.program.words.get(parent)
        if found is not None and isinstance(found.object, Number):
            return call(f"{found.object.name}.bits", owner.text)
        if found is not None and found.methods:
            return call(f"{self.method_space(found)}.{python_name(declared.spelling)}", owner.text)
        value = ".value" if holds_reference(declared.type) else ""
        return Expression(f"{owner.at(ATOM)}.{self.program.member(declared)}{value}")

    def owner(self, cursor: Any) -> Expression:
        """Returns the object of a member: ``p->x`` and ``p.x`` are the same, and ``x`` in a method is ``self.x``."""
        inner = [child for child in cursor.get_children() if child.kind.is_expression()]
        if not inner:
            return Expression("self")
        base = inner[0]
        if base.hash in self.held:
            return Expression(self.held[base.hash])
        value = self.expression(base)
        arrow = stripped(base).kind.name == "CALL_EXPR" and stripped(base).spelling == "operator->"
        if plain(base.type).kind.name == "POINTER" and not arrow and value.text != "self":
            return Expression(f"{value.at(ATOM)}[0]")
        return value

    def method_space(self, found: Any) -> str:
        return str(found.methods).replace("::", ".")

    def _array_subscript_expr(self, cursor: Any) -> Expression:
        base, index = subexpressions(cursor)
        owner = self.subscripted(base)
        if is_characters(base.type) and not is_array_place(base):
            return call("char_at", owner.text, self.text(index))
        return Expression(f"{owner.at(ATOM)}[{self.text(index)}]")

    def subscripted(self, base: Any) -> Expression:
        """Returns the container of ``a[i]``: an array itself, in place of the pointer to its first element."""
        inner = base
        while inner.kind.name == "UNEXPOSED_EXPR" and (children := subexpressions(inner)):
            inner = children[-1]
            if plain(inner.type).kind.name == "CONSTANTARRAY":
                return self.expression(inner)
        return self.expression(base)

    def deref(self, pointer: Any) -> Expression:
        value = self.expression(pointer)
        if plain(pointer.type).get_pointee().get_canonical().kind.name == "FUNCTIONPROTO" or value.text == "self":
            return value
        if is_characters(pointer.type):
            return call("char_at", value.text)
        return Expression(f"{value.at(ATOM)}[0]")

    def address(self, cursor: Any) -> Expression:
        """Returns ``&x``."""
        inner = stripped(cursor)
        if plain(inner.type).kind.name == "FUNCTIONPROTO":
            return self.expression(inner)
        declared = inner.referenced if inner.kind.name == "DECL_REF_EXPR" else None
        if declared is not None and declared.kind.name == "FIELD_DECL" and self.unit.mine(declared):  # `&S::x`
            return Expression(repr(self.program.member(declared)))
        if declared is not None and self.program.is_device_variable(declared):
            return Expression(self.program.device_variable(declared))
        if inner.kind.name == "ARRAY_SUBSCRIPT_EXPR":
            base, index = subexpressions(inner)
            return self.moved(base, "+", self.text(base, SUM), self.expression(index))
        if inner.kind.name == "CALL_EXPR" and inner.spelling == "operator[]" and not self.unit.mine(inner.referenced):
            container, position = list(inner.get_arguments())
            found = record_word(container.type)
            if found is not None and hasattr(found.object, "data"):  # elements that lie one after another
                return Expression(f"{self.text(container, ATOM)}.data() + {self.text(position, SUM + 1)}", SUM)
        place = f"Variable({self.text(inner)})" if is_value(inner.type) else self.reference(inner)
        return call("Pointer", place, "0", self.type_text(cursor.type))

    def reference(self, cursor: Any, anything: bool = True) -> str:
        """Returns a :class:`.references.Reference` to a place, or the object itself if it is a struct or a container.

        Args:
            cursor: the expression.
            anything: a value that is not a place gets a place of its own; else the result is ``""``.
        """
        inner = stripped(cursor)
        if is_value(inner.type) and anything:
            return self.text(inner)
        kind = inner.kind.name
        if kind == "DECL_REF_EXPR":
            declared = inner.referenced
            if self.program.is_device_variable(declared):
                return self.program.device_variable(declared)
            return self.box(declared)
        if kind == "MEMBER_REF_EXPR" and inner.referenced.kind.name == "FIELD_DECL":
            found = self.program.words.get(record_of(inner.referenced))
            if found is not None and isinstance(found.object, Number):
                return f"Bits({self.reference(subexpressions(inner)[0])}, {found.object.name})"
            if found is not None and found.methods:
                owner = subexpressions(inner)[0]
                return f"{self.method_space(found)}.{inner.spelling}_reference({self.reference(owner)})"
            if holds_reference(inner.referenced.type):
                return f"{self.owner(inner).at(ATOM)}.{self.program.member(inner.referenced)}"
            return f"Member({self.owner(inner).text}, {self.program.member(inner.referenced)!r})"
        if kind == "ARRAY_SUBSCRIPT_EXPR":
            base, index = subexpressions(inner)
            return f"Element({self.subscripted(base).text}, {self.text(index)})"
        if kind == "CALL_EXPR" and inner.spelling == "operator[]" and not self.unit.mine(inner.referenced):
            container, index = list(inner.get_arguments())
            return f"Element({self.text(container)}, {self.text(index)})"
        if kind == "UNARY_OPERATOR" and operator_of(inner) == "*":
            return f"Element({self.text(only_part(inner))}, 0)"
        if kind == "CONDITIONAL_OPERATOR":
            condition, then, other = subexpressions(inner)
            places = self.reference(then, anything), self.reference(other, anything)
            return f"({places[0]} if {self.text(condition, OR)} else {places[1]})" if all(places) else ""
        if kind == "CALL_EXPR" and self.is_own_place(inner):
            return self.text(inner).removesuffix(".value")
        if kind == "CALL_EXPR" and (found_text := self.reference_of_call(inner)):
            return found_text
        if anything:
            raise Refused(f"a reference to `{self.shown(inner)}`")
        return ""

    def bound_to(self, cursor: Any) -> str:
        """Returns the initial value of a reference member: a place, or a new place for a value that is not a place."""
        return self.reference(cursor, anything=False) or f"Variable({self.text(cursor)})"

    def is_own_place(self, call: Any) -> bool:
        """Returns whether a call is of a function of the user that returns a Reference."""
        declared = call.referenced
        return declared is not None and self.unit.mine(declared) and gives_place(declared)

    def own_call(self, declared: Any, text: str) -> Expression:
        """Returns the value of a call of a function of the user."""
        return Expression(f"{text}.value" if gives_place(declared) else text)

    def reference_of_call(self, cursor: Any) -> str:
        """Returns the reference that a word returns, by its twin: ``std::get_reference``; ``""`` if there is none."""
        declared = cursor.referenced
        if declared is None or self.unit.mine(declared):
            return ""
        if declared.spelling in ("operator*", "operator->") and declared.kind.name == "CXX_METHOD":
            (owner,) = [a for a in cursor.get_arguments() if a is not None][:1]
            found = record_word(owner.type)
            if found is not None and found.methods:
                space = f"{found.methods}::deref_reference".replace(".", "::")
                if space in self.program.words:
                    return f"{self.method_space(found)}.deref_reference({self.text(owner)})"
                return self.reference(owner)  # an optional holds its value in its variable
            return f"Element({self.text(owner)}, 0)"
        name = f"{qualified(declared)}_reference"
        if declared.kind.name == "CXX_METHOD":
            holder = self.program.words.get(record_of(declared))
            if holder is None:
                return ""
            owner = subexpressions(next(iter(cursor.get_children())))[0]
            method, arguments = f"{declared.spelling}_reference", [self.text(a) for a in self.written(cursor)]
            if holder.methods:
                if declared.spelling == "value":
                    return self.reference(owner)
                if f"{holder.methods}::{method}".replace(".", "::") not in self.program.words:
                    return ""
                return f"{self.method_space(holder)}.{method}({', '.join([self.reference(owner), *arguments])})"
            if not hasattr(holder.object, method) and not hasattr(holder.object.__base__, method):
                return ""
            return f"{self.text(owner, ATOM)}.{method}({', '.join(arguments)})"
        if name not in self.program.words:
            return ""
        types = self.template_arguments(declared) if self.program.words[name].typed else []
        return f"{self.word_name(name)}({', '.join([*types, *map(self.reference, self.written(cursor))])})"
