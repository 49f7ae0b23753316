"""The PTX instructions of arithmetic that the simulator covers, each with the C++ that it becomes.

The table :data:`ARITHMETIC` has rows by the name that docs/simulator.md gives them: a regular expression of the opcode with
all modifiers, and a function that returns the C++ of one use. A form that no expression matches is not covered.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ARITHMETIC", "Registers", "Row", "Unknown", "assign", "plain", "type_of"]


class Unknown(Exception):
    """A form of PTX that the simulator does not cover; the message names it."""


class Registers(Protocol):
    """The parts of an asm statement that a row of the tables needs for the translation."""

    def value(self, operand: str) -> str: ...
    def floating(self, operand: str, kind: str) -> str: ...
    def target(self, operand: str) -> str: ...
    def address(self, operand: str, space: str) -> str: ...
    def vector(self, operand: str) -> list[str]: ...


@dataclass(frozen=True)
class Type:
    """A type of PTX: its C++ name in ``cupyops_ptx``, and the C++ type of its register."""

    name: str
    register: str


_WIDTH = {"8": "unsigned short", "16": "unsigned short", "32": "unsigned", "64": "unsigned long long"}


def type_of(name: str) -> Type:
    """Returns the type of a PTX name such as ``u32`` or ``f16x2``.

    Raises:
        Unknown: there is no such type.
    """
    found = re.fullmatch(r"[busf](8|16|32|64)|b?f16x2|bf16", name)
    if found is None:
        raise Unknown(f"the type `.{name}`")
    return Type(name, _WIDTH.get(found[1] or ("32" if name.endswith("x2") else "16"), "unsigned"))


# Returns the C++ of one use of an instruction, from the match of its opcode and its operands.
Row = Callable[[Registers, re.Match[str], list[str]], str]
_INTEGER = r"\.(?P<t>[us](?:16|32|64))"
_FLOAT = r"\.(?P<t>f32|f64|f16|f16x2|bf16|bf16x2)"
_BITS = r"\.(?P<t>[bus](?:16|32|64)|pred)"
_ROUNDING = r"(?P<m>(?:\.(?:rn|rz|rm|rp|ftz|sat|approx|full|relu|NaN))*)"
_FLAGS = {".ftz": "FTZ", ".sat": "SAT", ".rz": "RZ", ".rp": "RU", ".rm": "RD", ".relu": "RELU"}


def _flags(modifiers: str) -> str:
    words = [_FLAGS[m] for m in re.findall(r"\.\w+", modifiers) if m in _FLAGS]
    return " | ".join(f"cupyops_ptx::{w}" for w in words) or "0"


def assign(statement: Registers, target: str, value: str) -> str:
    return f"{statement.target(target)} = {value};"


def _call(function: str, count: int) -> Row:
    """A row for ``d = function<type>(a, b, ...)`` with `count` sources."""

    def row(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
        target, *sources = operands
        if len(sources) != count:
            raise IndexError
        kind = match["t"]
        name = function
        if kind == "pred":
            kind = "pred"
            name = "not_pred" if function == "not_" else function
        template = "" if name == "not_pred" else f"<cupyops_ptx::{kind}>"
        return assign(statement, target, f"cupyops_ptx::{name}{template}({', '.join(map(statement.value, sources))})")

    return row


def _float(function: str, count: int) -> Row:
    def row(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
        target, *sources = operands
        if len(sources) != count:
            raise IndexError
        kind, modifiers = match["t"], match.groupdict().get("m") or ""
        name = f"{function}nan" if function in ("fmin_", "fmax_") and ".NaN" in modifiers else function
        values = ", ".join(statement.floating(s, kind) for s in sources)
        return assign(statement, target, f"cupyops_ptx::{name}<cupyops_ptx::{kind}, {_flags(modifiers)}>({values})")

    return row


def _multiply_add(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a, b, c = operands
    kind = match["t"]
    wide = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}
    way = match["way"]
    if way == "wide" and kind not in wide:
        raise ValueError
    result = wide[kind] if way == "wide" else kind
    product = f"cupyops_ptx::mul_{way}<cupyops_ptx::{kind}>({statement.value(a)}, {statement.value(b)})"
    return assign(statement, d, f"cupyops_ptx::add<cupyops_ptx::{result}>({product}, {statement.value(c)})")


def _multiply_add_24(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a, b, c = operands
    kind = f"cupyops_ptx::{match['t']}"
    product = f"cupyops_ptx::mul24<{kind}>({statement.value(a)}, {statement.value(b)})"
    return assign(statement, d, f"cupyops_ptx::add<{kind}>({product}, {statement.value(c)})")


def _lop3(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a, b, c, table = operands
    return assign(
        statement, d, f"cupyops_ptx::lop3({', '.join(map(statement.value, (a, b, c)))}, {statement.value(table)})"
    )


def _prmt(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a, b, c = operands
    modes = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    mode = f"_mode({modes.index(match['mode'])}, " if match["mode"] else "("
    return assign(statement, d, f"cupyops_ptx::prmt{mode}{', '.join(map(statement.value, (a, b, c)))})")


def _bfind(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a = operands
    shift = "true" if match["shift"] else "false"
    return assign(statement, d, f"cupyops_ptx::bfind<cupyops_ptx::{match['t']}, {shift}>({statement.value(a)})")


def _funnel(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, low, high, by = operands
    name = f"__funnelshift_{match['side']}{'c' if match['mode'] == 'clamp' else ''}"
    return assign(statement, d, f"{name}({', '.join(map(statement.value, (low, high, by)))})")


def _carry(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a, b = operands
    name = "carried" if match["op"] == "add" else "borrowed"
    return _with_carry(statement, match, name, d, f"{statement.value(a)}, {statement.value(b)}")


def _multiply_carry(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a, b, c = operands
    kind = f"cupyops_ptx::{match['t']}"
    product = f"cupyops_ptx::mul_{match['way']}<{kind}>({statement.value(a)}, {statement.value(b)})"
    return _with_carry(statement, match, "carried", d, f"{product}, {statement.value(c)}")


def _with_carry(statement: Registers, match: re.Match[str], name: str, d: str, values: str) -> str:
    out = "cupyops_carry" if match["out"] else "cupyops_ignored"
    into = "cupyops_carry" if match["into"] else "false"
    kind = match["t"].replace("s", "u")
    call = f"cupyops_ptx::{name}<cupyops_ptx::{kind}>({values}, {out}, {into})"
    return f"bool cupyops_ignored; (void)cupyops_ignored; {assign(statement, d, call)}"


_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
_UNSIGNED = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def _compared(statement: Registers, comparison: str, kind: str, a: str, b: str) -> str:
    if comparison in _UNSIGNED:
        comparison, kind = _UNSIGNED[comparison], kind.replace("b", "u").replace("s", "u")
    number = _COMPARISONS.index(comparison)
    values = f"{statement.floating(a, kind)}, {statement.floating(b, kind)}"
    return f"cupyops_ptx::compared<cupyops_ptx::{kind}, {number}>({values})"


def _setp(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    target, a, b, *more = operands
    result = _compared(statement, match["c"], match["t"], a, b)
    joined = {"and": "&&", "or": "||", "xor": "!="}
    other = f"!({result})"
    if match["join"]:
        third = statement.value(more[0])
        result, other = (f"({x}) {joined[match['join']]} bool({third})" for x in (result, other))
    names = target.split("|")
    second = f" {statement.target(names[1])} = {other};" if len(names) > 1 else ""
    return f"bool cupyops_p = {result};{second} {statement.target(names[0])} = cupyops_p;"


def _set(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a, b = operands
    yes = "0x3F800000u" if match["d"] == "f32" else "~0u"
    return assign(statement, d, f"{_compared(statement, match['c'], match['t'], a, b)} ? {yes} : 0u")


def _selp(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a, b, p = operands
    kind = match["t"]
    values = (f"(unsigned long long)({statement.floating(x, kind)})" for x in (a, b))
    return assign(statement, d, f"{statement.value(p)} ? {' : '.join(values)}")


def _move(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    target, source = operands
    targets, sources = statement.vector(target), statement.vector(source)
    bits = 1 if match["t"] == "pred" else int(re.sub(r"\D", "", match["t"]))
    if len(targets) == len(sources) == 1:
        return assign(statement, target, statement.floating(source, match["t"]))
    if len(targets) == 1:
        each = bits // len(sources)
        mask = (1 << each) - 1
        parts = (
            f"((unsigned long long)({statement.value(s)}) & {mask}ull) << {i * each}" for i, s in enumerate(sources)
        )
        return assign(statement, target, " | ".join(f"({p})" for p in parts))
    each = bits // len(targets)
    split = " ".join(assign(statement, t, f"cupyops_whole >> {i * each}") for i, t in enumerate(targets))
    return f"const unsigned long long cupyops_whole = {statement.value(source)}; {split}"


def _convert(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a = operands
    modifiers, to, of = match["m"], match["d"], match["t"]
    whole = {".rni": "NEAREST", ".rzi": "ZERO", ".rmi": "DOWN", ".rpi": "UP"}
    way = next((w for m, w in whole.items() if m in modifiers), "")
    flags = _flags(re.sub(r"\.r[nzmp]i", "", modifiers))
    name = f"cupyops_ptx::convert<cupyops_ptx::{to}, cupyops_ptx::{of}, {flags}, cupyops_ptx::{way or ('ZERO' if to[0] in 'us' else 'NEAREST')}>"
    return assign(statement, d, f"{name}({statement.value(a)})")


def _convert_pair(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, upper, lower = operands
    kind = match["d"].removesuffix("x2")
    values = f"{statement.value(upper)}, {statement.value(lower)}"
    return assign(statement, d, f"cupyops_ptx::pack_halves<cupyops_ptx::{kind}, {_flags(match['m'])}>({values})")


def _convert_and_pack(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a, b, *more = operands
    bits = int(match["bits"])
    if bool(more) != bool(match["third"]) or bool(more) != (bits < 16):
        raise IndexError
    values = ", ".join(statement.value(o) for o in (a, b, *(more or ["0"])))
    return assign(
        statement, d, f"cupyops_ptx::pack_sat<{bits}, {'true' if match['sign'] == 's' else 'false'}>({values})"
    )


def _video(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a, b, c = operands
    if match["saturates"] and match["sum"]:
        raise ValueError
    words = [match["count"], f"cupyops_ptx::V{match['op'].upper()}"]
    words += ["true" if match[name] == "s" else "false" for name in ("d", "a", "b")]
    words += ["true" if match[name] else "false" for name in ("saturates", "sum")]
    values = ", ".join(map(statement.value, (a, b, c)))
    return assign(statement, d, f"cupyops_ptx::video<{', '.join(words)}>({values})")


def _to_tf32(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a = operands
    return assign(statement, d, f"cupyops_ptx::to_tf32<0>({statement.value(a)})")


def _nothing(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    return ""


def plain(code: str) -> Row:
    return lambda statement, match, operands: code


ARITHMETIC: dict[str, list[tuple[str, Row]]] = {
    "add, sub": [
        (rf"add{_INTEGER}", _call("add", 2)),
        (rf"sub{_INTEGER}", _call("sub", 2)),
        (r"add\.sat\.(?P<t>s32)", _call("add_sat", 2)),
        (r"sub\.sat\.(?P<t>s32)", _call("sub_sat", 2)),
        (rf"add{_ROUNDING}{_FLOAT}", _float("fadd", 2)),
        (rf"sub{_ROUNDING}{_FLOAT}", _float("fsub", 2)),
    ],
    "add.cc, addc, sub.cc, subc": [(r"(?P<op>add|sub)(?P<into>c)?(?P<out>\.cc)?\.(?P<t>[us](?:32|64))", _carry)],
    "mad.cc, madc": [
        (r"mad(?P<into>c)\.(?P<way>lo|hi)(?P<out>\.cc)?\.(?P<t>[us](?:32|64))", _multiply_carry),
        (r"mad(?P<into>)\.(?P<way>lo|hi)(?P<out>\.cc)\.(?P<t>[us](?:32|64))", _multiply_carry),
    ],
    "mul, mad, fma, mul24, mad24": [
        (rf"mul\.lo{_INTEGER}", _call("mul_lo", 2)),
        (rf"mul\.hi{_INTEGER}", _call("mul_hi", 2)),
        (r"mul\.wide\.(?P<t>[us](?:16|32))", _call("mul_wide", 2)),
        (rf"mul{_ROUNDING}{_FLOAT}", _float("fmul", 2)),
        (rf"mad\.(?P<way>lo|hi|wide){_INTEGER}", _multiply_add),
        (rf"(?:fma|mad){_ROUNDING}{_FLOAT}", _float("ffma", 3)),
        (r"mul24\.lo\.(?P<t>[us]32)", _call("mul24", 2)),
        (r"mad24\.lo\.(?P<t>[us]32)", _multiply_add_24),
    ],
    "div, rem": [
        (rf"div{_INTEGER}", _call("div", 2)),
        (rf"rem{_INTEGER}", _call("rem", 2)),
        (rf"div{_ROUNDING}{_FLOAT}", _float("fdiv", 2)),
    ],
    "abs, neg, min, max, copysign": [
        (r"abs\.(?P<t>s(?:16|32|64))", _call("abs_", 1)),
        (r"neg\.(?P<t>s(?:16|32|64))", _call("neg", 1)),
        (rf"min{_INTEGER}", _call("min_", 2)),
        (rf"max{_INTEGER}", _call("max_", 2)),
        (rf"abs{_ROUNDING}{_FLOAT}", _float("fabs_", 1)),
        (rf"neg{_ROUNDING}{_FLOAT}", _float("fneg", 1)),
        (rf"min{_ROUNDING}{_FLOAT}", _float("fmin_", 2)),
        (rf"max{_ROUNDING}{_FLOAT}", _float("fmax_", 2)),
        (r"copysign\.(?P<t>f32|f64)", _float("fcopysign", 2)),
    ],
    "rcp, sqrt, rsqrt, ex2, lg2, sin, cos, tanh": [
        (rf"{name}{_ROUNDING}{_FLOAT}", _float(f"f{name}", 1))
        for name in ("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
    ],
    "and, or, xor, not, cnot, shl, shr, shf": [
        (rf"and{_BITS}", _call("and_", 2)),
        (rf"or{_BITS}", _call("or_", 2)),
        (rf"xor{_BITS}", _call("xor_", 2)),
        (rf"not{_BITS}", _call("not_", 1)),
        (rf"cnot{_BITS}", _call("cnot", 1)),
        (rf"shl{_BITS}", _call("shl", 2)),
        (rf"shr{_BITS}", _call("shr", 2)),
        (r"shf\.(?P<side>[lr])\.(?P<mode>wrap|clamp)\.b32", _funnel),
    ],
    "lop3, prmt, popc, clz, brev, bfind, bfe, bfi, sad, dp4a": [
        (r"lop3\.b32", _lop3),
        (r"prmt\.b32(?:\.(?P<mode>f4e|b4e|rc8|ecl|ecr|rc16))?", _prmt),
        (r"popc\.(?P<t>b32|b64)", _call("popc", 1)),
        (r"clz\.(?P<t>b32|b64)", _call("clz", 1)),
        (r"brev\.(?P<t>b32|b64)", _call("brev", 1)),
        (r"bfind(?P<shift>\.shiftamt)?\.(?P<t>[us](?:32|64))", _bfind),
        (r"bfe\.(?P<t>[us](?:32|64))", _call("bfe", 3)),
        (r"bfi\.(?P<t>b32|b64)", _call("bfi", 4)),
        (r"sad\.(?P<t>[us](?:16|32|64))", _call("sad", 3)),
        (r"dp4a\.(?P<t>u32)\.u32", _call("dp4a", 3)),
        (r"dp4a\.(?P<t>s32)\.s32", _call("dp4a", 3)),
    ],
    "vadd2, vsub2, vavrg2, vmin2, vmax2, vabsdiff2 and the same of four": [
        (
            r"v(?P<op>add|sub|avrg|min|max|absdiff)(?P<count>[24])\.(?P<d>[us])32\.(?P<a>[us])32\.(?P<b>[us])32"
            r"(?P<saturates>\.sat)?(?P<sum>\.add)?",
            _video,
        ),
    ],
    "setp, set, selp": [
        (r"setp\.(?P<c>\w+)(?:\.(?P<join>and|or|xor))?(?:\.ftz)?\.(?P<t>[busf](?:16|32|64)|bf16)", _setp),
        (r"set\.(?P<c>\w+)(?:\.ftz)?\.(?P<d>[us]32|f32)\.(?P<t>[busf](?:16|32|64))", _set),
        (r"selp\.(?P<t>[busf](?:16|32|64))", _selp),
    ],
    "mov": [(r"mov\.(?P<t>[busf](?:16|32|64)|pred)", _move)],
    "cvt": [
        (
            r"cvt(?P<m>(?:\.(?:rni|rzi|rmi|rpi|rn|rz|rm|rp|ftz|sat|relu))*)"
            r"\.(?P<d>[us](?:8|16|32|64)|f16|f32|f64|bf16)\.(?P<t>[us](?:8|16|32|64)|f16|f32|f64|bf16)",
            _convert,
        ),
        (r"cvt\.rn(?P<m>(?:\.relu)?)\.(?P<d>b?f16x2)\.f32", _convert_pair),
        (r"cvt\.rna\.tf32\.f32", _to_tf32),
        (r"cvt\.pack\.sat\.(?P<sign>[su])(?P<bits>2|4|8|16)\.s32(?P<third>\.b32)?", _convert_and_pack),
    ],
    "nanosleep, trap, brkpt, exit": [
        (r"nanosleep\.u32", plain("cupyops_yield();")),
        (r"trap", plain("cupyops_trap();")),
        (r"brkpt", _nothing),
        (r"exit", plain("cupyops_exit();")),
    ],
}
