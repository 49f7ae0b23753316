"""Writes C++ operators and assignments as Python, by the types of their operands."""

from typing import Any

from .cursors import is_characters, only_part, parts_inside, record_of, stripped, subexpressions
from .expression import (
    ATOM,
    COMPARE,
    LOOSE,
    NOT,
    OR,
    PRODUCT,
    RANKS,
    SUM,
    UNARY,
    Expression,
    Refused,
    call,
    is_nonnegative,
    literal_value,
)
from .numbers import Number
from .places import Places
from .tree import operator_of
from .types import (
    common,
    is_value,
    number,
    plain,
    promoted,
)

__all__ = ["Arithmetic"]


class Arithmetic(Places):
    """Operators on numbers and pointers, and assignments."""

    def _conditional_operator(self, cursor: Any) -> Expression:
        condition, then, other = subexpressions(cursor)
        return Expression(f"{self.text(then, OR)} if {self.text(condition, OR)} else {self.text(other, LOOSE)}", LOOSE)

    def _unary_operator(self, cursor: Any) -> Expression:
        (inner,) = subexpressions(cursor)
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
        if operator == "+" and (found is not None or plain(cursor.type).kind.name == "POINTER"):
            return value
        if found is None:
            raise Refused(f"`{self.shown(cursor)}`")
        text = f"{operator}{value.at(UNARY)}"
        return self.wrapped(Expression(text, UNARY), found)

    def _binary_operator(self, cursor: Any) -> Expression:
        left, right = subexpressions(cursor)
        operator = operator_of(cursor)
        if operator == "=":
            return self.assigning(left, self.copied(right))
        if operator == ",":
            return Expression(f"({self.text(left)}, {self.text(right)})[1]")
        if operator in ("&&", "||"):
            rank = RANKS[operator]
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
                rank = RANKS[operator]
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
            positive = (not a.signed or is_nonnegative(left)) and (not b.signed or is_nonnegative(right))
            if positive:
                return Expression(f"{left.at(PRODUCT)} {operator * (1 + (operator == '/'))} {right.at(UNARY)}", PRODUCT)
            return call("quotient" if operator == "/" else "remainder", left.text, right.text)
        if operator == "/":
            literal = literal_value(right.text)
            value = (
                Expression(f"{left.at(PRODUCT)} / {right.at(UNARY)}", PRODUCT)
                if literal
                else call("divide", left.text, right.text)
            )
            return self.wrapped(value, result)
        rank = RANKS[operator]
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
        inner = stripped(cursor)
        kind = inner.kind.name
        if kind == "MEMBER_REF_EXPR" and inner.referenced is not None:
            found = self.program.words.get(record_of(inner.referenced))
            # A member of a pair, which is a tuple, or of a 16-bit float, which is a number.
            if found is not None and (found.methods or isinstance(found.object, Number)):
                return f"{self.reference(inner)}.value"
            return self.text(inner)
        if kind == "ARRAY_SUBSCRIPT_EXPR" and is_characters(subexpressions(inner)[0].type):
            base, index = subexpressions(inner)
            return f"{self.subscripted(base).at(ATOM)}[{self.text(index)}]"
        if kind == "UNARY_OPERATOR" and operator_of(inner) == "*" and is_characters(only_part(inner).type):
            return f"{self.text(only_part(inner), ATOM)}[0]"
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
            left, right = subexpressions(cursor)
            if is_value(left.type) and plain(left.type).kind.name == "RECORD":
                return f"{self.text(left, ATOM)}.assign({self.text(right)})"
            return f"{self.place(left)} = {self.copied(right)}"
        if kind == "COMPOUND_ASSIGNMENT_OPERATOR":
            left, right = subexpressions(cursor)
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
            (inner,) = subexpressions(cursor)
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
        called = [c.referenced for c in (value, *parts_inside(value)) if c.kind.name == "CALL_EXPR"]
        own = [d for d in called if d is None or (self.unit.mine(d) and d.kind.name != "CONSTRUCTOR")]
        functions = all(d is not None and d.kind.name == "FUNCTION_DECL" for d in own)
        return bool(own) and not (functions and self.place(place).isidentifier())

    def compound(self, cursor: Any, place: str = "", by: str = "") -> Expression:
        """Returns the new value of ``a op= b``. `place` and `by` are the Python of ``a`` and ``b``, if it is written already."""
        left, right = subexpressions(cursor)
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
        left, right = subexpressions(cursor)
        self.unmoved(left)
        if self.may_change(left, right):
            raise Refused(f"`{self.shown(cursor)}` inside an expression")
        return self.assigning(left, self.compound(cursor).text)

    def unmoved(self, left: Any) -> None:
        """Refuses a place with an assignment or a call of the user's inside, which an expression would do twice."""
        calls = (c.referenced for c in (left, *parts_inside(left)) if c.kind.name == "CALL_EXPR")
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
