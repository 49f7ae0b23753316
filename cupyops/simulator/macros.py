"""Hides the macros of the host compiler and of its headers from a kernel's text.

A text asks by macros which compiler reads it: ``#ifdef __x86_64__``. NVRTC has few of the macros that a host compiler has, so a text
would take another branch in the simulator. The compiler lists its macros itself; the headers that are written here undefine them for
the text, and define them again while a header of a library is read.
"""

import re
from collections.abc import Callable
from pathlib import Path

__all__ = ["LISTING", "OF_COMPILER", "UNDEFINED", "write"]

# The options with which a compiler prints all macros in the order of their definitions, and the files that define them.
LISTING = ("-dD", "-E")
UNDEFINED = "cupyops_undefined.h"  # the header that undefines the macros
# The header that undefines the macros that the compiler defines again when it reads a precompiled header.
OF_COMPILER = "cupyops_undefined_again.h"
_LINE = re.compile(r'^#(?: \d+ "(?P<file>[^"\n]*)"|define (?P<name>\w+)(?P<rest>.*)|undef (?P<gone>\w+))', re.MULTILINE)
# Macros of the compiler and of its headers that NVRTC has, too. It was asked for all macros of g++ 12 and clang 22. For
# the last names, NVRTC gets a macro from the prelude of a text that uses them; the host's library has functions or
# enumerators.
_OF_NVRTC = frozenset(
    (
        *(
            "__cplusplus",
            "__LP64__",
            "__STDC__",
            "__STDC_HOSTED__",
            "__STDCPP_DEFAULT_NEW_ALIGNMENT__",
            "__PRAGMA_REDEFINE_EXTNAME",
        ),
        *("__THROW", "_WCHAR_T", "NULL", "offsetof", "INFINITY", "NAN", "HUGE_VAL", "HUGE_VALF"),
        *("FE_TONEAREST", "FE_DOWNWARD", "FE_UPWARD", "FE_TOWARDZERO"),
    )
)
# NVRTC has the feature macros of C++, except these.
_FEATURE = re.compile(
    r"__cpp_(?!lib_|(?:runtime_arrays|constexpr_in_decltype|deleted_function|digit_separators|named_character_escapes|pack_indexing"
    r"|placeholder_variables|rvalue_reference|static_call_operator|template_auto|trivial_relocatability|variadic_friend)\Z)"
)


def _of_host(listing: str, own: Path) -> dict[str, str]:
    """Returns the macros that a text must not see, by name: the rest of the line that defines each.

    Args:
        listing: what the compiler prints with the options :data:`LISTING`.
        own: the folder of the simulator, whose headers define macros for the text.
    """
    found: dict[str, str] = {}
    inside = False
    for line in _LINE.finditer(listing):
        if line["file"] is not None:
            inside = line["file"].startswith(str(own))
        elif (name := line["name"] or line["gone"]) and (inside or line["gone"]):
            found.pop(name, None)
        elif not (
            name in _OF_NVRTC or _FEATURE.match(name) or name.startswith("CUPYOPS")
        ):  # those of the options -D are own
            found[name] = line["rest"]
    return found


def _of_compiler(listing: str, own: Path) -> set[str]:
    """Returns the names that the compiler and its preamble define: those that the listing has before the simulator's headers."""
    found: set[str] = set()
    for line in _LINE.finditer(listing):
        if (line["file"] or "").startswith(str(own)):
            break
        found.add(line["name"] or "")
    return found


def write(listing: str, own: Path, folder: Path, write_file: Callable[[Path, str], None]) -> None:
    """Writes the headers into a folder. A text may define such a macro itself: its definition is kept while a header of a library is
    read."""
    macros = _of_host(listing, own)
    of_compiler = [*filter(_of_compiler(listing, own).__contains__, macros)]
    shown = "".join(f'#pragma push_macro("{n}")\n#undef {n}\n#define {n}{rest}\n' for n, rest in macros.items())
    restored = "".join(f'#pragma pop_macro("{name}")\n' for name in macros)
    state = "#undef CUPYOPS_OF_LIBRARY\n#define CUPYOPS_OF_LIBRARY"
    # Compilers do not list __COUNTER__, and no header of a library needs it.
    for header, names in ((UNDEFINED, macros), (OF_COMPILER, of_compiler)):
        write_file(folder / header, "".join(f"#undef {name}\n" for name in [*names, "__COUNTER__"]))
    write_file(folder / "cupyops_of_library.h", f"#if !CUPYOPS_OF_LIBRARY\n{shown}{state} 1\n#endif\n")
    write_file(
        folder / "cupyops_of_text.h",
        f"#if !defined(CUPYOPS_OF_LIBRARY)\n#include <{UNDEFINED}>\n#elif CUPYOPS_OF_LIBRARY\n{restored}#endif\n{state} 0\n",
    )
