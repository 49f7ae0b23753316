"""Translates inline PTX, ``asm("..." : outputs : inputs)``, to C++ that calls the functions of ``cuda/ptx.h``.

A statement becomes a block: registers are local variables, predicates are bools, labels are local labels. An instruction
that the simulator does not cover becomes a compile error that names the instruction. The error takes the place of
the statement, so a branch that the preprocessor removes does not report it.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from cupyops.compile.cuda_text import scan
from cupyops.compile.preprocess import CONDITIONALS, preprocess

from .instructions import ARITHMETIC, Unknown, type_of
from .instructions_of_memory import MEMORY

__all__ = ["INSTRUCTIONS", "translate_asm"]

_ARCHITECTURE = "900"  # the value of __CUDA_ARCH__ in cuda/text_only.h
INSTRUCTIONS = {**ARITHMETIC, **MEMORY}
_ROWS = [(re.compile(pattern), row) for rows in INSTRUCTIONS.values() for pattern, row in rows]

# A directive is not blanked, since public texts define most of their PTX in macros.
_TOKEN = re.compile(
    r"(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)"
    r'|(?P<raw>R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)")'
    r'|(?P<string>"(?:\\.|[^"\\\n])*")'
    r"|(?P<number>\b\d(?:'?[\w.])*)|'(?:\\.|[^'\\\n])+'"
    r"|(?P<asm>\b(?:asm|__asm__|__asm)\b)|(?P<word>\b[A-Za-z_]\w*)|(?P<mark_>[(){}\[\]:,])",
    re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "'": "'", "\n": ""}
_CONSTRAINT = re.compile(r"^(\+|=&?)?([rlhfdnC]|[0-9]+)$")
_REGISTERS = {
    "r": "unsigned",
    "l": "unsigned long long",
    "h": "unsigned short",
    "f": "unsigned",
    "d": "unsigned long long",
}


def translate_asm(text: str) -> tuple[str, bool]:
    """Returns the text with each asm statement as C++, and whether the text has such a statement."""
    pieces, at, found = [], 0, False
    for match in _TOKEN.finditer(text) if "asm" in text else ():
        if match["asm"] is None or match.start() < at:
            continue
        statement = _read(text, match.end())
        if statement is None:  # not a statement: `register int x asm("r0")` and the like stay as they are
            continue
        found = True
        if "#" in text[match.end() : statement.end]:
            statement = _read(_decided(text, match.end(), statement.end), match.end()) or statement
        lines = re.findall(r"\\?\n", text[match.start() : statement.end])
        pieces += [text[at : match.start()], _cpp(statement), "".join(lines)]
        at = statement.end
    return "".join(pieces) + text[at:], found


def _decided(text: str, start: int, end: int) -> str:
    """Returns a text with blanks for its directives between two offsets, and for the code there that conditions remove."""
    directives = [d for d in scan(text).directives_between(start, end) if d.name in CONDITIONALS]
    if not directives:
        return text
    followed, pieces, at = preprocess(text, {}, {"__CUDA_ARCH__": _ARCHITECTURE}), [text[:start]], start
    for directive, behind in zip(directives, [*directives[1:], None], strict=True):
        last = behind.start if behind else end
        code = text[directive.end : last]
        pieces += [text[at : directive.start], _blank(text[directive.start : directive.end])]
        pieces.append(_blank(code) if followed.live("", directive.end) is False else code)
        at = last
    return "".join(pieces) + text[at:]


def _blank(code: str) -> str:
    return re.sub(r"[^\n]", " ", code)


@dataclass
class _Statement:
    """An asm statement: its PTX, the operands as constraint and expression, and the offset after it.

    ``broken`` says why the statement cannot be read.
    """

    ptx: str = ""
    outputs: list[tuple[str, str]] = field(default_factory=list)
    inputs: list[tuple[str, str]] = field(default_factory=list)
    end: int = 0
    broken: str = ""


def _read(text: str, at: int) -> _Statement | None:
    """Parses the asm statement whose keyword ends at an offset; returns None if no parenthesis follows."""
    opened = re.compile(r"(?:\s|\\\n|\b(?:volatile|__volatile__|__volatile|inline|goto)\b)*\(").match(text, at)
    if opened is None:
        return None
    statement = _Statement()
    depth, section, begin = 1, 0, opened.end()
    strings: list[str] = []
    pieces: list[tuple[str, str]] = []  # constraint and expression of each operand of the section
    constraint, expression_from = "", 0
    sections: list[list[tuple[str, str]]] = []
    for match in _TOKEN.finditer(text, begin):
        if match["comment"]:
            continue
        token = match[0]
        if token in ("(", "[", "{"):
            depth += 1
            if depth == 2 and section in (1, 2) and token == "(":
                expression_from = match.end()
        elif token in (")", "]", "}"):
            depth -= 1
            if depth == 1 and section in (1, 2) and token == ")":
                pieces.append(
                    (
                        constraint,
                        re.sub(r"\\?\n", " ", _without_comments(text[expression_from : match.start()])).strip(),
                    )
                )
                constraint = ""
            if depth == 0:
                statement.end = match.end()
                break
        elif depth == 1 and token == ":":
            sections.append(pieces)
            pieces, section = [], section + 1
        elif depth == 1 and (match["string"] or match["raw"]):
            if section == 0:
                strings.append(_unescaped(token))
            else:
                constraint = token.strip('"')
        elif depth == 1 and match["word"] and section <= 2:
            expanded = _expanded(text, token, match.end())
            if section:
                constraint = expanded or ""
            elif expanded is None:
                statement.broken = f"a template with the macro `{token}`"
            else:
                strings.append(expanded)
    else:
        return None
    sections.append(pieces)
    statement.ptx = "".join(strings)
    statement.outputs = sections[1] if len(sections) > 1 else []
    statement.inputs = sections[2] if len(sections) > 2 else []
    return statement


def _expanded(text: str, name: str, end: int) -> str | None:
    """Returns the string that a macro in a template stands for, or None.

    Args:
        text: the final text.
        name: the macro.
        end: the offset after its name, where its arguments in parentheses may begin.
    """
    followed = preprocess(text, {}, {})
    for directive in scan(text).directives:
        found = re.fullmatch(rf"{name}(?:\(([^()]*)\))?(?:\s+(.*))?", directive.rest, re.DOTALL)
        if directive.name != "define" or found is None or followed.live("", directive.start) is False:
            continue
        names = [part.strip() for part in found[1].split(",")] if found[1] is not None else []
        called = re.compile(r"\s*\(([^()]*)\)").match(text, end) if names else None
        given = [part.strip() for part in called[1].split(",")] if called else []
        if len(given) != len(names):
            return None
        arguments = dict(zip(names, given, strict=True))
        strings = []
        for token in re.findall(r"\"(?:\\.|[^\"\\])*\"|#\s*\w+|\w+|\S", found[2] or ""):
            word = token.lstrip("# ")
            if token[0] == '"':
                strings.append(_unescaped(token))
            elif word not in arguments or (token[0] != "#" and arguments[word][:1] != '"'):
                return None
            else:
                strings.append(arguments[word] if token[0] == "#" else _unescaped(arguments[word]))
        return "".join(strings)
    return None


def _instruction(block: "_Block", opcode: str, operands: list[str]) -> str:
    """Returns the C++ of one instruction."""
    for pattern, row in _ROWS:
        if match := pattern.fullmatch(opcode):
            try:
                return row(block, match, operands)
            except (IndexError, ValueError):
                raise Unknown(f"`{opcode} {', '.join(operands)}`") from None
    raise Unknown(f"the instruction `{opcode}`")


def _without_comments(text: str) -> str:
    return _TOKEN.sub(lambda m: " " if m["comment"] else m[0], text)


def _unescaped(token: str) -> str:
    if token.startswith("R"):
        return token[token.index("(") + 1 : token.rindex(")")]
    return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), token[1:-1], flags=re.DOTALL)


def _cpp(statement: _Statement) -> str:
    """Returns the C++ of an asm statement, without its semicolon."""
    try:
        if statement.broken:
            raise Unknown(statement.broken)
        return _Block(statement).cpp()
    except Unknown as unknown:
        words = f"the simulator does not cover {unknown} in inline PTX; give the function a twin in C++ under #ifdef CUPYOPS_SIMULATOR"
        words = words.replace("\\", "/").replace('"', "'")
        # The compiler reports the call if it is compiled: a kernel may include functions that it does not call.
        name = f"cupyops_not_covered_{zlib.crc32(words.encode()):x}"
        return f'do {{ void {name}() __attribute__((error("{words}"))); {name}(); }} while (0)'


class _Block:
    """The C++ block of one statement."""

    def __init__(self, statement: _Statement) -> None:
        self._statement = statement
        operands = statement.outputs + statement.inputs
        self.operands = len(operands)
        self._names: list[dict[str, str]] = [{}]  # registers by PTX name, innermost scope last
        self._labels: list[str] = []
        self._declared: list[str] = []
        self._count = 0

    def cpp(self) -> str:
        before, after = self._operands()
        body = list(self._body(self._statement.ptx))
        if any("cupyops_carry" in one for one in body):
            before.insert(0, "bool cupyops_carry = cupyops_ptx::carry_of_thread();")
            after.append("cupyops_ptx::keep_carry(cupyops_carry);")
        labels = f"__label__ {', '.join(self._labels)}; " if self._labels else ""
        return f"do {{ {labels}{' '.join([*before, *self._declared, *body, *after])} }} while (0)"

    def _operands(self) -> tuple[list[str], list[str]]:
        """Returns the C++ that reads the operands to registers, and the C++ that writes the outputs back."""
        before, after = [], []
        outputs = len(self._statement.outputs)
        for number, (constraint, expression) in enumerate(self._statement.outputs + self._statement.inputs):
            found = _CONSTRAINT.match(constraint)
            if found is None or (number < outputs) != bool(found[1]):
                raise Unknown(f"the constraint `{constraint}`")
            kind = found[2]
            register = f"cupyops_{number}"
            if kind.isdigit():  # the input shares the register of an output
                shared = int(kind)
                if shared >= outputs:
                    raise Unknown(f"the constraint `{constraint}`")
                kind = self._statement.outputs[shared][0].lstrip("=+&")
                before.append(f"cupyops_{shared} = cupyops_ptx::in<{_REGISTERS[kind]}>({expression});")
                before.append(f"auto& {register} = cupyops_{shared};")
            elif kind in "nC":
                before.append(f"const unsigned long long {register} = (unsigned long long)({expression});")
            elif number < outputs:
                kept = f"cupyops_out_{number}"
                start = f"cupyops_ptx::in<{_REGISTERS[kind]}>({kept})" if found[1] == "+" else "0"
                before.append(f"auto&& {kept} = ({expression}); {_REGISTERS[kind]} {register} = {start};")
                after.append(f"{kept} = cupyops_ptx::out<cupyops_ptx::bare<decltype({kept})>>({register});")
            else:
                before.append(f"{_REGISTERS[kind]} {register} = cupyops_ptx::in<{_REGISTERS[kind]}>({expression});")
        return before, after

    def _body(self, ptx: str) -> Iterator[str]:
        plain = re.sub(r"//[^\n]*|/\*.*?\*/", " ", ptx, flags=re.DOTALL)
        if not self.operands:  # without operands, a percent sign is literal
            plain = plain.replace("%%", "%").replace("%", "%%")
        plain = plain.replace("%=", "").replace("%{", "{").replace("%}", "}").replace("%|", "|")
        for statement in self._statements(plain):
            yield from self._one(statement)

    @staticmethod
    def _statements(ptx: str) -> Iterator[str]:
        """Splits PTX at semicolons, at labels, and at the braces that open and close a scope."""
        at = 0
        for match in re.finditer(r";|\{|\}|([$\w]+)\s*:(?!:)", ptx):
            if match.start() < at:
                continue
            token = match[0]
            before = ptx[at : match.start()].strip()
            if token == "{" and before:
                continue  # a vector of an instruction
            if token == "}" and before:
                if "{" in before:
                    continue
                raise Unknown(f"`{before}` without a semicolon")
            if match[1] and before:
                continue  # a part of a modifier
            if token == ";":
                if before:
                    yield before
            else:
                yield token
            at = match.end()
        rest = ptx[at:].strip()
        if rest:
            yield rest

    def _one(self, statement: str) -> Iterator[str]:
        if statement == "{":
            self._names.append({})
        elif statement == "}":
            if len(self._names) > 1:
                self._names.pop()
        elif statement.endswith(":"):
            yield f"{self._label(statement[:-1].strip())}:;"
        elif statement.startswith(".reg"):
            self._declare(statement)
        elif statement.startswith("."):
            if statement.startswith(".pragma"):  # it changes no value
                return
            raise Unknown(f"the directive `{statement.split()[0]}`")
        else:
            guarded = re.match(r"@(!?)\s*([$%\w]+)\s+(.*)", statement, re.DOTALL)
            guard = ""
            if guarded:
                guard = f"if ({guarded[1]}{self.value(guarded[2])}) "
                statement = guarded[3]
            words = re.split(r"\s+|(?=\{|\[)", statement, maxsplit=1)  # ptxas needs no blank before a brace
            opcode, rest = words[0], words[1] if len(words) > 1 else ""
            operands = [o.strip() for o in _split(rest)] if rest.strip() else []
            if opcode in ("bra", "bra.uni"):
                yield f"{guard}goto {self._label(operands[0])};"
            else:
                yield f"{guard}{{ {_instruction(self, opcode, operands)} }}"

    def _declare(self, statement: str) -> None:
        found = re.match(r"\.reg\s+(?:\.v[24]\s+)?\.(\w+)\s+(.*)", statement, re.DOTALL)
        if found is None or ".v" in statement.split(found[1])[0]:
            raise Unknown(f"the declaration `{' '.join(statement.split())}`")
        kind = "bool" if found[1] == "pred" else type_of(found[1]).register
        for name in found[2].split(","):
            many = re.fullmatch(r"\s*([$%\w]+)<(\d+)>\s*", name)
            for one in [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name.strip()]:
                self._count += 1
                variable = f"cupyops_reg_{self._count}"
                self._names[-1][one.replace("%%", "%")] = variable
                self._declared.append(f"{kind} {variable} = 0;")

    def _label(self, name: str) -> str:
        label = "cupyops_label_" + name.strip().replace("$", "_")
        if label not in self._labels:
            self._labels.append(label)
        return label

    def value(self, operand: str) -> str:
        """Returns the C++ of a source operand: a register, a number, or a special register."""
        operand = operand.strip()
        if operand.startswith("!"):
            return f"!{self.value(operand[1:])}"
        if found := self._register(operand):
            return found
        if re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d*)U?", operand):
            digits = operand.rstrip("U")
            return f"(unsigned long long)({digits}{'ull' if digits.lstrip('-').lower().startswith('0x') else 'll'})"
        if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", operand):
            return f"0x{operand[2:]}u"
        if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", operand):
            return f"0x{operand[2:]}ull"
        if special := _SPECIAL.get(operand.replace("%%", "%")):
            return f"(unsigned long long)({special})"
        raise Unknown(f"the operand `{operand}`")

    def floating(self, operand: str, kind: str) -> str:
        """Returns the C++ of an operand that may be a decimal number of a type."""
        if re.fullmatch(r"-?\d+\.\d*(?:[eE][-+]?\d+)?", operand):
            return f"cupyops_ptx::bits(cupyops_ptx::{kind}({operand}{'' if kind == 'f64' else 'f'}))"
        return self.value(operand)

    def target(self, operand: str) -> str:
        """Returns the C++ of a destination register."""
        if operand.strip() == "_":
            self._count += 1
            self._declared.append(f"unsigned long long cupyops_reg_{self._count} = 0;")
            return f"cupyops_reg_{self._count}"
        if found := self._register(operand.strip()):
            return found
        raise Unknown(f"the operand `{operand}`")

    def _register(self, operand: str) -> str:
        if re.fullmatch(r"%\d+", operand) and self.operands:
            if int(operand[1:]) >= self.operands:
                raise Unknown(f"the operand `{operand}`, which the statement lacks,")
            return f"cupyops_{int(operand[1:])}"
        name = operand.replace("%%", "%")
        return next((scope[name] for scope in reversed(self._names) if name in scope), "")

    def address(self, operand: str, space: str) -> str:
        """Returns the C++ of an address, ``[%0 + 16]``, in a state space."""
        found = re.fullmatch(r"\[\s*([$%\w]+)\s*(?:([+-])\s*(-?[%\w]+))?\s*\]", operand)
        if found is None:
            raise Unknown(f"the address `{operand}`")
        sum_ = f"(unsigned long long)({self.value(found[1])})"
        if found[3]:
            sum_ += f" {found[2]} {self.value(found[3])}"
        return f"cupyops_ptx::{'shared' if space == 'shared' else 'generic'}({sum_})"

    def vector(self, operand: str) -> list[str]:
        """Returns the elements of ``{a, b}``, or the operand alone."""
        operand = operand.strip()
        return [p.strip() for p in _split(operand[1:-1])] if operand.startswith("{") else [operand]


def _split(text: str) -> list[str]:
    """Splits at the commas outside braces and brackets."""
    pieces, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "{[") - (c in "}]")
        if c == "," and depth == 0:
            pieces.append(text[start:i])
            start = i + 1
    return [*pieces, text[start:]]


_SPECIAL = {
    "%laneid": "cupyops_lane()",
    "%warpid": "cupyops_ptx::warp_number()",
    "%nwarpid": "32u",
    "%smid": "cupyops_ptx::multiprocessor()",
    "%nsmid": "4u",
    "%lanemask_eq": "1u << cupyops_lane()",
    "%lanemask_lt": "(1u << cupyops_lane()) - 1",
    "%lanemask_le": "cupyops_ptx::lanes_up_to()",
    "%lanemask_gt": "~cupyops_ptx::lanes_up_to()",
    "%lanemask_ge": "~((1u << cupyops_lane()) - 1)",
    "%clock": "cupyops_clock()",
    "%clock64": "cupyops_clock()",
    "%globaltimer": "cupyops_clock()",
    "%cluster_ctarank": "cupyops_cluster_rank()",
    "%cluster_nctarank": "__clusterSizeInBlocks()",
    "%dynamic_smem_size": "cupyops_dynamic_bytes()",
    "WARP_SZ": "32u",
    **{
        f"%{ptx}.{axis}": f"{cpp}.{axis}"
        for ptx, cpp in (("tid", "threadIdx"), ("ntid", "blockDim"), ("ctaid", "blockIdx"), ("nctaid", "gridDim"))
        for axis in "xyz"
    },
}
