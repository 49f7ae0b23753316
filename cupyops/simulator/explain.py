"""Explains a failed host compilation: the compiler's errors, the source lines, and whether NVRTC accepts the text."""

import re
from collections.abc import Sequence

from cupyops.compile import toolchain
from cupyops.compile.compiler import OPTIONS, compile_text
from cupyops.errors import CompileError

from . import host

__all__ = ["explain", "lines_by_file"]

_MESSAGE = re.compile(
    r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:\d+:)? +(?P<words>(?:fatal )?error: .*|.*required from here.*)$",
    re.MULTILINE,
)


def explain(what: str, log: str, text: str, options: Sequence[str]) -> str:
    """Returns the message of a CompileError.

    Args:
        what: the kernel's name and dtypes.
        log: the host compiler's output.
        text: the final text, as NVRTC compiles it.
        options: the kernel's compile options for NVRTC.
    """
    files = lines_by_file(text)
    parts = [f"{what} does not compile for the simulator, by {host.compiler().version}:"]
    shown = set()
    for message in _MESSAGE.finditer(log):
        name, line = message["file"], int(message["line"])
        name = next((f for f in files if name == f or name.endswith("/" + f)), name)
        parts.append(f"{name}:{line}: {_plain(message['words'])}")
        if (name, line) not in shown and name in files:
            shown.add((name, line))
            near = [n for n in range(line - 2, line + 3) if n in files[name]]
            parts += [f"{'>' if n == line else ' '} {n:4d} | {files[name][n]}" for n in near]
    if len(parts) == 1:
        parts.append(log.strip()[:4000])
    return "\n".join([*parts, _nvrtc_says(what, text, options)])


def _plain(words: str) -> str:
    """Returns the compiler's message; a note follows if the message names something that the simulator lacks."""
    missing = re.search(
        r"[‘'](\w+)[’'] (?:was not declared|is not a member of)|no member named '(\w+)'|use of undeclared identifier '(\w+)'",
        words,
    )
    if missing:
        return (
            f"{words} (the text declares no `{missing[1] or missing[2] or missing[3]}`, and neither does the simulator)"
        )
    return words


def _nvrtc_says(what: str, text: str, options: Sequence[str]) -> str:
    if not toolchain.has_nvrtc():
        return "NVRTC was not tried on the text: it is not installed here."
    try:
        compile_text(text, what, "sm_90a", (*OPTIONS, *options))
    except CompileError as error:
        return f"NVRTC rejects the text, too. {error}"
    except Exception as error:  # for example, the CUDA headers of this NVRTC may be missing
        return f"NVRTC could not be tried on the text: {error}"
    return "NVRTC accepts the text (for sm_90a): it uses something that the simulator does not cover."


def lines_by_file(text: str) -> dict[str, dict[int, str]]:
    """Returns the lines of a final text by file name and line number, according to the ``#line`` directives."""
    files: dict[str, dict[int, str]] = {}
    name, number = "cupyops.cu", 1
    for line in text.split("\n"):
        if line.startswith("#line ") and (directive := re.match(r'#line (\d+) "([^"]+)"', line)):
            number, name = int(directive[1]), directive[2]
        else:
            files.setdefault(name, {})[number] = line
            number += 1
    return files
