"""Writes C++ calls as Python: of functions, methods, constructors and overloaded operators."""

import re
from collections.abc import Sequence
from typing import Any

from .arithmetic import Arithmetic
from .cursors import (
    CASTS,
    ArrayOf,
    calls_result,
    is_constant_text,
    is_place,
    python_name,
    record_of,
    record_spelling,
    same_class,
    stripped,
    subexpressions,
)
from .expression import ATOM, COMPARE, NOT, RANKS, SUM, UNARY, Expression, Refused, call, float_text, is_list_text
from .numbers import Number
from .tree import evaluated, place_of
from .types import (
    common,
    is_owner,
    is_reference,
    is_value,
    number,
    plain,
    qualified,
    record_word,
)
from .words import known

__all__ = ["Expressions"]


_FORWARD = {"std::move", "std::forward"}


class Expressions(Arithmetic):
    """Calls, constructions, operators of classes, and the rest: the part of a function's writer that writes expressions.

    Subclasses provide the names of variables, and the lines before the statement that contains the expression.
    """

    # Calls

    def _call_expr(self, cursor: Any) -> Expression:
        children = list(cursor.get_children())
        declared = cursor.referenced
        configured = next((c for c in children if c.spelling == "__cudaPushCallConfiguration"), None)
        if configured is not None:
            return self.launch(cursor, children, configured)
        if declared is None or calls_result(cursor):
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
        if name == "std::move" and is_owner(arguments[0].type) and is_place(arguments[0]):
            return call("taken", self.reference(arguments[0]))
        if name in _FORWARD:
            return self.expression(arguments[0])
        # clang places its own functions where they are used. They have no definition.
        if self.unit.mine(declared) and (name not in self.program.words or self.unit.definition(declared) is not None):
            callee = self.function(declared, cursor).text
            return self.own_call(declared, f"{callee}({', '.join(self.passed(arguments, declared))})")
        value = evaluated(cursor) if declared.result_type.spelling and not arguments else None
        if value is not None:
            return float_text(value) if isinstance(value, float) else Expression(str(value))
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
            elif not copies and type is not None and is_constant_text(type):
                texts.append(self.characters(argument))
            elif not copies and (calls := self.call_operator(argument)) is not None:  # the word calls the object
                self.program.method(calls)
                texts.append(self.text(argument))
            else:
                texts.append(self.text(argument))
        return texts

    def call_operator(self, cursor: Any) -> Any:
        """Returns the ``operator()`` of a struct of the user's, or None."""
        type = plain(cursor.type)
        if type.kind.name != "RECORD" or record_word(type) is not None or "(lambda" in type.spelling:
            return None
        found = [c for c in type.get_declaration().get_children() if c.spelling == "operator()"]
        return found[0] if len(found) == 1 and found[0].kind.name == "CXX_METHOD" else None

    def characters(self, cursor: Any) -> str:
        """Returns the text that a word takes as ``const char*``. The pointer may be into an array of characters."""
        value = self.text(cursor)
        return value if stripped(cursor).kind.name in ("STRING_LITERAL", "CALL_EXPR") else f"string_at({value})"

    def called_value(self, cursor: Any, children: list[Any]) -> Expression:
        """Returns the call of a function pointer, or of a callee that clang does not resolve."""
        if not children or not children[0].kind.is_expression():
            raise Refused(f"the call `{self.shown(cursor)}`")
        callee = children[0]
        if "dependent" in cursor.type.spelling or plain(callee.type).kind.name not in ("POINTER", "FUNCTIONPROTO"):
            raise Refused(f"the call `{self.shown(cursor)}`, which clang does not resolve")
        kind = plain(callee.type)
        taken = (kind.get_pointee() if kind.kind.name == "POINTER" else kind).get_canonical().argument_types()
        if any(t.kind.name == "LVALUEREFERENCE" and not t.get_pointee().is_const_qualified() for t in taken):
            raise Refused(f"the call `{self.shown(cursor)}` by a pointer to a function that assigns to its arguments")
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
        return self.text(stripped(cursor) if plain(cursor.type).kind.name == "POINTER" else cursor)

    def construction(self, cursor: Any, declared: Any) -> Expression:
        """Returns an object made by a constructor."""
        arguments = self.written(cursor)
        type = plain(cursor.type)
        if type.kind.name == "CONSTANTARRAY":
            return self.default(type)
        if len(arguments) == 1 and same_class(arguments[0].type, type):  # a copy, or a move
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
        if len(texts) == 1 and is_list_text(texts[0]):
            if found.name.endswith(("ArrayRef", "initializer_list")):
                return Expression(texts[0])
            texts = [texts[0].removeprefix("std.vector(")[:-1]] if texts[0].count("std.vector(") == 1 else texts
        return call(self.word_name(found.name), *types, *texts)

    def adapted(self, callee: str, cursor: Any, target: Any) -> Expression:
        """Returns a ``std::function``, which converts its arguments and its result if the types of the called function
        differ."""
        wanted = target.get_template_argument_type(0)
        inner = stripped(cursor)
        own = plain(inner.type)
        while own.kind.name == "POINTER":
            own = own.get_pointee().get_canonical()
        if own.kind.name == "RECORD" and record_word(own) is not None:
            own = own.get_template_argument_type(0)
        elif own.kind.name == "RECORD":
            call_operator = next((c for c in own.get_declaration().get_children() if c.spelling == "operator()"), None)
            if call_operator is None:
                return Expression(callee)
            if self.call_operator(inner) is not None:
                self.program.method(call_operator)
            own = call_operator.type
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
        source = number(subexpressions(callee)[0].type) if subexpressions(callee) else None
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
        name = python_name(declared.spelling)
        if found.methods:
            space = self.method_space(found)
            known = f"{found.methods}::{declared.spelling}".replace(".", "::")
            if known not in self.program.words and found.methods != "at":
                raise Refused(f"`{holder}::{declared.spelling}`, which has no Python meaning")
            first = owner.text
            if self.program.survey.changes(declared) and subexpressions(callee):
                first = self.reference(subexpressions(callee)[0])
            return self.word_call(known, declared, arguments, f"{space}.{name}", first)
        known = f"{holder}::{declared.spelling}"
        return self.word_call(known, declared, arguments, f"{owner.at(ATOM)}.{name}")

    def operator_call(self, cursor: Any, declared: Any) -> Expression:
        """Returns the call of an overloaded operator."""
        operator = declared.spelling[8:]
        arguments = list(cursor.get_arguments())
        mine = self.unit.mine(declared)
        callee = next(iter(cursor.get_children()))
        if callee.kind.name == "MEMBER_REF_EXPR" and callee.spelling == declared.spelling:  # f.operator()<4>(x)
            arguments.insert(0, subexpressions(callee)[0])
        if operator == "()" and (not mine or "(lambda" in plain(arguments[0].type).spelling):
            found = record_word(arguments[0].type)
            if found is not None and f"{found.methods}::operator_call" in self.program.words:
                return call(f"{self.method_space(found)}.operator_call", self.text(arguments[0]))
            function = self.instance(declared, arguments[0]) or self.text(arguments[0], ATOM)
            return call(function, *self.passed(arguments[1:], declared))
        implicit = operator == "=" and declared.location == declared.semantic_parent.location
        if mine and not implicit:
            if declared.kind.name == "CXX_METHOD":
                owner = self.text(arguments[0], ATOM)
                return self.own_call(
                    declared,
                    f"{owner}.{self.program.method(declared)}({', '.join(self.passed(arguments[1:], declared))})",
                )
            function = self.program.function(declared)
            return self.own_call(declared, f"{function}({', '.join(self.passed(arguments, declared))})")
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
        if operator not in RANKS or operator in ("&&", "||"):
            raise Refused(f"`{self.shown(cursor)}`")
        rank = RANKS[operator]
        return Expression(f"{self.text(left, rank + (rank == COMPARE))} {operator} {self.text(right, rank + 1)}", rank)

    def assigned_object(self, left: Any, right: Any) -> Expression | None:
        """Returns an assignment to what a call returns: ``py::arg("x") = 3``, ``x.select(0, i) = y``; else None."""
        inner = stripped(left)
        if inner.kind.name not in ("CALL_EXPR", *CASTS) or inner.spelling == "operator[]":
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
            given = subexpressions(listed[0])
            made = self.init_list(listed[0], ArrayOf(pointee, len(given) if count is None else int(count))).text
            if count is None:
                if not sizes:
                    raise Refused(f"`{self.shown(cursor)}`")
                filler = self.default(pointee).text
                made = f"std.vector([*{made}, *({filler} for _ in range({self.text(sizes[0])} - {len(given)}))])"
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
        inner = subexpressions(cursor)
        return call("throw", *(self.text(i) for i in inner))
