"""Writes the statements of a function of the host in Python.

A statement without a translation becomes a comment. Checks of devices, guards, streams and the dispatch over dtypes are
left out, because a launch checks devices, uses the current stream and chooses the dtype.
"""

import re
from collections.abc import Mapping, Sequence

from .expressions import NotTranslated, expression, parts, python_name, split_angles
from .reading import pairs_of
from .records import HostFunction, Launch

__all__ = ["Body"]

_TYPES = (
    r"auto|dim3|(?:unsigned\s+|signed\s+)?(?:long\s+long|long|int|short|char|float|double|bool|unsigned|size_t|"
    r"u?int\d+_t|uint|scalar_t)(?:\s+int)?|(?:(?:torch|at)\s*::\s*)?Tensor|"
    r"std\s*::\s*(?:vector|array|tuple)\s*<[^;=(]*>|[A-Za-z_]\w*"
)
_DECLARED = re.compile(
    rf"(?:static\s+|constexpr\s+|const\s+)*(?P<type>{_TYPES})(?:\s+const)?"
    r"(?:\s*[*&]+\s*(?:__restrict__\s*|const\s+)?|\s+)"
    r"(?P<rest>[A-Za-z_]\w*\s*(?:=(?!=).*|\(.*|\{.*|,.*|)|\[.*\]\s*=.*)",
    re.DOTALL,
)
_FLOATS = ("float", "double", "scalar_t")
# Statements that a launch makes unnecessary.
_DROPPED = re.compile(
    r"(?:AT_(?:ERROR|CUDA_CHECK)\w*|THC?\w*Check\w*|(?:C10_)?CUDA_(?:KERNEL_)?\w*CHECK\w*|C10_CUDA\w*|gpuErrchk|"
    r"\w*[Ll]ast[Ee]rror\w*|assert|printf|fprintf|exit)\s*\("
    r"|(?:torch|at|c10)\s*::\s*(?:cuda|Device|OptionalDevice)\s*\w*\s*::"
    r"|.*\b(?:cudaStream_t|cudaError_t|getCurrentCUDAStream|\w*CUDAGuard|\w*DeviceGuard|cudaGetLastError|"
    r"cudaDeviceSynchronize|cudaError|cudaSuccess)\b"
    r"|using\b|static_assert",
    re.DOTALL,
)
_CHECK = re.compile(r"(?:(?:TORCH|AT)_(?:INTERNAL_)?(?:CHECK|ASSERT)\w*|CHECK\w*)\s*\((?P<inside>.*)\)", re.DOTALL)
# Conditions about the devices of arrays, which a launch checks.
_PLACE = re.compile(r"\b(?:is_cuda|device|is_cpu|DeviceType|kCUDA|get_device)\b")
_DISPATCH = re.compile(r"\w*DISPATCH\w*\s*\(")
_LAUNCH = re.compile(r"(?:(?:\w+\s*::\s*)*)(?P<name>[A-Za-z_]\w*)\s*(?P<template><(?!<<).*)?<<<", re.DOTALL)


def _dispatched(text: str) -> tuple[str, ...]:
    """Returns the dtypes of a dispatch over dtypes, or nothing for an unknown one."""
    found = re.match(r"AT_DISPATCH_(?P<kinds>FLOATING|ALL|INTEGRAL)_TYPES(?P<more>_AND_HALF|_AND\d?)?\s*\(", text)
    if found is None:
        return ()
    integers = ("uint8", "int8", "int16", "int32", "int64")
    dtypes = {"FLOATING": ("float32", "float64"), "INTEGRAL": integers, "ALL": (*integers, "float32", "float64")}[
        found["kinds"]
    ]
    half = "float16" if found["more"] == "_AND_HALF" or re.search(r"\b(?:k?Half)\b", text[found.end() :]) else ""
    bfloat = "bfloat16" if re.search(r"\bk?BFloat16\b", text[found.end() :]) else ""
    return (*filter(None, (half, bfloat)), *dtypes)


