"""Translates the final CUDA text, as NVRTC compiles it, to C++ for the host compiler.

Headers define most CUDA names. This module does two rewrites that headers cannot do. A declaration of shared memory
becomes a reference to memory that the runtime allocates for each block. The kernel gets an entry function that takes
the driver's array of argument pointers. Line numbers do not change.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial

from cupyops.compile.ask import asked_in
from cupyops.compile.cuda_text import Code, scan
from cupyops.compile.definitions import split
from cupyops.compile.file_scope import variables
from cupyops.compile.linking import joined, parts
from cupyops.compile.source import named_kernels
from cupyops.errors import CompileError
from cupyops.launch.definitions import declarations, split_name

from .ptx import translate_asm

__all__ = ["translate"]

# A search is faster for a pattern that begins with letters than for one that begins with \b.
_SHARED = re.compile(r"__shared__(?<!\w__shared__)\b")
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define\b(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_DYNAMIC = re.compile(r"\bextern\s+(?:[\w()]+\s+)*?__shared__\b[^;{}#]*;")
_STATIC = re.compile(r"(?:\bstatic\s+)?\b__shared__\b(?:[^;{}#]|##|\\\n)*;")
# A macro that stands for the word: its name and its text.
_WORD_OF_SHARED = re.compile(
    r"^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)[ \t]+((?:[\w()]+[ \t]+)*__shared__(?:[ \t]+[\w()]+)*)[ \t]*$",
    re.MULTILINE,
)
# A declaration of a function of CUDA. In the simulator the function's name is a macro.
_BUILT_IN = re.compile(
    r"extern(?<!\wextern)\s+(?:(?:[\w*]|\"C\")+\s+)*?__device(?:_builtin)?__\s+(?:[\w*]+\s+)*?__\w+\s*\([^;{}()]*\)\s*;"
)
_LINE = re.compile(r'^#line (\d+) "([^"]+)"', re.MULTILINE)
_QUALIFIERS = re.compile(r"(?:::\s*)?(?:\b\w+\s*::\s*)+$")  # the namespaces of `void a::b::name`
# The functions of cuda/simd.h.
_SIMD = re.compile(
    r"__(?<!\w__)(?:v(?:abs|add|avg|cmp|hadd|max|min|neg|sad|set|sub)\w*[24]|vib?(?:add|max|min)\w+|fns|dp2a_(?:lo|hi))\b"
)
# The types and the functions of cuda/textures.h. A text may keep an object as an integer.
_TEXTURES = re.compile(
    r"(?:cuda(?<!\wcuda)(?:Texture|Surface)Object_t|CU(?<!\wCU)(?:tex|surf)Object)\b"
    r"|tex(?<!\wtex)(?:[123]D|Cubemap)[A-Za-z]*\s*[<(]|surf(?<!\wsurf)(?:[123]D|Cubemap)[A-Za-z]*\s*[<(]"
)
# The types of cuda/host_types.h.
_HOST_TYPES = re.compile(
    r"cuda(?<!\wcuda)(?:(?:Error|Stream|Event|Graph|GraphExec|GraphNode|MemPool|ExternalMemory|ExternalSemaphore|MipmappedArray|GraphicsResource"
    r"|IpcMemHandle)_t|Array(?:_t)?|DeviceProp|FuncAttributes|Extent|Pos|PitchedPtr|ChannelFormat\w+|Memcpy(?:Kind|HostTo\w+|DeviceTo\w+"
    r"|Default)|Texture(?:Read|Address|Filter)Mode|(?:Read|Address|Filter)Mode\w+"
    r"|DataType(?:_t)?)\b"
)
_HEADERS_OF_TYPES = (("textures.h", _TEXTURES), ("host_types.h", _HOST_TYPES))
# Assignments of `{}` and of `{a, b}` to a variable, where CUDA's headers have several assignments of pairs of 16-bit floats.
_PAIRS_OF_FLOATS = re.compile(r"\b(?:__)?(?:half2|nv_bfloat162)\b", re.ASCII)
_FILLED = re.compile(r"=\s*\{(?:(\s*\}\s*;)|(?!\s*\}))")
_VARIABLE = re.compile(r"(\s*)([A-Za-z_][\w.]*(?:\[[^][;{}]*\])*)\s*")
_LARGEST = 1 << 18  # elements of dynamic shared memory, which the runtime bounds
# A call of a member template. nvcc's parser of device code needs no word `template` before the name.
_MEMBER_CALL = re.compile(
    r"(\.(?<=[\w)\]]\.)|->(?<=[\w)\]]->))(\s*)([A-Za-z_]\w*)(?=\s*<(?:[^;{}()<>]|<[^;{}()<>]*>|\([^;{}()]*\))*>\s*\()"
)
_MEMBER_TEMPLATE = re.compile(
    r"template(?<!\wtemplate)\s*<[^;{}()]*>\s*(?:[\w:<>,*&\s]|\[\[\w+\]\])*?\b([A-Za-z_]\w*)\s*\("
)
_OPEN, _CLOSE = "([{", ")]}"


def translate(text: str, kernels: Sequence[str], what: str) -> str:
    """Returns the C++ of a final text.

    Args:
        text: the result of :func:`cupyops.launch.kernel_source.KernelSource.final`. If texts are linked, the first
            has the kernels.
        kernels: the names of the kernel functions; none for a text of questions alone.
        what: the kernel's name and dtypes, for messages.

    Raises:
        CompileError: the simulator does not support the form of a shared memory declaration; the message names the
            line.
    """
    first, *others = parts(text)
    entries = (_entry(first, kernels) if kernels else "") + _answers(first)
    pieces = [_without_shared(first, what) + entries, *(_without_shared(t, what) for t in others)]
    return joined(pieces)


def _without_shared(text: str, what: str) -> str:
    """Returns a final text with references in place of its declarations of shared memory, and calls in place of PTX."""
    text = _BUILT_IN.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    for name, words in _WORD_OF_SHARED.findall(text):
        text = re.sub(rf"(^[ \t]*#[^\n]*)|\b{name}\b", partial(_word, words), text, flags=re.MULTILINE)
    text = _DEFINE.sub(lambda m: _shared_in_macro(m[0], text, m.start(), what), text)
    # The declarations come first: the text is scanned once for them and for the calls of member templates.
    text = _with_headers(_constants(_with_references(_with_template(text), what)))
    return _assigned(text) if _PAIRS_OF_FLOATS.search(text) else text


def _with_references(text: str, what: str) -> str:
    """Returns a final text with references in place of its declarations of shared memory."""
    if "__shared__" not in text:
        return text
    bare = scan(text).bare
    found, at = [], 0
    for number, (start, end) in enumerate(_shared_declarations(bare)):
        found += [
            text[at:start],
            _declare(text[start:end], bare[start:end], str(number), f"{what}: {_place(text, start)}"),
        ]
        at = end
    return "".join(found) + text[at:]


def _assigned(text: str) -> str:
    """Returns a final text with calls of ``device.h`` in the assignments of braces to a variable."""
    start = at = max(text.find("#line"), 0)
    pieces = [text[:start]]
    for filled in _FILLED.finditer(text, start):
        begin = max(text.rfind(mark, start, filled.start()) for mark in ";{}") + 1
        if begin and (target := _VARIABLE.fullmatch(text, begin, filled.start())):
            call = f"cupyops_empty({target[2]});" if filled[1] else f"cupyops_target({target[2]}) = {{"
            pieces += [text[at:begin], target[1], call]
            at = filled.end()
    return "".join(pieces) + text[at:]


def _word(words: str, found: re.Match[str]) -> str:
    """Returns a directive as it is, and the words of the macro in place of a use."""
    return found[1] or words


def _with_template(text: str) -> str:
    """Returns a final text with the word ``template`` in the calls of member templates, ``a.template get<1>()``."""
    start = max(text.find("#line"), 0)
    bare = scan(text).bare
    calls = [*_MEMBER_CALL.finditer(bare, start)]
    names = {*_MEMBER_TEMPLATE.findall(bare)} if calls else set()
    pieces, at = [text[:start]], start
    for call in calls:
        if call[3] in names:
            pieces += [text[at : call.start(3)], "template "]
            at = call.start(3)
    return "".join(pieces) + text[at:]


def _shared_in_macro(directive: str, text: str, start: int, what: str) -> str:
    """Returns a ``#define`` with references in place of its declarations of shared memory. Each use has memory of its own."""

    def declared(match: re.Match[str]) -> str:
        plain = re.sub(r"\\\n", " ", match[0])
        number = f"at_{start}_{match.start()}##"  # a block may have several uses, and uses of several macros
        return _declare(plain, plain, number, f"{what}: {_place(text, start)}") + "\\\n" * match[0].count("\n")

    return _STATIC.sub(declared, _DYNAMIC.sub(declared, directive))


