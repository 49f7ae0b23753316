"""Writes C++ literals, conversions, braced lists and copies as Python, by their types."""

import ast
import re
from typing import Any

from .cursors import (
    REALS,
    ArrayOf,
    class_arguments,
    copied_from,
    is_alike,
    is_characters,
    is_place,
    only_part,
    same_class,
    stripped,
    subexpressions,
)
from .expression import ATOM, COMPARE, LOOSE, UNARY, Expression, Parts, Refused, call, float_text, literal_value
from .numbers import NUMBERS, Number
from .tree import evaluated, operator_of, source_of
from .types import (
    holds,
    holds_reference,
    holds_values,
    is_guard,
    is_mutable,
    is_reference,
    is_value,
    number,
    plain,
    record_word,
    spelled,
    type_arguments,
)

__all__ = ["Conversions"]


_DOTTED = re.compile(r"[\w.]+")


class Conversions(Parts):
    """Literals, conversions, braced lists and copies."""

    # Dispatch

    def expression(self, cursor: Any) -> Expression:
        """Returns the Python text of an expression.

        Raises:
            Refused: it has no translation.
        """
        kind = cursor.kind.name
        method = getattr(self, f"_{kind.lower()}", None)
        if method is None:
            raise Refused(f"{kind.lower().replace('_', ' ')} `{self.shown(cursor)}`")
        found: Expression = method(cursor)
        return found

    def text(self, cursor: Any, rank: int = LOOSE) -> str:
        return self.expression(cursor).at(rank)

    def shown(self, cursor: Any) -> str:
        """Returns the C++ of an expression for a message."""
        source = " ".join(source_of(self.unit, cursor).split())
        return source if len(source) <= 60 else f"{source[:57]}..."

    def type_text(self, type: Any) -> str:
        return spelled(type, self.struct_in_type)

    def owns_no_guard(self, type: Any) -> None:
        """Refuses a container or a pointer that owns a guard, whose destructor would not run."""
        inner = type_arguments(type)
        while inner:
            held = inner.pop()
            if is_guard(held):
                raise Refused(f"`{plain(type).spelling}`, which owns a guard")
            inner += type_arguments(held)

    def struct_in_type(self, type: Any) -> str:
        """Returns the class of a struct that a container or a pointer has: its destructor would not run."""
        if self.program.destructor(type):
            raise Refused(f"objects of `{plain(type).spelling}`, which has a destructor, that are not variables")
        return str(self.program.struct(type))

    def construct(self, type: Any) -> None:
        """Records that an object is made. An object with a destructor has to be a variable of a block."""
        self.owns_no_guard(type)
        if self.program.destructor(type):
            if self.owning is None or self.owning != plain(type).get_declaration():
                raise Refused(f"an object of `{plain(type).spelling}`, which has a destructor, that is not a variable")
            self.owning = None

    # Literals

    def _integer_literal(self, cursor: Any) -> Expression:
        value = evaluated(cursor)
        if value is None:
            raise Refused(f"the number `{self.shown(cursor)}`")
        found = number(cursor.type)
        if found is not None and found.floating:
            return Expression(repr(float(value)))
        return Expression(str(value))

    def _floating_literal(self, cursor: Any) -> Expression:
        value = evaluated(cursor)
        if value is None:
            raise Refused(f"the number `{self.shown(cursor)}`")
        return float_text(float(value))

    def _cxx_bool_literal_expr(self, cursor: Any) -> Expression:
        return Expression("True" if evaluated(cursor) else "False")

    def _character_literal(self, cursor: Any) -> Expression:
        return Expression(str(evaluated(cursor)))

    def _string_literal(self, cursor: Any) -> Expression:
        prefix, mark, text = cursor.spelling.partition('"')
        if prefix in ("L", "u", "U"):
            raise Refused(f"the string {cursor.spelling} of wide characters")
        text = mark + text
        try:
            return Expression(repr(ast.literal_eval(text)))
        except (SyntaxError, ValueError):
            raise Refused(f"the string {text}") from None

    def _cxx_null_ptr_literal_expr(self, cursor: Any) -> Expression:
        return Expression("None")

    def _gnu_null_expr(self, cursor: Any) -> Expression:
        return Expression("None")

    def _cxx_this_expr(self, cursor: Any) -> Expression:
        return Expression("self")

    def _cxx_unary_expr(self, cursor: Any) -> Expression:
        value = evaluated(cursor)
        if value is None:
            raise Refused(f"`{self.shown(cursor)}`, whose value clang does not tell")
        return Expression(str(value))

    def _size_of_pack_expr(self, cursor: Any) -> Expression:
        return self._cxx_unary_expr(cursor)

    # Wrappers, conversions and casts

    def _paren_expr(self, cursor: Any) -> Expression:
        return self.expression(only_part(cursor))

    def _unexposed_expr(self, cursor: Any) -> Expression:
        """An implicit conversion, or a node that clang adds around an expression."""
        inner = [child for child in cursor.get_children() if child.kind.is_expression()]
        if not inner:
            value = evaluated(cursor)
            if value is not None:
                return float_text(value) if isinstance(value, float) else Expression(str(value))
            if plain(cursor.type).kind.name == "RECORD" and cursor.type.spelling:
                return self.default(cursor.type)
            raise Refused(f"`{self.shown(cursor)}`")
        return self.converted(inner[-1], cursor.type)

    def _cast(self, cursor: Any) -> Expression:
        inner = [child for child in cursor.get_children() if child.kind.is_expression()]
        if not inner:  # `int()`, `dim3{}`
            return self.default(cursor.type)
        if plain(cursor.type).kind.name == "VOID":
            return self.expression(inner[-1])
        return self.converted(inner[-1], cursor.type)

    _cstyle_cast_expr = _cxx_static_cast_expr = _cxx_functional_cast_expr = _cast
    _cxx_const_cast_expr = _cxx_reinterpret_cast_expr = _cast

    def _cxx_dynamic_cast_expr(self, cursor: Any) -> Expression:
        raise Refused(f"the dynamic_cast `{self.shown(cursor)}`")

    def converted(self, cursor: Any, target: Any) -> Expression:
        """Returns an expression converted to a type."""
        if cursor.kind.name == "INIT_LIST_EXPR":
            return self.init_list(cursor, target)
        source, goal = number(cursor.type), number(target)
        if source is not None and goal is not None:
            return self.convert(self.expression(cursor), source, goal, evaluated)
        from_type, to_type = plain(cursor.type), plain(target)
        from_kind, to_kind = from_type.kind.name, to_type.kind.name
        if goal is not None and goal.name == "bool_" and stripped(cursor).kind.name == "STRING_LITERAL":
            return Expression("True")  # `assert(n > 0 && "why")`
        if goal is not None and goal.name not in ("bool_", *REALS) and from_kind == "POINTER":
            return call("address_of", self.text(cursor))
        if goal is not None and goal.name == "bool_" and from_kind in ("POINTER", "NULLPTR", "FUNCTIONPROTO"):
            value = self.text(cursor, COMPARE + 1)
            return Expression("True") if value[:1] in "'\"" else Expression(f"{value} is not None", COMPARE)
        if to_kind == "POINTER":
            return self.pointer(cursor, from_type, to_type)
        if to_kind == "RECORD" and from_kind == "RECORD" and record_word(target) is None:
            return self.expression(cursor)
        return self.expression(cursor)

    def convert(self, value: Expression, source: Number, goal: Number, _: Any = None) -> Expression:
        """Returns a number converted as C++ converts it."""
        if source == goal or (source.name == "float32" and goal.name == "float64") or holds(goal, source):
            if source.name == "bool_" and goal.name != "bool_":
                return Expression({"True": "1", "False": "0"}.get(value.text) or f"int({value.text})")
            # In a wider type, sums have wrapped before.
            return value if source == goal else value._replace(wrapped=None)
        literal = literal_value(value.text)
        if literal is not None:
            made = goal(literal)
            return float_text(made) if goal.floating else Expression(repr(made), ATOM if made >= 0 else UNARY)
        if goal.name == "bool_":
            return Expression(f"{value.at(COMPARE + 1)} != 0", COMPARE)
        if goal.name == "float64":
            return call("float", value.text)
        if value.wrapped and not source.floating and not goal.floating and goal.size <= source.size:
            value = Expression(*value.wrapped)
        return Expression(f"{goal.name}({value.text})", ATOM, (value.text, value.rank))

    def pointer(self, cursor: Any, source: Any, target: Any) -> Expression:
        """Returns an expression converted to a pointer."""
        kind = source.kind.name
        if kind in ("CONSTANTARRAY", "INCOMPLETEARRAY", "VARIABLEARRAY"):
            if cursor.kind.name == "STRING_LITERAL":
                return self.expression(cursor)
            element = self.type_text(source.element_type)
            inner = stripped(cursor)
            is_first = inner.kind.name == "UNARY_OPERATOR" and operator_of(inner) == "*"
            if kind == "CONSTANTARRAY" and (is_first or inner.kind.name == "ARRAY_SUBSCRIPT_EXPR"):
                base, *index = subexpressions(inner)
                rows = self.subscripted(base).text
                row = self.text(index[0]) if index else "0"  # the next row follows it
                return call("flat_row", rows, row, str(source.element_count), element)
            return call("Pointer", self.text(cursor), "0", element)
        if kind in ("FUNCTIONPROTO", "FUNCTIONNOPROTO"):
            return self.expression(cursor)
        if kind == "NULLPTR" or (number(source) and evaluated(cursor) == 0):
            return Expression("None")
        if kind == "RECORD":  # a lambda becomes a function pointer
            return self.expression(cursor)
        if kind == "OVERLOAD" and (kernel := self.program.kernel_in_list(stripped(cursor))):
            return Expression(f"kernels[{kernel!r}]")
        if kind != "POINTER":
            raise Refused(f"a pointer made of `{self.shown(cursor)}`")
        value = self.expression(cursor)
        a, b = source.get_pointee().get_canonical(), target.get_pointee().get_canonical()
        same = a.spelling.removeprefix("const ") == b.spelling.removeprefix("const ")
        if same or value.text == "None" or is_characters(source) or "FUNCTIONPROTO" in (a.kind.name, b.kind.name):
            return value
        one, other = self.type_text(a), self.type_text(b)
        if one == other:
            return value
        return call("pointer_cast", value.text, other)

    def init_list(self, cursor: Any, target: Any) -> Expression:
        """Returns a braced list for an array, a struct or a number."""
        target = plain(target)
        kind = target.kind.name
        items = [child for child in cursor.get_children() if child.kind.is_expression()]
        if kind in ("CONSTANTARRAY", "INCOMPLETEARRAY", "VECTOR"):
            element = target.element_type
            texts = [self.copied(item, element) for item in items]
            size = target.element_count if kind == "CONSTANTARRAY" else len(texts)
            if len(texts) < size:
                filler = self.default(element).text
                if is_value(element):
                    texts += [filler] * (size - len(texts))
                else:
                    return Expression(f"std.vector([{', '.join(texts)}] + [{filler}] * {size - len(texts)})")
            return Expression(f"std.vector([{', '.join(texts)}])")
        if kind == "RECORD" and record_word(target) is None:
            self.construct(target)
            fields = list(target.get_fields())
            texts = [self.member_value(item, f.type) for item, f in zip(items, fields, strict=False)]
            return call(self.program.struct(target), *texts)
        if kind == "RECORD":
            found = record_word(target)
            assert found is not None
            if len(items) == 1 and items[0].kind.name == "INIT_LIST_EXPR" and found.name == "std::array":
                items = subexpressions(items[0])  # {{1, 2}}
            types = self.argument_types(target) if found.typed else []
            inner = class_arguments(target)
            element = inner[0] if found.name == "std::array" and inner else None
            if items and element is None and inner and hasattr(found.object, "push_back"):  # the elements of a member
                of = plain(inner[0])
                if not all(i.kind.name == "INIT_LIST_EXPR" or is_alike(i.type, of) for i in items):
                    raise Refused(f"`{self.shown(cursor)}`")
                made = self.init_list(cursor, ArrayOf(inner[0], len(items)))
                return call(self.word_name(found.name), *types, made.text)
            if items and found.name.startswith(("std::map", "std::set", "std::unordered")):
                raise Refused(f"`{self.shown(cursor)}`")
            texts = [
                self.init_list(i, element if element is not None else inner[n]).text
                if i.kind.name == "INIT_LIST_EXPR" and (element is not None or n < len(inner))
                else self.text(i)
                for n, i in enumerate(items)
            ]
            return call(self.word_name(found.name), *types, *texts)
        if len(items) == 1:
            return self.converted(items[0], target)
        return self.default(target)

    def member_value(self, cursor: Any, type: Any) -> str:
        """Returns the value of a member."""
        if holds_reference(type):
            return self.bound_to(cursor)
        if is_reference(type):
            return self.text(cursor)
        return self.init_list(cursor, type).text if cursor.kind.name == "INIT_LIST_EXPR" else self.copied(cursor, type)

    def _compound_literal_expr(self, cursor: Any) -> Expression:
        """``(Box){1, 2}``."""
        return self.init_list(subexpressions(cursor)[-1], cursor.type)

    def _init_list_expr(self, cursor: Any) -> Expression:
        return self.init_list(cursor, cursor.type)

    def default(self, type: Any) -> Expression:
        """Returns the value of a variable without an initializer. Numbers are zero: C++ leaves them undefined."""
        type = plain(type)
        found = number(type)
        if found is not None:
            return Expression("False" if found.name == "bool_" else "0.0" if found.floating else "0")
        kind = type.kind.name
        if kind == "CONSTANTARRAY":
            inner = self.default(type.element_type).text
            if is_value(type.element_type):
                return Expression(f"std.vector([{inner} for _ in range({type.element_count})])")
            return Expression(f"std.vector([{inner}] * {type.element_count})")
        if kind == "RECORD":
            known = record_word(type)
            self.construct(type)
            if known is None:
                return call(self.program.struct(type))
            if known.typed:
                return call(self.word_name(known.name), *self.argument_types(type))
            return call(self.word_name(known.name))
        return Expression("None")

    def has_state(self, type: Any) -> bool:
        """Returns whether functions of a type may have state, which C++ copies with them."""
        found = record_word(type)
        return is_mutable(type) or (found is not None and found.name == "std::function" and self.program.has_mutable)

    def copied(self, cursor: Any, target: Any = None) -> str:
        """Returns the text of an expression as a new value: C++ copies structs, containers and arrays."""
        if (
            target is not None
            and plain(target).kind.name == "CONSTANTARRAY"
            and stripped(cursor).kind.name == "STRING_LITERAL"
        ):
            text = ast.literal_eval(self.text(stripped(cursor)))
            codes = [NUMBERS["int8"](ord(c)) for c in text]
            return f"std.vector({codes + [0] * (plain(target).element_count - len(codes))})"
        value = self.text(cursor) if target is None else self.converted(cursor, target).text
        if not is_place(cursor) or (target is not None and plain(target).kind.name == "POINTER"):
            return value
        if self.has_state(cursor.type):
            return f"copied({value})"
        if is_value(cursor.type):
            whole = copied_from(cursor).type
            if record_word(whole) is None and not same_class(whole, cursor.type) and plain(whole).kind.name == "RECORD":
                return f"{self.program.struct(cursor.type)}.part({value})"
            if self.program.destructor(cursor.type):
                raise Refused(f"a copy of `{self.shown(cursor)}`, whose class has a destructor")
            return f"{value}.copy()" if _DOTTED.fullmatch(value) else f"({value}).copy()"
        return f"copied({value})" if holds_values(cursor.type) else value
