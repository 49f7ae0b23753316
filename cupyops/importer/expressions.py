"""Writes C++ expressions of clang's tree as Python, by their types."""

import re
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from .numbers import Number
from .tree import evaluated, operator_of, place_of, source_of, template_arguments
from .types import (
    common,
    gives_place,
    holds,
    holds_reference,
    holds_values,
    is_guard,
    is_mutable,
    is_reference,
    is_value,
    number,
    plain,
    promoted,
    qualified,
    record_word,
    spelled,
    type_arguments,
)
from .words import known

__all__ = ["Expression", "Expressions", "Refused"]

# How tightly Python's operators bind.
LOOSE, OR, AND, NOT, COMPARE, BIT_OR, BIT_XOR, BIT_AND, SHIFT, SUM, PRODUCT, UNARY, ATOM = range(13)
_RANKS = {
    "||": OR, "&&": AND, "==": COMPARE, "!=": COMPARE, "<": COMPARE, ">": COMPARE, "<=": COMPARE, ">=": COMPARE,
    "|": BIT_OR, "^": BIT_XOR, "&": BIT_AND, "<<": SHIFT, ">>": SHIFT, "+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT,
    "%": PRODUCT,
}  # fmt: skip
_CASTS = {
    "CSTYLE_CAST_EXPR", "CXX_STATIC_CAST_EXPR", "CXX_FUNCTIONAL_CAST_EXPR", "CXX_CONST_CAST_EXPR",
    "CXX_REINTERPRET_CAST_EXPR", "CXX_DYNAMIC_CAST_EXPR",
}  # fmt: skip
_REALS = ("float16", "bfloat16", "float32", "float64")
_DOTTED = re.compile(r"[\w.]+")
_FORWARD = {"std::move", "std::forward"}


class Refused(Exception):
    """An expression or a statement has no translation. The message says what it is."""


class Expression(NamedTuple):
    """Python text of an expression.

    Attributes:
        text: the text.
        rank: how tightly its outermost operator binds.
        wrapped: the text without the outermost wrap to the range of an unsigned type, and its rank. Sums of unsigned
            values wrap once, at the end.
    """

    text: str
    rank: int = ATOM
    wrapped: tuple[str, int] | None = None

    def at(self, rank: int) -> str:
        """Returns the text for a place where operators of a rank bind, in parentheses if it needs them."""
        return self.text if self.rank >= rank else f"({self.text})"


def call(function: str, *arguments: str) -> Expression:
    return Expression(f"{function}({', '.join(arguments)})")


