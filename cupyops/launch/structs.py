"""Reads the structs, unions and classes that a text declares."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from cupyops.compile.cuda_text import scan
from cupyops.compile.definitions import split

__all__ = [
    "Struct",
    "aliases_in",
    "arguments_in",
    "hoisted",
    "key_of",
    "members_in",
    "private_names",
    "specialized",
    "structs_in",
    "substituted",
    "template_parameters",
]

_ALIGNED = r"(?:__align__|alignas|__builtin_align__|\baligned)\s*\("
_INSIDE = r"(?:[^()]|\([^()]*\))*"
_ATTRIBUTE = r"__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)|__declspec\s*\([^()]*\)"
# Attributes, and a macro for attributes before the name, also with arguments.
_MACRO = r"\b_*[A-Z][A-Z0-9_]+\b"
_ALIGNMENTS = rf"((?:\s*(?:{_ALIGNED}{_INSIDE}\)|{_ATTRIBUTE}|{_MACRO}(?:\s*\([^(){{}};]*\))?(?=\s+[A-Za-z_]\w*\s*(?:final\s*)?[:{{])))*)"
# The numbers of repetitions bound the time of a match.
_STRUCT = re.compile(
    rf"\b(?P<kind>struct|union|class)\b(?P<align>{_ALIGNMENTS})"
    r"(?:\s+(?P<tag>[A-Za-z_]\w*)(?P<special>\s*<[^{};()]{0,400}>)?)?\s*(?:final\s*)?(?P<bases>:[^{};()]{0,400})?(?P<open>\{)",
    re.DOTALL,
)
_NESTED = re.compile(r"\b(?:struct|class|union)\b[^;(){}]*\{")
_TYPEDEF = re.compile(rf"\}}{_ALIGNMENTS}\s*([A-Za-z_]\w*)\s*;")
_SKIPPED = re.compile(r"\b(?:public|private|protected)\s*:(?!:)")
_ACCESS = re.compile(r"\b(public|private|protected)\s*:(?!:)")
_DECLARED = re.compile(r"(\w+)\s*(?:\[[^][]*\]\s*)*\Z")
_ALIAS = re.compile(r"\busing\s+(\w+)\s*=\s*([^;{}]+);|\btypedef\s+([\w:\s<>,*]+?)\b(\w+)\s*;")
_BRACES = "\1"  # in place of a pair of braces and what is between them
_NO_DATA = re.compile(
    r"(?:(?:inline|constexpr|const)\s+)*static\b|(?:using|typedef|friend|template|enum|static_assert|struct\s+\w+\Z)\b"
)
# The head of a class within a class, before its brace.
_HEAD = re.compile(
    rf"\b(?P<kind>struct|union|class)\b{_ALIGNMENTS}\s*(?P<name>[A-Za-z_]\w*)?\s*(?:final\s*)?(?::[^;{{}}()]{{0,400}})?\{{\Z"
)
_TEMPLATE = re.compile(r"\btemplate\s*<([^;{}]*)>\Z")


class Struct(NamedTuple):
    """A struct of a text: its body, its declared alignments, its keyword, the parameters of its template, its namespaces, its
    bases, and the defaults of the template's last parameters."""

    body: str
    alignments: tuple[str, ...]
    kind: str
    parameters: tuple[str, ...]
    scope: tuple[str, ...]
    bases: tuple[str, ...]
    defaults: tuple[str, ...] = ()