def _constants(text: str) -> str:
    """Turns the prelude's macros into constants, except the macros that a preprocessor directive of the text uses.

    A template of a shared header may declare a local name that is also a macro of the prelude. NVRTC does not parse the
    body of an unused template; a host compiler does, and would read the macro's number in place of the name.
    """
    start = text.find("#line")
    prelude, rest = text[:start], text[start:]
    directives = "\n".join(re.findall(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", rest, re.MULTILINE))

    def constant(match: re.Match[str]) -> str:
        asked = re.search(rf"\b{match[1]}\b", directives)
        return match[0] if asked else f"constexpr auto {match[1]} = {match[2]};"

    return re.sub(r"^#define (\w+) (-?\d+)$", constant, prelude, flags=re.MULTILINE) + rest


def _with_headers(text: str) -> str:
    """Translates inline PTX, and includes the headers of the functions that CUDA has without an include.

    Few texts need these headers, and a text without them compiles faster. The includes are before the first line
    directive, so that line numbers do not change. They are in angle brackets: a header of the user with the same name
    lies in the folder of the compilation.
    """
    text, has_ptx = translate_asm(text)
    needed = ["ptx.h"] if has_ptx else ["simd.h"] if _SIMD.search(text) else []
    for name, types in _HEADERS_OF_TYPES:
        if types.search(text):
            read = [scan(text).bare, *(d.rest for d in scan(text).directives if d.name == "define")]
            needed += [name] if any(map(types.search, read)) else []
    start = max(text.find("#line"), 0)
    return text[:start] + "".join(f"#include <{name}>\n" for name in needed) + text[start:]


def _shared_declarations(bare: str) -> Iterator[tuple[int, int]]:
    """Yields the start and the end of each ``__shared__`` declaration; the end lies after the semicolon."""
    for match in _SHARED.finditer(bare):
        # A single colon ends a label or `public:`; a double colon is part of a name.
        start = match.start()
        while start > 0 and bare[start - 1] not in ";{}" and not _is_label(bare, start - 1):
            start -= 1
        start += len(bare[start:]) - len(bare[start:].lstrip())
        depth, end = 0, match.end()
        while end < len(bare) and (depth or bare[end] != ";"):
            depth += (bare[end] in _OPEN) - (bare[end] in _CLOSE)
            end += 1
        yield start, end + 1


def _is_label(bare: str, at: int) -> bool:
    return bare[at] == ":" and bare[at - 1] != ":" and bare[at + 1 : at + 2] != ":"


def _declare(text: str, bare: str, number: str, where: str) -> str:
    """Returns the reference declarations that replace one declaration of shared memory. In a macro, `number` ends with ``##``:
    the name of a variable may be an argument of the macro, or a part of the name."""
    code = " ".join(re.sub(r"\b(?:__shared__|__device__|static|inline|extern)\b", " ", bare.rstrip(";")).split())
    lines = "\n" * text.count("\n")
    if re.search(r"\bextern\b", bare):
        dynamic = re.fullmatch(r"(.*[\s*&>])(\w+)\s*\[\s*\]\s*((?:\[[^][]*\]\s*)*)", code)
        if dynamic is None:
            raise CompileError(
                f"{where}: the simulator takes dynamic shared memory as `extern __shared__ T name[];`, got `{code}`"
            )
        declared = f"(&{dynamic[2]})[{_LARGEST}]" + dynamic[3]
        return f"static {dynamic[1]}{declared} = CupyopsDynamic();{lines}"
    pieces = _split(code)
    first = _name_at(pieces[0])
    if first is None or any(_name_at(piece) is None for piece in pieces):
        raise CompileError(
            f"{where}: the simulator takes shared variables as `__shared__ T name[sizes], other;`, got `{code}`"
        )
    head = code[: first[0]].rstrip()
    specifier = head.rstrip("*& ")
    names = [piece[slice(*_name_at(piece))] for piece in pieces]  # type: ignore[misc]
    if "{" in specifier:
        # The declaration also defines the type of its variables. A type can be defined only once, so all variables of
        # the declaration are members of one holder.
        return _reference(f"{number}{names[0]}" if "##" in number else number, code, names) + lines
    declarators = [code[len(specifier) : len(pieces[0])], *pieces[1:]]
    return (
        "".join(
            _reference(f"{number}{name}" if "##" in number else f"{number}_{i}", f"{specifier} {d}", [name])
            for i, (d, name) in enumerate(zip(declarators, names, strict=True))
        )
        + lines
    )


def _reference(number: str, declaration: str, names: list[str]) -> str:
    holder = f"CupyopsShared_{number}"
    memory = f"CupyopsMemory_{number}"
    return (
        f"struct {holder} {{ {declaration}; }}; static {holder}& {memory} = *static_cast<{holder}*>(cupyops_shared("
        f'&cupyops_module, "{names[0]}", sizeof({holder}), CupyopsElement<decltype({holder}::{names[0]})>::bytes, '
        f"alignof({holder}))); " + " ".join(f"static auto& {name} = {memory}.{name};" for name in names)
    )


def _split(code: str) -> list[str]:
    """Splits a declaration into declarators, at the commas outside brackets."""
    pieces, depth, start = [], 0, 0
    square = 0
    for i, c in enumerate(code):
        square += (c == "[") - (c == "]")
        depth += (c in "([{" or (c == "<" and not square)) - (c in ")]}" or (c == ">" and not square))
        if c == "," and depth == 0:
            pieces.append(code[start:i])
            start = i + 1
    return [*pieces, code[start:]]


def _name_at(piece: str) -> tuple[int, int] | None:
    """Returns start and end of the declared name, which is before the first ``[`` or last; None without a name."""
    depth = 0
    end = len(piece)
    for i, c in enumerate(piece):
        if c == "[" and depth == 0:
            end = i
            break
        depth += (c in "([{<") - (c in ")]}>")
    found = re.search(r"(?<![\w:.#])((?:\w+\s*##\s*)*[A-Za-z_]\w*)\s*$", piece[:end])
    if found is None or re.search(r"[^\]]\s*$", piece[end:]):
        return None
    return found.start(1), found.end(1)


def _place(text: str, position: int) -> str:
    """Returns the source line of a position in the final text, like ``gelu.cu:12``."""
    before = list(_LINE.finditer(text, 0, position))
    if not before:
        return f"line {text.count(chr(10), 0, position) + 1}"
    last = before[-1]
    return f"{last[2]}:{int(last[1]) + text.count(chr(10), last.end(), position) - 1}"


_NEW = re.compile(r"new(?<!\wnew)\b|delete(?<!\wdelete)\b")
# Objects that device code makes by `new` lie in the heap of the launch.
_HEAP = """\
void* operator new(size_t bytes) { return cupyops_allocate(bytes); }
void* operator new[](size_t bytes) { return cupyops_allocate(bytes); }
void operator delete(void* memory) noexcept { cupyops_deallocate(memory); }
void operator delete[](void* memory) noexcept { cupyops_deallocate(memory); }
void operator delete(void* memory, size_t) noexcept { cupyops_deallocate(memory); }
void operator delete[](void* memory, size_t) noexcept { cupyops_deallocate(memory); }
"""


def _answers(text: str) -> str:
    """Returns the C++ whose symbols have the types of the questions of a text, see :mod:`cupyops.compile.ask`."""
    count = len(asked_in(text))
    if not count:
        return ""
    asked = "".join(f"template struct CupyopsAnswered<{i}, CupyopsQuestion{i}>;\n" for i in range(count))
    return f"""
template <int CupyopsI, class CupyopsT> struct CupyopsAnswered {{ static const char told; }};
template <int CupyopsI, class CupyopsT> const char CupyopsAnswered<CupyopsI, CupyopsT>::told = 0;
{asked}"""


def _entry(text: str, kernels: Sequence[str]) -> str:
    """Returns the C++ of the entry functions and of the tables of ``module/module.h``: of the kernels, and of the text's device
    variables. Tables without instructions compile in less time than functions that return the same."""
    expressions = [expression for _, expression in named_kernels(text)] or kernels
    named = enumerate(zip(kernels, expressions, strict=True))
    made = [_kernel(scan(text), kernel, expression, number) for number, (kernel, expression) in named]
    entries = "".join(entry for entry, _ in made)
    heap = _HEAP if _NEW.search(scan(text).bare) else ""
    table = "".join(f'{{"{name}", (void*)&{name}, sizeof({name})}}, ' for name in variables(text))
    return f"""
#undef __asm__
#line 1 "cupyops/simulator/entry"
{heap}{entries}const CupyopsEntry cupyops_kernels[] = {{{", ".join(described for _, described in made)}}};
const CupyopsVariable cupyops_variables[] = {{{table}{{nullptr, nullptr, 0}}}};
"""


def _for_class(template: str) -> str:
    """Returns the parameters of a function's template for a class: after a default, each has one. The name of the kernel gives
    the arguments before a parameter without a default."""
    parameters = [part for _, part in split(template)]
    last = max((i for i, part in enumerate(parameters) if len(split(part, "=")) == 1), default=-1)
    return ",".join(split(part, "=")[0][1] if i < last else part for i, part in enumerate(parameters))


def _kernel(code: Code, kernel: str, expression: str, number: int) -> tuple[str, str]:
    """Returns the C++ of the entry function of a kernel, and that of the kernel's line in the table of kernels.

    Args:
        code: the text.
        kernel: the name of the kernel.
        expression: the name with the namespaces and the arguments of a template.
        number: the place of the kernel among the kernels of the text.
    """
    path = expression.partition("<")[0]
    # A header may declare kernels of the same name in other namespaces. The final text may have a name of its own.
    by_path = re.fullmatch(r"[\w:]+", path) and ("::" in path or path != split_name(kernel)[0])
    function = declarations(code, path if by_path else kernel)[0]
    head = _QUALIFIERS.sub("", code.bare[function.start : function.named])
    if function.template is not None:
        head = head.partition(function.template)[2].partition(">")[2]
    # Macros turn the attributes into summands, also where the head is a macro of the text.
    attributes = re.sub(r"\[\[[^][]*\]\]", " ", " ".join(head.split()))
    holder = (
        f"struct CupyopsAttributesOfKernel{number} {{ CupyopsAttributes value = CupyopsAttributes()\n#include <attributes.h>\n"
        f"{attributes}\n#include <without_attributes.h>\n; }};"
    )
    if function.template is not None:
        holder = f"template <{_for_class(function.template)}> {holder}"
    for name in reversed(function.nesting):
        holder = f"namespace {name} {{ {holder} }}"
    _, opening, arguments = expression.partition("<")
    scope = "".join(f"{n}::" for n in function.scope)
    value = f"{scope}CupyopsAttributesOfKernel{number}{opening}{arguments}().value"
    call = f"CUPYOPS_ENTRY void cupyops_entry_{number}(void** arguments) {{ cupyops_call(&{expression}, arguments); }}"
    return f"{holder}\n{call}\n", (
        f"cupyops_kernel(cupyops_entry_{number}, CupyopsParameters<decltype({expression})>(), {value})"
    )