class Expressions:
    """The part of a function's writer that writes expressions.

    Subclasses give the names of variables, and the lines before the statement in which the expression stands.
    """

    program: Any
    unit: Any
    owning: Any
    held: dict[int, str]  # variables in place of expressions that have been written before

    # What the other parts of the writer have.

    def variable(self, cursor: Any) -> Expression:
        raise NotImplementedError

    def is_boxed(self, cursor: Any) -> bool:
        raise NotImplementedError

    def box(self, cursor: Any) -> str:
        raise NotImplementedError

    def instance(self, declared: Any) -> str:
        """Returns the function of an instance of a generic lambda; ``""`` for another lambda."""
        raise NotImplementedError

    def write_lambda(self, cursor: Any) -> Expression:
        raise NotImplementedError

    def new_name(self, name: str) -> str:
        raise NotImplementedError

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
        """Refuses a container or a pointer that owns a guard, whose end nothing would note."""
        inner = type_arguments(type)
        while inner:
            held = inner.pop()
            if is_guard(held):
                raise Refused(f"`{plain(type).spelling}`, which owns a guard")
            inner += type_arguments(held)

    def struct_in_type(self, type: Any) -> str:
        """Returns the class of a struct that a container or a pointer has: its destructor would not run."""
        if self.program.destructor(type):
            raise Refused(f"objects of `{plain(type).spelling}`, which has a destructor, that are no variables")
        return str(self.program.struct(type))

    def construct(self, type: Any) -> None:
        """Notes that an object is made. One with a destructor has to be a variable of a block."""
        self.owns_no_guard(type)
        if self.program.destructor(type):
            if self.owning is None or self.owning != plain(type).get_declaration():
                raise Refused(f"an object of `{plain(type).spelling}`, which has a destructor, that is no variable")
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
        return _float_text(float(value))

    def _cxx_bool_literal_expr(self, cursor: Any) -> Expression:
        return Expression("True" if evaluated(cursor) else "False")

    def _character_literal(self, cursor: Any) -> Expression:
        return Expression(str(evaluated(cursor)))

    def _string_literal(self, cursor: Any) -> Expression:
        import ast

        text = cursor.spelling
        text = text[text.index('"') :]
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
        return self.expression(_only(cursor))

    def _unexposed_expr(self, cursor: Any) -> Expression:
        """An implicit conversion, or what clang adds around an expression."""
        inner = [child for child in cursor.get_children() if child.kind.is_expression()]
        if not inner:
            value = evaluated(cursor)
            if value is not None:
                return _float_text(value) if isinstance(value, float) else Expression(str(value))
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
    _cxx_const_cast_expr = _cxx_reinterpret_cast_expr = _cxx_dynamic_cast_expr = _cast

    def converted(self, cursor: Any, target: Any) -> Expression:
        """Returns an expression converted to a type."""
        if cursor.kind.name == "INIT_LIST_EXPR":
            return self.init_list(cursor, target)
        source, goal = number(cursor.type), number(target)
        if source is not None and goal is not None:
            return self.convert(self.expression(cursor), source, goal, evaluated)
        from_type, to_type = plain(cursor.type), plain(target)
        from_kind, to_kind = from_type.kind.name, to_type.kind.name
        if goal is not None and goal.name == "bool_" and _stripped(cursor).kind.name == "STRING_LITERAL":
            return Expression("True")  # `assert(n > 0 && "why")`
        if goal is not None and goal.name not in ("bool_", *_REALS) and from_kind == "POINTER":
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
        literal = _literal(value.text)
        if literal is not None:
            made = goal(literal)
            return _float_text(made) if goal.floating else Expression(repr(made), ATOM if made >= 0 else UNARY)
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
            inner = _stripped(cursor)
            is_first = inner.kind.name == "UNARY_OPERATOR" and operator_of(inner) == "*"
            if kind == "CONSTANTARRAY" and (is_first or inner.kind.name == "ARRAY_SUBSCRIPT_EXPR"):
                base, *index = _expressions(inner)
                rows = self.subscripted(base).text
                row = self.text(index[0]) if index else "0"  # behind it lies the next one
                return call("flat_row", rows, row, str(source.element_count), element)
            return call("Pointer", self.text(cursor), "0", element)
        if kind in ("FUNCTIONPROTO", "FUNCTIONNOPROTO"):
            return self.expression(cursor)
        if kind == "NULLPTR" or (number(source) and evaluated(cursor) == 0):
            return Expression("None")
        if kind == "RECORD":  # a lambda becomes a function pointer
            return self.expression(cursor)
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
                items = _expressions(items[0])  # {{1, 2}}
            types = self.argument_types(target) if found.typed else []
            inner = _arguments(target)
            element = inner[0] if found.name == "std::array" and inner else None
            if items and element is None and inner and hasattr(found.object, "push_back"):  # the elements of a member
                of = plain(inner[0])
                if not all(i.kind.name == "INIT_LIST_EXPR" or _is_alike(i.type, of) for i in items):
                    raise Refused(f"`{self.shown(cursor)}`")
                made = self.init_list(cursor, _ArrayOf(inner[0], len(items)))
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
        """Returns whether functions of a type may have variables of their own, which C++ copies with them."""
        found = record_word(type)
        return is_mutable(type) or (found is not None and found.name == "std::function" and self.program.has_mutable)

    def copied(self, cursor: Any, target: Any = None) -> str:
        """Returns the text of an expression as a new value: C++ copies structs, containers and arrays."""
        value = self.text(cursor) if target is None else self.converted(cursor, target).text
        if not _is_place(cursor):
            return value
        if self.has_state(cursor.type):
            return f"copied({value})"
        if is_value(cursor.type):
            whole = _original(cursor).type
            if (
                record_word(whole) is None
                and not _same_class(whole, cursor.type)
                and plain(whole).kind.name == "RECORD"
            ):
                return f"{self.program.struct(cursor.type)}.part({value})"
            if self.program.destructor(cursor.type):
                raise Refused(f"a copy of `{self.shown(cursor)}`, whose class has a destructor")
            return f"{value}.copy()" if _DOTTED.fullmatch(value) else f"({value}).copy()"
        return f"copied({value})" if holds_values(cursor.type) else value

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
            value = _enumerator(declared)
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
            if self.program.binds_classes and self.program.current.startswith("cupyops_"):  # what a class binds
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

        libclang does not tell those of a method. Its result has them: ``T*``, ``T``, or a class of them.
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
        """Returns the template arguments of a class of words. Those of a pack stand one behind the other."""
        declared = template_arguments(plain(type).get_declaration())
        if None in declared:
            return [self.type_text(a) for a in type_arguments(type)]
        return [str(a) if isinstance(a, int) else self.type_text(a) for a in declared]

    def _member_ref_expr(self, cursor: Any) -> Expression:
        declared = cursor.referenced
        if declared is not None and declared.kind.name == "VAR_DECL":  # a static member
            return self.variable(declared)
        if declared is not None and declared.kind.name == "ENUM_CONSTANT_DECL":
            return Expression(str(_enumerator(declared)))
        owner = self.owner(cursor)
        if declared is None or declared.kind.name != "FIELD_DECL":
            raise Refused(f"`{self.shown(cursor)}`")
        parent = record_of(declared)
        found = self.program.words.get(parent)
        if found is not None and isinstance(found.object, Number):
            return call(f"{found.object.name}.bits", owner.text)
        if found is not None and found.methods:
            return call(f"{self.method_space(found)}.{_python_name(declared.spelling)}", owner.text)
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
        arrow = _stripped(base).kind.name == "CALL_EXPR" and _stripped(base).spelling == "operator->"
        if plain(base.type).kind.name == "POINTER" and not arrow and value.text != "self":
            return Expression(f"{value.at(ATOM)}[0]")
        return value

    def method_space(self, found: Any) -> str:
        return str(found.methods).replace("::", ".")

    # Operators

    def _array_subscript_expr(self, cursor: Any) -> Expression:
        base, index = _expressions(cursor)
        owner = self.subscripted(base)
        if is_characters(base.type) and not _is_array(base):
            return call("char_at", owner.text, self.text(index))
        return Expression(f"{owner.at(ATOM)}[{self.text(index)}]")

    def subscripted(self, base: Any) -> Expression:
        """Returns the container of ``a[i]``: an array itself, in place of the pointer to its first element."""
        inner = base
        while inner.kind.name == "UNEXPOSED_EXPR" and (children := _expressions(inner)):
            inner = children[-1]
            if plain(inner.type).kind.name == "CONSTANTARRAY":
                return self.expression(inner)
        return self.expression(base)

    def _conditional_operator(self, cursor: Any) -> Expression:
        condition, then, other = _expressions(cursor)
        return Expression(f"{self.text(then, OR)} if {self.text(condition, OR)} else {self.text(other, LOOSE)}", LOOSE)

    def _unary_operator(self, cursor: Any) -> Expression:
        (inner,) = _expressions(cursor)
        operator, found = operator_of(cursor), number(cursor.type)
        if operator in ("++", "--", "x++", "x--"):
            return self.stepped(inner, operator)
        if operator == "*":
            return self.deref(inner)
        if operator == "&":
            return self.address(inner)
        value = self.expression(inner)
        if operator == "!":
            return Expression(f"not {value.at(NOT)}", NOT)
        if found is None:
            raise Refused(f"`{self.shown(cursor)}`")
        if operator == "+":
            return value
        text = f"{operator}{value.at(UNARY)}"
        return self.wrapped(Expression(text, UNARY), found)

    def deref(self, pointer: Any) -> Expression:
        value = self.expression(pointer)
        if plain(pointer.type).get_pointee().get_canonical().kind.name == "FUNCTIONPROTO" or value.text == "self":
            return value
        if is_characters(pointer.type):
            return call("char_at", value.text)
        return Expression(f"{value.at(ATOM)}[0]")

    def address(self, cursor: Any) -> Expression:
        """Returns ``&x``."""
        inner = _stripped(cursor)
        if plain(inner.type).kind.name == "FUNCTIONPROTO":
            return self.expression(inner)
        declared = inner.referenced if inner.kind.name == "DECL_REF_EXPR" else None
        if declared is not None and declared.kind.name == "FIELD_DECL" and self.unit.mine(declared):  # `&S::x`
            return Expression(repr(self.program.member(declared)))
        if declared is not None and self.program.is_device_variable(declared):
            return Expression(f"kernels.variable({qualified(declared)!r})")
        if inner.kind.name == "ARRAY_SUBSCRIPT_EXPR":
            base, index = _expressions(inner)
            return self.moved(base, "+", self.text(base, SUM), self.expression(index))
        if inner.kind.name == "CALL_EXPR" and inner.spelling == "operator[]" and not self.unit.mine(inner.referenced):
            container, position = list(inner.get_arguments())
            found = record_word(container.type)
            if found is not None and hasattr(found.object, "data"):  # elements that lie one behind the other
                return Expression(f"{self.text(container, ATOM)}.data() + {self.text(position, SUM + 1)}", SUM)
        place = f"Variable({self.text(inner)})" if is_value(inner.type) else self.reference(inner)
        return call("Pointer", place, "0", self.type_text(cursor.type))

    def reference(self, cursor: Any, anything: bool = True) -> str:
        """Returns a :class:`.references.Reference` to a place, or the object itself if it is a struct or a container.

        Args:
            cursor: the expression.
            anything: a value that is no place gets a place of its own; else the result is ``""``.
        """
        inner = _stripped(cursor)
        if is_value(inner.type) and anything:
            return self.text(inner)
        kind = inner.kind.name
        if kind == "DECL_REF_EXPR":
            declared = inner.referenced
            if self.program.is_device_variable(declared):
                return f"kernels.variable({qualified(declared)!r})"
            return self.box(declared)
        if kind == "MEMBER_REF_EXPR" and inner.referenced.kind.name == "FIELD_DECL":
            found = self.program.words.get(record_of(inner.referenced))
            if found is not None and isinstance(found.object, Number):
                return f"Bits({self.reference(_expressions(inner)[0])}, {found.object.name})"
            if found is not None and found.methods:
                owner = _expressions(inner)[0]
                return f"{self.method_space(found)}.{inner.spelling}_reference({self.reference(owner)})"
            if holds_reference(inner.referenced.type):
                return f"{self.owner(inner).at(ATOM)}.{self.program.member(inner.referenced)}"
            return f"Member({self.owner(inner).text}, {self.program.member(inner.referenced)!r})"
        if kind == "ARRAY_SUBSCRIPT_EXPR":
            base, index = _expressions(inner)
            return f"Element({self.subscripted(base).text}, {self.text(index)})"
        if kind == "CALL_EXPR" and inner.spelling == "operator[]" and not self.unit.mine(inner.referenced):
            container, index = list(inner.get_arguments())
            return f"Element({self.text(container)}, {self.text(index)})"
        if kind == "UNARY_OPERATOR" and operator_of(inner) == "*":
            return f"Element({self.text(_only(inner))}, 0)"
        if kind == "CONDITIONAL_OPERATOR":
            condition, then, other = _expressions(inner)
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
        """Returns what a member that is a reference holds: a place, or one of its own for a value that is none."""
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
            owner = _expressions(next(iter(cursor.get_children())))[0]
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

    def _binary_operator(self, cursor: Any) -> Expression:
        left, right = _expressions(cursor)
        operator = operator_of(cursor)
        if operator == "=":
            return self.assigning(left, self.copied(right))
        if operator == ",":
            return Expression(f"({self.text(left)}, {self.text(right)})[1]")
        if operator in ("&&", "||"):
            rank = _RANKS[operator]
            word = "and" if operator == "&&" else "or"
            return Expression(f"{self.text(left, rank)} {word} {self.text(right, rank + 1)}", rank)
        if operator in ("==", "!="):
            for one, other in ((left, right), (right, left)):
                if self.text(other) == "None":
                    word = "is" if operator == "==" else "is not"
                    return Expression(f"{self.text(one, COMPARE + 1)} {word} None", COMPARE)
        a, b, result = number(left.type), number(right.type), number(cursor.type)
        if a is None or b is None or result is None:
            if (
                plain(left.type).kind.name == "POINTER"
                or plain(right.type).kind.name == "POINTER"
                or operator
                in (
                    "==",
                    "!=",
                )
            ):
                rank = _RANKS[operator]
                if b is None and a is not None:  # n + p
                    left, right, b = right, left, a
                if is_characters(left.type) and operator not in ("==", "!="):
                    if b is not None:
                        return self.moved(left, operator, self.text(left), self.expression(right))
                    gap = call("distance", self.text(left), self.text(right))
                    return gap if operator == "-" else Expression(f"{gap.text} {operator} 0", COMPARE)
                return Expression(f"{self.text(left, rank)} {operator} {self.text(right, rank + 1)}", rank)
            raise Refused(f"`{self.shown(cursor)}`")
        return self.arithmetic(operator, self.expression(left), self.expression(right), a, b, result)

    def moved(self, pointer: Any, sign: str, value: str, count: Expression) -> Expression:
        """Returns a pointer whose text is `value`, moved by a count."""
        if is_characters(pointer.type):
            return call("moved", value, count.text if sign == "+" else f"-{count.at(UNARY)}")
        return Expression(f"{value} {sign} {count.at(SUM + 1)}", SUM)

    def arithmetic(
        self, operator: str, left: Expression, right: Expression, a: Number, b: Number, result: Number
    ) -> Expression:
        """Returns an operation on numbers, whose operands have been converted to one type."""
        if operator in ("/", "%") and not result.floating:
            positive = (not a.signed or _nonnegative(left)) and (not b.signed or _nonnegative(right))
            if positive:
                return Expression(f"{left.at(PRODUCT)} {operator * (1 + (operator == '/'))} {right.at(UNARY)}", PRODUCT)
            return call("quotient" if operator == "/" else "remainder", left.text, right.text)
        if operator == "/":
            literal = _literal(right.text)
            value = (
                Expression(f"{left.at(PRODUCT)} / {right.at(UNARY)}", PRODUCT)
                if literal
                else call("divide", left.text, right.text)
            )
            return self.wrapped(value, result)
        rank = _RANKS[operator]
        if operator in ("+", "-", "*") and not result.floating and not result.signed:
            left = Expression(*left.wrapped) if left.wrapped and a == result else left
            right = Expression(*right.wrapped) if right.wrapped and b == result else right
        return self.wrapped(
            Expression(f"{left.at(rank + (rank == COMPARE))} {operator} {right.at(rank + 1)}", rank), result, operator
        )

    def wrapped(self, value: Expression, result: Number, operator: str = "-") -> Expression:
        """Returns a result in the range of its type: unsigned values wrap, floats are rounded."""
        if result.floating and result.name != "float64":
            return call(result.name, value.text)
        exact = operator in ("%", "&", "|", "^", ">>", "<", ">", "<=", ">=", "==", "!=")
        if exact or result.name == "float64" or (result.signed and operator != "<<") or result.name == "bool_":
            return value
        return Expression(f"{result.name}({value.text})", ATOM, (value.text, value.rank))

    # Assignment

    def place(self, cursor: Any) -> str:
        """Returns the text of an expression to the left of Python's ``=``."""
        inner = _stripped(cursor)
        kind = inner.kind.name
        if kind == "MEMBER_REF_EXPR" and inner.referenced is not None:
            found = self.program.words.get(record_of(inner.referenced))
            # A member of a pair, which is a tuple, or of a 16-bit float, which is a number.
            if found is not None and (found.methods or isinstance(found.object, Number)):
                return f"{self.reference(inner)}.value"
            return self.text(inner)
        if kind == "ARRAY_SUBSCRIPT_EXPR" and is_characters(_expressions(inner)[0].type):
            base, index = _expressions(inner)
            return f"{self.subscripted(base).at(ATOM)}[{self.text(index)}]"
        if kind == "UNARY_OPERATOR" and operator_of(inner) == "*" and is_characters(_only(inner).type):
            return f"{self.text(_only(inner), ATOM)}[0]"
        if kind in ("DECL_REF_EXPR", "ARRAY_SUBSCRIPT_EXPR") or (
            kind == "UNARY_OPERATOR" and operator_of(inner) == "*"
        ):
            return self.text(inner)
        if kind == "CALL_EXPR" and self.is_own_place(inner):
            return self.text(inner)
        if kind == "CONDITIONAL_OPERATOR":
            return f"{self.reference(inner)}.value"
        if kind == "CALL_EXPR" and inner.referenced is not None and not self.unit.mine(inner.referenced):
            if inner.spelling == "operator[]":
                return self.text(inner)
            if (found := self.reference(inner, anything=False)) and not found.startswith("Variable("):
                return f"{found}.value"
        raise Refused(f"an assignment to `{self.shown(cursor)}`")

    def once(self, left: Any) -> str:
        """Returns a place that is read and assigned. A place with calls inside is found once, before the statement."""
        place = self.place(left)
        if "(" not in place and ":=" not in place:
            return place
        held = self.new_name("place")
        self.hoist(f"{held} = {self.reference(left)}")
        return f"{held}.value"

    def hoist(self, text: str) -> None:
        raise NotImplementedError

    def assigning(self, left: Any, value: str) -> Expression:
        """Returns an assignment as an expression."""
        place = self.place(left)
        if place.isidentifier():
            return Expression(f"({place} := {value})")
        return call("assign", self.reference(left), value)

    def assignment(self, cursor: Any) -> str | None:
        """Returns an assignment as a statement of Python, or None if an expression is none."""
        kind = cursor.kind.name
        if kind == "BINARY_OPERATOR" and operator_of(cursor) == "=":
            left, right = _expressions(cursor)
            if is_value(left.type) and plain(left.type).kind.name == "RECORD":
                return f"{self.text(left, ATOM)}.assign({self.text(right)})"
            return f"{self.place(left)} = {self.copied(right)}"
        if kind == "COMPOUND_ASSIGNMENT_OPERATOR":
            left, right = _expressions(cursor)
            operator = operator_of(cursor)[:-1]
            value = ""
            if ":=" in self.text(right) or self.may_change(left, right):  # C++ evaluates the right side first
                value = self.new_name("value")
                self.hoist(f"{value} = {self.text(right)}")
            if self.is_plain_step(operator, left, right):
                return f"{self.place(left)} {operator}= {value or self.text(right)}"
            place = self.once(left)
            return f"{place} = {self.compound(cursor, place, value).text}"
        if kind == "UNARY_OPERATOR" and operator_of(cursor) in ("++", "--", "x++", "x--"):
            (inner,) = _expressions(cursor)
            sign = operator_of(cursor).strip("x")[0]
            found = number(inner.type)
            characters = is_characters(inner.type)
            if (found is None and not characters) or (
                found is not None and ((found.signed and found.size >= 4) or found.name == "float64")
            ):
                return f"{self.place(inner)} {sign}= 1"
            place = self.once(inner)
            if found is None:
                return f"{place} = {self.moved(inner, sign, place, Expression('1')).text}"
            return f"{place} = {found.name}({place} {sign} 1)"
        return None

    def is_plain_step(self, operator: str, left: Any, right: Any) -> bool:
        """Returns whether Python's ``a += b`` computes what C++'s does."""
        a, b = number(left.type), number(right.type)
        if a is None or b is None:
            return plain(left.type).kind.name == "POINTER" and not is_characters(left.type)
        same = common(a, b) == a and promoted(a) == a
        if a.name == "float64":
            return operator != "/"
        return same and a.signed and not a.floating and operator in ("+", "-", "*", "&", "|", "^", ">>")

    def may_change(self, place: Any, value: Any) -> bool:
        """Returns whether functions of the user that an expression calls may assign a place."""
        called = [c.referenced for c in (value, *_inside(value)) if c.kind.name == "CALL_EXPR"]
        own = [d for d in called if d is None or (self.unit.mine(d) and d.kind.name != "CONSTRUCTOR")]
        functions = all(d is not None and d.kind.name == "FUNCTION_DECL" for d in own)
        return bool(own) and not (functions and self.place(place).isidentifier())

    def compound(self, cursor: Any, place: str = "", by: str = "") -> Expression:
        """Returns the new value of ``a op= b``. `place` and `by` are texts of ``a`` and ``b`` that are not to be written anew."""
        left, right = _expressions(cursor)
        operator = operator_of(cursor)[:-1]
        a, b = number(left.type), number(right.type)
        value = Expression(place) if place else self.expression(left)
        second = Expression(by) if by else self.expression(right)
        if a is None or b is None:
            return self.moved(left, operator, value.at(SUM), second)
        between = promoted(a) if operator in ("<<", ">>") else common(a, b)
        first = self.convert(value, a, between)
        if operator not in ("<<", ">>"):
            second = self.convert(second, b, between)
        value = self.arithmetic(operator, first, second, between, between, between)
        return self.convert(value, between, a)

    def _compound_assignment_operator(self, cursor: Any) -> Expression:
        left, right = _expressions(cursor)
        self.unmoved(left)
        if self.may_change(left, right):
            raise Refused(f"`{self.shown(cursor)}` inside an expression")
        return self.assigning(left, self.compound(cursor).text)

    def unmoved(self, left: Any) -> None:
        """Refuses a place with an assignment or a call of the user's inside, which an expression would do twice."""
        calls = (c.referenced for c in (left, *_inside(left)) if c.kind.name == "CALL_EXPR")
        if (
            ":=" in self.place(left)
            or "assign(" in self.place(left)
            or any(d is None or self.unit.mine(d) for d in calls)
        ):
            raise Refused(f"an assignment to `{self.shown(left)}` inside an expression")

    def stepped(self, inner: Any, operator: str) -> Expression:
        """Returns ``++x`` and the like as an expression."""
        self.unmoved(inner)
        sign = operator.strip("x")[0]
        other = "-" if sign == "+" else "+"
        found = number(inner.type)
        new = self.moved(inner, sign, self.text(inner, SUM), Expression("1"))
        if found is not None:
            new = self.convert(self.wrapped(new, promoted(found), sign), promoted(found), found)
        value = self.assigning(inner, new.text)
        if not operator.startswith("x"):
            return value
        old = self.moved(inner, other, value.at(ATOM), Expression("1"))
        if found is not None:
            old = self.convert(self.wrapped(old, promoted(found), sign), promoted(found), found)
        return old

    # Calls

    def _call_expr(self, cursor: Any) -> Expression:
        children = list(cursor.get_children())
        declared = cursor.referenced
        configured = next((c for c in children if c.spelling == "__cudaPushCallConfiguration"), None)
        if configured is not None:
            return self.launch(cursor, children, configured)
        if declared is None:
            return self.called_value(cursor, children)
        kind = declared.kind.name
        if kind == "CONSTRUCTOR":
            return self.construction(cursor, declared)
        if kind == "CONVERSION_FUNCTION":
            return self.conversion(cursor, declared)
        if declared.spelling.startswith("operator") and not declared.spelling[8:9].isalnum():
            return self.operator_call(cursor, declared)
        if kind == "CXX_METHOD" and not declared.is_static_method():
            return self.method_call(cursor, declared)
        if kind not in ("FUNCTION_DECL", "CXX_METHOD"):
            return self.called_value(cursor, children)
        name = qualified(declared)
        arguments = self.written(cursor)
        if name in _FORWARD:
            return self.expression(arguments[0])
        if (
            self.unit.mine(declared) and name not in self.program.words
        ):  # clang places its own functions where they are used
            callee = self.function(declared, cursor).text
            return self.own_call(declared, f"{callee}({', '.join(self.passed(arguments, declared))})")
        value = evaluated(cursor) if declared.result_type.spelling and not arguments else None
        if value is not None:
            return _float_text(value) if isinstance(value, float) else Expression(str(value))
        if not known(name):
            raise Refused(f"`{name}`, which has no Python meaning")
        return self.word_call(name, declared, arguments, self.word_name(name))

    def word_call(self, name: str, declared: Any, arguments: Sequence[Any], text: str, *first: str) -> Expression:
        """Returns the call of a word."""
        found = self.program.words.get(name)
        types = self.template_arguments(declared) if found is not None and found.typed else []
        value = call(text, *types, *first, *self.passed(arguments, declared, copies=False))
        result = declared.result_type.get_canonical().kind.name
        return call("float32", value.text) if result == "FLOAT" else value

    def written(self, cursor: Any) -> list[Any]:
        """Returns the arguments of a call that the source has. clang adds those that are left out."""
        return [a for a in cursor.get_arguments() if a is not None and a.extent.start.line]

    def passed(self, arguments: Sequence[Any], declared: Any, copies: bool = True) -> list[str]:
        """Returns the arguments of a call: references to places where the callee assigns, and copies where C++ copies."""
        types = list(declared.type.argument_types()) if declared.type.kind.name == "FUNCTIONPROTO" else []
        texts = []
        for i, argument in enumerate(arguments):
            type = types[i] if i < len(types) else None
            if type is not None and self.program.takes_reference(declared, i, type):
                constant = type.get_canonical().get_pointee().is_const_qualified()
                texts.append(self.bound_to(argument) if constant else self.reference(argument))
            elif copies and (type is None or not is_reference(type)):
                texts.append(self.copied(argument))
            elif not copies and type is not None and _is_constant_text(type):
                texts.append(self.characters(argument))
            else:
                texts.append(self.text(argument))
        return texts

    def characters(self, cursor: Any) -> str:
        """Returns the text that a word takes as ``const char*``. The pointer may be into an array of characters."""
        value = self.text(cursor)
        return value if _stripped(cursor).kind.name in ("STRING_LITERAL", "CALL_EXPR") else f"string_at({value})"

    def called_value(self, cursor: Any, children: list[Any]) -> Expression:
        """Returns the call of a function pointer, or of what clang does not resolve."""
        if not children or not children[0].kind.is_expression():
            raise Refused(f"the call `{self.shown(cursor)}`")
        callee = children[0]
        if "dependent" in cursor.type.spelling or plain(callee.type).kind.name not in ("POINTER", "FUNCTIONPROTO"):
            raise Refused(f"the call `{self.shown(cursor)}`, which clang does not resolve")
        return call(self.text(callee, ATOM), *(self.copied(a) for a in self.written(cursor)))

    def launch(self, cursor: Any, children: list[Any], configured: Any) -> Expression:
        """Returns a launch, ``kernels["k"][grid, block, shared, stream](...)``."""
        place = children.index(configured)
        sizes = [self.argument_of_launch(a) for a in self.written(configured)]
        kernel = self.text(children[place - 1] if place else children[0], ATOM)
        arguments = [self.copied(a) for a in children[place + 1 :] if a.extent.start.line]
        return Expression(f"{kernel}[{', '.join(sizes)}]({', '.join(arguments)})")

    def argument_of_launch(self, cursor: Any) -> str:
        """Returns a size or the stream of a launch. A stream loses its conversion to ``void*``."""
        return self.text(_stripped(cursor) if plain(cursor.type).kind.name == "POINTER" else cursor)

    def construction(self, cursor: Any, declared: Any) -> Expression:
        """Returns an object made by a constructor."""
        arguments = self.written(cursor)
        type = plain(cursor.type)
        if type.kind.name == "CONSTANTARRAY":
            return self.default(type)
        if len(arguments) == 1 and _same_class(arguments[0].type, type):  # a copy, or a move
            return self.expression(arguments[0])
        found = record_word(type)
        if found is None:
            if (half := number(type)) is not None:
                return self.construct_half(half, arguments)
            self.construct(type)
            return call(self.program.constructor(type, declared), *self.passed(arguments, declared))
        if (half := number(type)) is not None:
            return self.construct_half(half, arguments)
        self.construct(type)
        if found.name == "std::function" and arguments:
            return self.adapted(self.copied(arguments[0]), arguments[0], type)
        types = self.argument_types(type) if found.typed else []
        texts = self.passed(arguments, declared, copies=False)
        if len(texts) == 1 and _is_list(texts[0]):
            if found.name.endswith(("ArrayRef", "initializer_list")):
                return Expression(texts[0])
            texts = [texts[0].removeprefix("std.vector(")[:-1]] if texts[0].count("std.vector(") == 1 else texts
        return call(self.word_name(found.name), *types, *texts)

    def adapted(self, callee: str, cursor: Any, target: Any) -> Expression:
        """Returns a ``std::function``, which converts its arguments and its result if those of what it calls are others."""
        wanted = target.get_template_argument_type(0)
        inner = _stripped(cursor)
        own = plain(inner.type)
        while own.kind.name == "POINTER":
            own = own.get_pointee().get_canonical()
        if own.kind.name == "RECORD":
            call_operator = next((c for c in own.get_declaration().get_children() if c.spelling == "operator()"), None)
            if own.get_declaration() == plain(target).get_declaration() or call_operator is None:
                return Expression(callee)
            own = own.get_template_argument_type(0) if record_word(own) is not None else call_operator.type
        if own.kind.name != "FUNCTIONPROTO" or wanted.kind.name != "FUNCTIONPROTO":
            return Expression(callee)
        names, texts, same = [], [], True
        for i, (given, taken) in enumerate(zip(wanted.argument_types(), own.argument_types(), strict=False)):
            a, b = number(given), number(taken)
            value = Expression(f"a{i}")
            made = self.convert(value, a, b) if a is not None and b is not None and not is_reference(taken) else value
            same = same and made.text == value.text
            names.append(value.text)
            texts.append(made.text)
        a, b = number(own.get_result()), number(wanted.get_result())
        result = Expression(f"call({', '.join(texts)})")
        made = self.convert(result, a, b) if a is not None and b is not None else result
        if same and made.text == result.text:
            return Expression(callee)
        if self.has_state(inner.type):
            raise Refused(f"`{self.shown(cursor)}` as a function with other types")
        return Expression(f"(lambda {', '.join([*names, f'call={callee}'])}: {made.text})")

    def construct_half(self, half: Number, arguments: Sequence[Any]) -> Expression:
        if not arguments:
            return Expression("0.0")
        source = number(arguments[0].type)
        if source is None:
            raise Refused(f"`{self.shown(arguments[0])}` as {half.spelling}")
        if len(arguments) == 2:  # of its bits
            return call(f"{half.name}.of_bits", self.text(arguments[0]))
        return self.convert(self.expression(arguments[0]), source, half)

    def conversion(self, cursor: Any, declared: Any) -> Expression:
        """Returns an object converted by its conversion function."""
        callee = next(iter(cursor.get_children()))
        owner = self.owner(callee)
        goal = number(cursor.type)
        holder = record_of(declared)
        found = self.program.words.get(holder)
        source = number(_expressions(callee)[0].type) if _expressions(callee) else None
        if source is not None and goal is not None:  # Half to float
            return self.convert(owner, source, goal)
        if "(lambda" in record_spelling(callee, declared):
            return owner
        if found is not None:
            if found.methods and goal is not None and goal.name == "bool_":
                return call(f"{self.method_space(found)}.operator_bool", owner.text)
            if goal is not None:
                return call("bool" if goal.name == "bool_" else goal.name, owner.text)
            return owner
        return Expression(f"{owner.at(ATOM)}.{self.program.method(declared)}()")

    def method_call(self, cursor: Any, declared: Any) -> Expression:
        """Returns the call of a method."""
        callee = next(iter(cursor.get_children()))
        owner = self.owner(callee)
        arguments = self.written(cursor)
        if self.unit.mine(declared):
            return self.own_call(
                declared,
                f"{owner.at(ATOM)}.{self.program.method(declared)}({', '.join(self.passed(arguments, declared))})",
            )
        holder = record_of(declared)
        found = self.program.words.get(holder)
        if found is None:
            raise Refused(f"`{holder}`, which has no Python meaning")
        name = _python_name(declared.spelling)
        if found.methods:
            space = self.method_space(found)
            known = f"{found.methods}::{declared.spelling}".replace(".", "::")
            if known not in self.program.words and found.methods != "at":
                raise Refused(f"`{holder}::{declared.spelling}`, which has no Python meaning")
            first = owner.text
            if self.program.survey.changes(declared) and _expressions(callee):
                first = self.reference(_expressions(callee)[0])
            return self.word_call(known, declared, arguments, f"{space}.{name}", first)
        known = f"{holder}::{declared.spelling}"
        return self.word_call(known, declared, arguments, f"{owner.at(ATOM)}.{name}")

    def operator_call(self, cursor: Any, declared: Any) -> Expression:
        """Returns the call of an overloaded operator."""
        operator = declared.spelling[8:]
        arguments = list(cursor.get_arguments())
        mine = self.unit.mine(declared)
        if operator == "()" and (not mine or "(lambda" in plain(arguments[0].type).spelling):
            callee = self.instance(declared) or self.text(arguments[0], ATOM)
            return call(callee, *self.passed(arguments[1:], declared))
        implicit = operator == "=" and declared.location == declared.semantic_parent.location
        if mine and not implicit:
            if declared.kind.name == "CXX_METHOD":
                owner = self.text(arguments[0], ATOM)
                return self.own_call(
                    declared,
                    f"{owner}.{self.program.method(declared)}({', '.join(self.passed(arguments[1:], declared))})",
                )
            callee = self.program.function(declared)
            return self.own_call(declared, f"{callee}({', '.join(self.passed(arguments, declared))})")
        if operator == "=" and is_value(arguments[0].type):  # the object itself changes, whatever names it has
            return Expression(f"{self.text(arguments[0], ATOM)}.assign({self.text(arguments[1])})")
        if operator == "=":
            return self.assigned_object(arguments[0], arguments[1]) or self.assigning(
                arguments[0], self.copied(arguments[1])
            )
        if operator == "[]":
            found = record_word(arguments[0].type)
            if found is not None and f"{found.methods}::subscript".replace(".", "::") in self.program.words:
                space = self.method_space(found)  # a string's elements are numbers in C++
                return call(f"{space}.subscript", self.text(arguments[0]), self.text(arguments[1]))
            return Expression(f"{self.text(arguments[0], ATOM)}[{self.text(arguments[1])}]")
        if operator in ("*", "->") and len(arguments) == 1:
            return self.dereferenced(arguments[0])
        if operator in ("++", "--"):
            return Expression(f"{self.text(arguments[0], ATOM)}.{'increment' if operator == '++' else 'decrement'}()")
        if operator in ("+=", "-=", "*=", "/=", "%=", "&=", "|=", "^="):
            name = {
                "+": "iadd",
                "-": "isub",
                "*": "imul",
                "/": "itruediv",
                "%": "imod",
                "&": "iand",
                "|": "ior",
                "^": "ixor",
            }
            place = self.place(arguments[0])
            found = record_word(arguments[0].type)
            self.unmoved(arguments[0])
            a, b = number(arguments[0].type), number(arguments[1].type)
            if a is not None and b is not None:  # 16-bit floats
                between = common(a, b)
                first = self.convert(self.expression(arguments[0]), a, between)
                second = self.convert(self.expression(arguments[1]), b, between)
                value = self.arithmetic(operator[0], first, second, between, between, between)
                return self.assigning(arguments[0], self.convert(value, between, a).text)
            if found is None or found.name != "at::Tensor":
                return self.assigning(arguments[0], f"{place} {operator[0]} {self.text(arguments[1], SUM)}")
            made = f"{place}.__{name[operator[0]]}__({self.text(arguments[1])})"
            return Expression(f"({place} := {made})" if place.isidentifier() else made)
        if len(arguments) == 1:
            value = self.expression(arguments[0])
            if operator == "!":
                found = record_word(arguments[0].type)
                if found is not None and found.name == "at::Tensor":
                    return Expression(f"~{value.at(UNARY)}", UNARY)
                return Expression(f"not {value.at(NOT)}", NOT)
            return Expression(f"{operator}{value.at(UNARY)}", UNARY)
        left, right = arguments[:2]
        a, b, result = number(left.type), number(right.type), number(cursor.type)
        if a is not None and b is not None and result is not None:
            between = common(a, b)
            return self.convert(
                self.arithmetic(
                    operator,
                    self.convert(self.expression(left), a, between),
                    self.convert(self.expression(right), b, between),
                    between,
                    between,
                    between if result.name != "bool_" else result,
                ),
                between if result.name != "bool_" else result,
                result,
            )
        if operator not in _RANKS or operator in ("&&", "||"):
            raise Refused(f"`{self.shown(cursor)}`")
        rank = _RANKS[operator]
        return Expression(f"{self.text(left, rank + (rank == COMPARE))} {operator} {self.text(right, rank + 1)}", rank)

    def assigned_object(self, left: Any, right: Any) -> Expression | None:
        """Returns an assignment to what a call returns: ``py::arg("x") = 3``, ``x.select(0, i) = y``; else None."""
        inner = _stripped(left)
        if inner.kind.name not in ("CALL_EXPR", *_CASTS) or inner.spelling == "operator[]":
            return None
        found = record_word(left.type)
        if found is not None and found.name == "at::Tensor":
            function = "at.fill_" if number(right.type) is not None else "at.copy_"
            return call(function, self.text(left), self.text(right))
        return Expression(f"{self.text(left, ATOM)}.assign({self.text(right)})")

    def dereferenced(self, cursor: Any) -> Expression:
        """Returns ``*x`` and ``x->`` of a class."""
        found = record_word(cursor.type)
        value = self.expression(cursor)
        if found is not None and found.methods:
            return call(f"{self.method_space(found)}.value", value.text)
        return Expression(f"{value.at(ATOM)}.deref()")

    # The rest

    def _lambda_expr(self, cursor: Any) -> Expression:
        return self.write_lambda(cursor)

    def _cxx_new_expr(self, cursor: Any) -> Expression:
        inner = [c for c in cursor.get_children() if c.kind.is_expression()]
        pointee = plain(cursor.type).get_pointee()
        sizes = [c for c in inner if number(c.type) is not None and c.kind.name != "CALL_EXPR"]
        listed = [c for c in inner if c.kind.name == "INIT_LIST_EXPR"]
        file, _, begin = place_of(self.unit, cursor)  # in an instance of a template, clang says where it begins only
        source = self.unit.files.get(file, "").encode()[begin:].decode(errors="replace")
        is_array = re.match(r"new\b[^(\[{;]*\[", source) is not None
        if is_array and listed:
            count = evaluated(sizes[0]) if sizes else None
            if count is None:
                raise Refused(f"`{self.shown(cursor)}`")
            made = self.init_list(listed[0], _ArrayOf(pointee, int(count))).text
            return call("Pointer", made, "0", self.type_text(pointee))
        if is_array and sizes:
            filler = self.default(pointee).text
            made = f"std.vector([{filler} for _ in range({self.text(sizes[0])})])"
            return call("Pointer", made, "0", self.type_text(pointee))
        value = self.text(inner[-1]) if inner else self.default(pointee).text
        return call("Pointer", f"Variable({value})", "0", self.type_text(pointee))

    def _cxx_delete_expr(self, cursor: Any) -> Expression:
        return Expression("None")

    def _cxx_throw_expr(self, cursor: Any) -> Expression:
        inner = _expressions(cursor)
        return call("throw", *(self.text(i) for i in inner))