@lru_cache(256)
def structs_in(text: str, bare: str) -> dict[str, Struct]:
    """Returns the structs, unions and classes that a text defines outside functions, by name. The name of a specialization has its
    arguments, ``Vector<float>``. The name of a member has the class, ``Traits::Params``; the parameters of the class are those of
    the member.

    Args:
        text: CUDA C++.
        bare: the code of the text that conditions do not remove.
    """
    found: dict[str, Struct] = {}
    for match in _STRUCT.finditer(bare):
        before = bare[max(0, match.start() - 400) : match.start()].rstrip()
        scope = scan(text).scope(match.start())
        parameters = template_parameters(before)
        if scope is None or parameters is None or re.search(r"\benum\Z", before):
            continue  # within a class, or an enumeration
        end = scan(text).end_of_function(match.start("open"))
        body = bare[match.end() : end - 1]
        behind = _TYPEDEF.match(bare, end - 1) if re.search(r"\btypedef\Z", before) else None
        attributes = match["align"] + (behind[1] if behind else "")
        aligned = (
            *re.findall(rf"{_ALIGNED}({_INSIDE})\)", attributes),
            *re.findall(rf"(?<!_){_MACRO}\s*\([^()]*\)", attributes),
        )
        bases = tuple(part.strip() for _, part in split((match["bases"] or ":")[1:]) if part.strip())
        tag = match["tag"] and match["tag"] + _spelled(match["special"] or "")
        for name in (tag, behind[2] if behind else None):
            if name:
                defaults = _defaults(before) if parameters else ()
                found[name] = Struct(body, aligned, match["kind"], parameters, scope, bases, defaults)
                if "<" not in name and _NESTED.search(body):
                    found |= {f"{name}::{member}": of for member, of in _members(found[name]).items()}
    return found


def _members(outer: Struct) -> dict[str, Struct]:
    """Returns the classes that a class defines, by name. They may use its types."""
    aliases = "".join(f"using {name} = {target};" for name, target in aliases_in(outer.body).items())
    found = structs_in(outer.body, outer.body)
    return {
        name: inner._replace(
            body=aliases + inner.body, parameters=outer.parameters, scope=outer.scope, defaults=outer.defaults
        )
        for name, inner in found.items()
        if not inner.parameters and "<" not in name
    }


def key_of(name: str) -> str:
    """Returns the name of a class without the arguments of a template: ``Traits::Params`` for ``Traits<float>::Params``."""
    return f"{name.partition('<')[0]}{name.rpartition('>')[2]}" if "<" in name else name


def template_parameters(before: str) -> tuple[str, ...] | None:
    """Returns the parameters of the template whose head, ``template <...>``, stands directly before a declaration. The
    tuple is empty without a head, and for a specialization. Returns None if the head cannot be read."""
    found = _TEMPLATE.search(before) if before.endswith(">") else None
    if found is None:
        return None if before.endswith(">") else ()
    names = (re.findall(r"\w+", part.partition("=")[0])[-1:] for _, part in split(found[1]))
    return tuple(name[0] for name in names if name)


def _defaults(before: str) -> tuple[str, ...]:
    """Returns the default arguments of the template whose head stands directly before a declaration."""
    found = _TEMPLATE.search(before)
    parts = (part.partition("=")[2].strip() for _, part in split(found[1])) if found else ()
    return tuple(default for default in parts if default)


def specialized(structs: Mapping[str, Struct], name: str) -> Struct | None:
    """Returns the partial specialization of a template for an instance, ``Vec<T, 3>`` for ``Vec<float, 3>``, with the arguments
    in place of its parameters, or None. Several that fit count as none."""
    tag = name.partition("<")[0]
    partial = [key for key in structs if key.startswith(f"{tag}<") and structs[key].parameters]
    if not partial or "<" not in name or tag not in structs:
        return None
    primary, found = structs[tag], []
    given = _with_defaults(primary, arguments_in(name))
    for key in partial:
        pattern, parameters = arguments_in(key), structs[key].parameters
        pairs = [*zip(pattern, given, strict=False)] if len(pattern) == len(given) else [("", "-")]
        if all(p in parameters or p == argument for p, argument in pairs):
            by_name = {p: argument for p, argument in pairs if p in parameters}
            body, *more = (_replaced(t, by_name) for t in (structs[key].body, *structs[key].alignments))
            bases = tuple(_replaced(base, by_name) for base in structs[key].bases)
            found.append(
                structs[key]._replace(body=body, alignments=tuple(more), bases=bases, parameters=(), defaults=())
            )
    return found[0] if len(found) == 1 else None


def arguments_in(name: str) -> list[str]:
    """Returns the arguments of a template in the name of an instance, ``Pair<float, 2>``."""
    return [" ".join(part.split()) for _, part in split(name.partition("<")[2].rpartition(">")[0])]