class Body:
    """Writes the statements of a function in Python."""

    def __init__(self, function: HostFunction, body: str) -> None:
        self.function, self.body = function, body
        self.dtypes: tuple[str, ...] = ()
        self.dims: set[str] = set()  # the variables that are a dim3
        self.floats = {a.name for a in function.parameters if a.kind == "float"}

    def _python(self, text: str) -> str:
        """Returns an expression in Python. A ``dim3`` is a tuple."""
        if self.dims:
            names = "|".join(self.dims)
            text = re.sub(rf"\b({names})\s*\.\s*([xyz])\b", lambda m: f"{m[1]}[{'xyz'.index(m[2])}]", text)
        return expression(text, self.floats)

    def write(self) -> None:
        self._statements(self.body, "")
        if not any(line.strip() and not line.strip().startswith("#") for line in self.function.lines):
            self.function.lines.append("pass")

    def _statements(self, text: str, indent: str) -> None:
        pairs, at = pairs_of(text), 0
        while found := re.compile(r"\S").search(text, at):
            begin = found.start()
            if text[begin] == ";":
                at = begin + 1
            elif text[begin] == "#":
                at = (text + "\n").index("\n", begin) + 1
            elif text[begin] == "{":
                at = pairs.get(begin, len(text)) + 1
                self._statements(text[begin + 1 : at - 1], indent)
            elif control := re.compile(r"(if|for|while|switch|do)\b\s*(?:constexpr\s*)?").match(text, begin):
                at = self._control(text, pairs, begin, control, indent)
            elif returned := re.compile(r"(return|else)\b").match(text, begin):
                at = self._end(text, pairs, begin)
                self._return(text[returned.end() : at - 1].strip(), text[begin:at], indent)
            else:
                at = self._end(text, pairs, begin)
                self._statement(text[begin : at - 1].strip(), indent)

    @staticmethod
    def _end(text: str, pairs: Mapping[int, int], at: int) -> int:
        """Returns the offset behind the semicolon of a statement."""
        for match in re.compile(r"[][(){};]").finditer(text, at):
            if match.start() < at:
                continue
            if match[0] == ";":
                return match.end()
            at = pairs.get(match.start(), match.start()) + 1
        return len(text) + 1

    def _block(self, text: str, pairs: Mapping[int, int], at: int, indent: str) -> int:
        """Writes the statement or the block at an offset. Returns the offset behind it."""
        begin = re.compile(r"\s*").match(text, at).end()  # type: ignore[union-attr]
        before = len(self.function.lines)
        if text[begin : begin + 1] == "{":
            end = pairs.get(begin, len(text)) + 1
            self._statements(text[begin + 1 : end - 1], indent)
        elif re.compile(r"(?:if|for|while|switch|do)\b").match(text, begin):
            control = re.compile(r"(if|for|while|switch|do)\b\s*(?:constexpr\s*)?").match(text, begin)
            assert control is not None
            end = self._control(text, pairs, begin, control, indent)
        else:
            end = self._end(text, pairs, begin)
            self._statements(text[begin:end], indent)
        if not any(not line.strip().startswith("#") for line in self.function.lines[before:]):
            self.function.lines.append(f"{indent}pass")
        return end

    def _control(self, text: str, pairs: Mapping[int, int], begin: int, found: re.Match[str], indent: str) -> int:
        closing = pairs.get(found.end(), -1)
        if found[1] == "if" and closing > 0:
            condition = text[found.end() + 1 : closing]
            lines, launches = len(self.function.lines), len(self.function.launches)
            dropped = _DROPPED.match(condition.strip()) is not None
            try:
                written = self._python(condition) if not dropped else "False"
            except NotTranslated:
                written, end = "", self._skipped(text, pairs, closing + 1)
                self._comment(text[begin:end], indent)
                return end
            self.function.lines.append(f"{indent}if {written}:")
            end = self._block(text, pairs, closing + 1, indent + "    ")
            other = re.compile(r"\s*else\b").match(text, end)
            if other is not None:
                self.function.lines.append(f"{indent}else:")
                end = self._block(text, pairs, other.end(), indent + "    ")
            if dropped and len(self.function.launches) == launches:
                del self.function.lines[lines:]
            return end
        loop = re.fullmatch(
            r"\s*(?:const\s+)?(?:\w+\s+)*(\w+)\s*=\s*([^;]+);\s*(\w+)\s*<\s*([^;=]+);\s*(?:\+\+\s*(\w+)|(\w+)\s*\+\+)\s*",
            text[found.end() + 1 : closing] if closing > 0 else "",
        )
        if found[1] == "for" and loop and len({loop[1], loop[3], loop[5] or loop[6]}) == 1:
            try:
                limits = f"{self._python(loop[2])}, {self._python(loop[4])}"
            except NotTranslated:
                limits = ""
            if limits:
                self.function.lines.append(f"{indent}for {loop[1]} in range({limits}):")
                return self._block(text, pairs, closing + 1, indent + "    ")
        end = self._skipped(text, pairs, closing + 1 if closing > 0 else found.end())
        if found[1] == "do":
            end = self._end(text, pairs, end)
        self._comment(text[begin:end], indent)
        return end

    def _skipped(self, text: str, pairs: Mapping[int, int], at: int) -> int:
        begin = re.compile(r"\s*").match(text, at).end()  # type: ignore[union-attr]
        end = pairs.get(begin, len(text)) + 1 if text[begin : begin + 1] == "{" else self._end(text, pairs, begin)
        other = re.compile(r"\s*else\b").match(text, end)
        return self._skipped(text, pairs, other.end()) if other else end

    def _comment(self, text: str, indent: str) -> None:
        self.function.left += 1
        self.function.lines += [f"{indent}# C++: {line.strip()}" for line in text.strip().splitlines() if line.strip()]

    def _return(self, value: str, text: str, indent: str) -> None:
        try:
            if not value:
                found: tuple[str, ...] = ()
            elif listed := re.fullmatch(
                r"(?:std\s*::\s*(?:make_tuple|tuple|vector)\s*(?:<[^(]*>)?\s*)?[({](.*)[)}]", value, re.DOTALL
            ):
                found = tuple(self._python(part) for part in parts(listed[1]))
            else:
                found = (self._python(value),)
        except NotTranslated:
            self._comment(text, indent)
            return
        self.function.results.append(found)
        self.function.lines.append(f"{indent}return {', '.join(found)}".rstrip())

    def _statement(self, text: str, indent: str) -> None:
        if _DISPATCH.match(text) and "{" in text:
            opening = text.index("{", text.index("[") if "[" in text else 0)
            closing = pairs_of(text).get(opening, len(text))
            before, self.dtypes = self.dtypes, _dispatched(text[:opening])
            self._statements(text[opening + 1 : closing], indent)
            self.dtypes = before
            return
        if (launch := _LAUNCH.match(text)) is not None:
            self._launch(text, launch, indent)
            return
        if (check := _CHECK.fullmatch(text)) is not None:
            self._check(text, parts(check["inside"]), indent)
            return
        if not text or _DROPPED.match(text):
            return
        try:
            self._assignment(text, indent)
        except NotTranslated:
            self._comment(f"{text};", indent)

    def _check(self, text: str, inside: Sequence[str], indent: str) -> None:
        """Writes a check of the host half as Python code that raises ValueError."""
        if not inside or _PLACE.search(inside[0]):
            return
        own = re.match(r"CHECK\w*", text)
        try:
            if own and not re.search(r"CONTIGUOUS|INPUT", own[0]):
                raise NotTranslated(text)
            condition = f"{inside[0]}.is_contiguous()" if own else self._python(inside[0])
        except NotTranslated:
            self._comment(f"{text};", indent)
            return
        words = f"{self.function.name}: {condition} does not hold".replace("\\", r"\\").replace('"', r"\"")
        self.function.lines += [f"{indent}if not ({condition}):", f'{indent}    raise ValueError("{words}")']

    def _assignment(self, text: str, indent: str) -> None:
        if unpacked := re.fullmatch(r"(?:const\s+)?auto\s*&{0,2}\s*\[([\w\s,]+)\]\s*=(?!=)(.*)", text, re.DOTALL):
            self.function.lines.append(f"{indent}{', '.join(parts(unpacked[1]))} = {self._python(unpacked[2])}")
            return
        declared = _DECLARED.fullmatch(text)
        if declared is not None and declared["type"] not in ("return", "delete", "throw", "goto"):
            kind = declared["type"]
            for part in parts(declared["rest"]):
                self._declared(kind, part, indent)
            return
        if assigned := re.fullmatch(r"([\w.\[\]]+)\s*([-+*]?)=(?!=)(.*)", text, re.DOTALL):
            self.function.lines.append(f"{indent}{assigned[1]} {assigned[2]}= {self._python(assigned[3])}")
            self.function.locals.pop(assigned[1], None)
            return
        self.function.lines.append(f"{indent}{self._python(text)}")

    def _declared(self, kind: str, part: str, indent: str) -> None:
        found = re.fullmatch(r"[*&\s]*(\w+)\s*(?:=(?!=)(.*)|[({](.*)[)}])?", part, re.DOTALL)
        if found is None:
            raise NotTranslated(part)
        name, value = python_name(found[1]), found[2] if found[2] is not None else found[3]
        if kind in _FLOATS:
            self.floats.add(name)
        if not (value or "").strip():
            return
        dim3 = re.fullmatch(r"\s*dim3\s*[({](.*)[)}]\s*", value, re.DOTALL)
        if kind == "dim3" or dim3:
            numbers = tuple(self._python(p) for p in parts(dim3[1] if dim3 else value))
            self.function.locals[name] = numbers
            self.dims.add(name)
            written = f"({', '.join(numbers)}{',' if len(numbers) == 1 else ''})"
        else:
            integral = kind not in _FLOATS and kind not in ("auto", "bool")
            written = self._python(value)
            self.function.locals[name] = (written,)
            if integral and "math." in written and not written.startswith("int("):
                written = f"int({written})"
        self.function.lines.append(f"{indent}{name} = {written}")

    def _launch(self, text: str, found: re.Match[str], indent: str) -> None:
        opening = found.end()
        closing = text.index(">>>", opening) if ">>>" in text[opening:] else len(text)
        config = parts(text[opening:closing])
        behind = text[closing + 3 :].strip()
        template = tuple(parts(split_angles(found["template"])[0])) if found["template"] else ()
        listed = behind[1 : pairs_of(behind).get(0, len(behind))] if behind.startswith("(") else ""
        one_line = re.sub(r"\s+", " ", text)
        place = f"<launch {len(self.function.launches)}>"
        launch = Launch(
            found["name"],
            template,
            self._size(config[0] if config else ""),
            self._size(config[1] if len(config) > 1 else ""),
            config[2] if len(config) > 2 else "",
            tuple(self._passed(part) for part in parts(listed)),
            one_line,
            self.dtypes,
            place,
        )
        self.function.launches.append(launch)
        self.function.lines.append(f"{indent}{place}")

    def _size(self, text: str) -> tuple[str, ...]:
        """Returns the components of a grid or block in Python, or nothing if they have no translation."""
        listed = re.fullmatch(r"(?:dim3\s*)?[({](.*)[)}]", text.strip(), re.DOTALL)
        if listed and not text.strip().startswith("("):
            text_parts = parts(listed[1])
        else:
            name = text.strip()
            if name in self.function.locals and len(self.function.locals[name]) > 1:
                return tuple(f"{name}[{i}]" for i in range(len(self.function.locals[name])))
            text_parts = [text]
        try:
            return tuple(self._python(part) for part in text_parts if part.strip())
        except NotTranslated:
            return ()

    def _passed(self, part: str) -> str:
        try:
            return self._python(part)
        except NotTranslated:
            return f"# {' '.join(part.split())}"