def _enumerator(declared: Any) -> int:
    kind = number(declared.type)
    value: int = declared.enum_value
    return value if kind is None else kind(value)


def _expressions(cursor: Any) -> list[Any]:
    return [child for child in cursor.get_children() if child.kind.is_expression()]


def _inside(cursor: Any) -> Iterator[Any]:
    """Yields the expressions inside an expression, without the bodies of lambdas."""
    for child in cursor.get_children():
        yield child
        if child.kind.name != "LAMBDA_EXPR":
            yield from _inside(child)


def _only(cursor: Any) -> Any:
    inner = _expressions(cursor)
    if not inner:
        raise Refused("an expression without its parts")
    return inner[-1]


def _stripped(cursor: Any) -> Any:
    """Returns an expression without what clang adds around it."""
    while cursor.kind.name in ("UNEXPOSED_EXPR", "PAREN_EXPR"):
        inner = _expressions(cursor)
        if not inner:
            break
        cursor = inner[-1]
    return cursor


def _is_place(cursor: Any) -> bool:
    """Returns whether an expression is a place that keeps its value: a variable, a member, an element."""
    inner = _stripped(cursor)
    if inner.kind.name == "CALL_EXPR":
        arguments = [a for a in inner.get_arguments() if a is not None]
        declared = inner.referenced
        if declared is not None and declared.kind.name == "CONSTRUCTOR":
            copy = len(arguments) == 1 and _same_class(arguments[0].type, plain(inner.type))
            return copy and _is_place(arguments[0])
        return declared is not None and declared.result_type.get_canonical().kind.name == "LVALUEREFERENCE"
    if inner.kind.name == "CONDITIONAL_OPERATOR":
        return any(map(_is_place, _expressions(inner)[1:]))
    return inner.kind.name in ("DECL_REF_EXPR", "MEMBER_REF_EXPR", "ARRAY_SUBSCRIPT_EXPR", "UNARY_OPERATOR")