def _with_defaults(struct: Struct, given: list[str]) -> list[str]:
    """Returns the arguments of a template with its defaults for those that lack. A default may name the parameters before it."""
    lacking = len(struct.parameters) - len(given)
    for default in struct.defaults[len(struct.defaults) - lacking :] if 0 < lacking <= len(struct.defaults) else ():
        given = [*given, _replaced(default, dict(zip(struct.parameters, given, strict=False)))]
    return given


def _replaced(text: str, by_name: Mapping[str, str]) -> str:
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda word: by_name.get(word[0], word[0]), text)


def substituted(text: str, struct: Struct, name: str) -> str:
    """Returns a text of a struct with the template's parameters replaced by the arguments in a name, ``Pair<float, 2>``.

    Raises:
        ValueError: the name has another number of arguments, and defaults do not make up for it.
    """
    given = _with_defaults(struct, arguments_in(name))
    by_name = dict(zip(struct.parameters, given, strict=True)) if struct.parameters else {}
    return _replaced(text, by_name)


def _spelled(arguments: str) -> str:
    """Returns the arguments of a template as :meth:`.TypeNames.instance` spells them."""
    listed = (" ".join(part.split()) for _, part in split(arguments.strip()[1:-1]))
    return f"<{', '.join(listed)}>" if arguments.strip() else ""


def private_names(struct: Struct) -> set[str]:
    """Returns the names of the data that code outside a struct or class cannot read."""
    hidden, found = struct.kind == "class", set()
    for part in _ACCESS.split(struct.body):
        if part in ("public", "private", "protected"):
            hidden = part != "public"
        elif hidden:
            listed = (piece for member in members_in(part) for _, piece in split(member))
            found |= {name[1] for piece in listed if (name := _DECLARED.search(piece.partition("=")[0]))}
    return found


def aliases_in(body: str) -> dict[str, str]:
    """Returns the types that the body of a struct declares by ``using`` and ``typedef``, by name."""
    while "{" in body:  # functions and classes within the struct have aliases of their own
        body, count = re.subn(r"\{[^{}]*\}", " ", body)
        if not count:
            break
    return {m[1] or m[4]: (m[2] or m[3]).strip() for m in _ALIAS.finditer(body)}


def members_in(body: str) -> Sequence[str]:
    """Returns the declarations of data in the body of a struct, without functions."""
    body = _SKIPPED.sub(" ", body)
    while "{" in body:  # from within
        body, count = re.subn(r"\{[^{}]*\}", _BRACES, body)
        if not count:
            break
    # Braces of an initializer have a comma, a semicolon or an assignment behind them, or are those of a constructor's list.
    body = re.sub(rf"{_BRACES}(?!\s*[,;])", ";", body).replace(_BRACES, " ")
    found = (part.strip() for part in body.split(";"))
    # A pointer to a function is data, of no type that a dtype has. An initializer may have parentheses.
    return [
        p
        for p in found
        if p
        and ("(" not in (p if "operator" in p else p.partition("=")[0]) or "(*" in p)
        and not _NO_DATA.match(p)
        # The rest of a constructor's list.
        and not p.startswith(",")
    ]


def hoisted(body: str) -> tuple[str, dict[str, tuple[str, str]]]:
    """Returns the body of a struct without the definitions of the classes in it.

    ``struct { int a; } b;`` becomes the member ``Unnamed0 b;``, and the union ``union { float f; int i; };`` without a name
    ``Unnamed0;``.

    Returns:
        the body, and the keywords and bodies of the classes without names, by the names given here.
    """
    kept, at, depth, opened = [], 0, 0, 0
    unnamed: dict[str, tuple[str, str]] = {}
    for mark in re.finditer(r"[{}]", body):
        if mark[0] == "{":
            opened = mark.start() if not depth else opened
            depth += 1
            continue
        depth -= 1
        head = None if depth else _HEAD.search(body, at, opened + 1)
        if head is None:
            continue
        name = head["name"] or f"Unnamed{len(unnamed)}"
        if not head["name"]:
            unnamed[name] = (head["kind"], body[opened + 1 : mark.start()])
        behind = re.match(r"\s*;", body[mark.end() :])
        kept += [body[at : head.start()], "" if head["name"] and behind else f"{name} "]
        at = mark.end()
    return "".join(kept) + body[at:], unnamed