class _ArrayOf:
    """Stands for clang's type of an array."""

    kind = SimpleNamespace(name="CONSTANTARRAY")

    def __init__(self, element: Any, count: int) -> None:
        self.element_type, self.element_count = element, count

    def get_canonical(self) -> "_ArrayOf":
        return self


def _is_alike(a: Any, b: Any) -> bool:
    """Returns whether a value of a list is one of a type, by itself or as a number."""
    return _same_class(a, b) or (number(a) is not None and number(b) is not None) or plain(a) == plain(b)


def _original(cursor: Any) -> Any:
    """Returns what an expression copies, before a conversion to a base class."""
    inner = _stripped(cursor)
    while (
        inner.kind.name == "CALL_EXPR" and inner.referenced is not None and inner.referenced.kind.name == "CONSTRUCTOR"
    ):
        arguments = [a for a in inner.get_arguments() if a is not None]
        if len(arguments) != 1 or not _same_class(arguments[0].type, plain(inner.type)):
            break
        inner = _stripped(arguments[0])
    return inner


def _same_class(a: Any, b: Any) -> bool:
    return plain(a).kind.name == "RECORD" and plain(a).get_declaration() == plain(b).get_declaration()


def _arguments(type: Any) -> list[Any]:
    found = template_arguments(type.get_declaration())
    return type_arguments(type) if None in found else [a for a in found if not isinstance(a, int)]


def record_spelling(callee: Any, declared: Any) -> str:
    """Returns the C++ name of the class whose conversion function is called."""
    inner = _expressions(callee)
    return str(plain(inner[0].type).spelling if inner else declared.semantic_parent.spelling)


def record_of(declared: Any) -> str:
    """Returns the C++ name of the class of a member."""
    return qualified(declared.semantic_parent)


def _python_name(name: str) -> str:
    import keyword

    return f"{name}_" if keyword.iskeyword(name) else name


def _float_text(value: float) -> Expression:
    text = repr(float(value))
    if "inf" in text or "nan" in text:
        return Expression(f'float("{text}")')
    return Expression(text, ATOM if value >= 0 else UNARY)


def _literal(text: str) -> Any:
    """Returns the value of a Python text that is a number, else None."""
    text = text.strip("()")
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text) if text[-1:].isdigit() or text[-1:] == "." else None
    except ValueError:
        return None


def _nonnegative(value: Expression) -> bool:
    literal = _literal(value.text)
    return literal is not None and literal > 0 - 1 and value.text[:1] != "-"


def is_characters(type: Any) -> bool:
    """Returns whether a type is a pointer to characters, whose values are texts."""
    return plain(type).get_pointee().get_canonical().kind.name in ("CHAR_S", "CHAR_U")


def _is_constant_text(type: Any) -> bool:
    return is_characters(type) and bool(plain(type).get_pointee().is_const_qualified())


def _is_array(cursor: Any) -> bool:
    """Returns whether a pointer is an array that C++ converts to one."""
    inner = _stripped(cursor)
    return plain(inner.type).kind.name == "CONSTANTARRAY" and inner.kind.name != "STRING_LITERAL"


def _is_list(text: str) -> bool:
    return text.startswith("std.vector([")
