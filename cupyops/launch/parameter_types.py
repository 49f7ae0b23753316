# ruff: noqa: E501 - the definitions in C++ have long lines
"""Has the compiler compare the types of a kernel's parameters with what a launch passes.

The types are read from the text before anything is compiled (:mod:`cupyops.launch.signature`), so that a call is checked at once.
The compiler alone knows what a declaration means. The source that is compiled therefore ends with assertions: the parameters of
each kernel have the kinds and the sizes of what the launch passes. A type that is read wrongly is a compile error, which names both
types, and never a wrong value. The assertions generate no code.
"""

import re
from collections.abc import Mapping, Sequence

from cupyops.compile.cuda_text import scan
from cupyops.compile.definitions import split
from cupyops.dtypes import DTYPES

from .definitions import declarations, declares
from .signature import Parameter, Signature

__all__ = ["DEFINITIONS", "assertions", "explained"]

# The definitions stand in the prelude, before the macros of the text, and every name in them begins with `CupyopsTyped`. They need no
# header, and no later version of C++ than C++11. The kinds of types: signed and unsigned integers, `c` for char, whose sign depends
# on the machine, floats, bool, enumerations, pointers, structs and void. A text that passes 16-bit floats has their headers, and
# their kinds are `h` and `g`.
DEFINITIONS = """\
struct CupyopsTypedNothing;
typedef decltype(sizeof(0)) CupyopsTypedSize;
template <class CupyopsTypedT> struct CupyopsTypedKind {
    static constexpr char CupyopsTypedIs = __is_enum(CupyopsTypedT) ? 'e' : __is_class(CupyopsTypedT) || __is_union(CupyopsTypedT) ? 's' : '?';
};
template <class CupyopsTypedT> struct CupyopsTypedKind<const CupyopsTypedT> : CupyopsTypedKind<CupyopsTypedT> {};
template <class CupyopsTypedT> struct CupyopsTypedKind<volatile CupyopsTypedT> : CupyopsTypedKind<CupyopsTypedT> {};
template <class CupyopsTypedT> struct CupyopsTypedKind<const volatile CupyopsTypedT> : CupyopsTypedKind<CupyopsTypedT> {};
template <class CupyopsTypedT> struct CupyopsTypedKind<CupyopsTypedT*> { static constexpr char CupyopsTypedIs = 'p'; };
#define CUPYOPS_KIND(letter, ...) template <> struct CupyopsTypedKind<__VA_ARGS__> { static constexpr char CupyopsTypedIs = letter; };
CUPYOPS_KIND('?', CupyopsTypedNothing) CUPYOPS_KIND('v', void) CUPYOPS_KIND('b', bool) CUPYOPS_KIND('c', char)
CUPYOPS_KIND('f', float) CUPYOPS_KIND('f', double) CUPYOPS_KIND('i', signed char) CUPYOPS_KIND('i', short) CUPYOPS_KIND('i', int)
CUPYOPS_KIND('i', long) CUPYOPS_KIND('i', long long) CUPYOPS_KIND('u', unsigned char) CUPYOPS_KIND('u', unsigned short)
CUPYOPS_KIND('u', unsigned int) CUPYOPS_KIND('u', unsigned long) CUPYOPS_KIND('u', unsigned long long)
#undef CUPYOPS_KIND
template <class CupyopsTypedT> struct CupyopsTypedBox { typedef CupyopsTypedT CupyopsTypedType; };
template <class CupyopsTypedT> struct CupyopsTypedPointee : CupyopsTypedBox<CupyopsTypedNothing> {};
template <class CupyopsTypedT> struct CupyopsTypedPointee<CupyopsTypedT*> : CupyopsTypedBox<CupyopsTypedT> {};
template <class CupyopsTypedT> struct CupyopsTypedPointee<CupyopsTypedT* __restrict__> : CupyopsTypedBox<CupyopsTypedT> {};
template <class CupyopsTypedT> struct CupyopsTypedPointee<CupyopsTypedT&> : CupyopsTypedBox<CupyopsTypedT> {};
template <class CupyopsTypedT> struct CupyopsTypedSingle : CupyopsTypedBox<CupyopsTypedT> {};
template <class CupyopsTypedT, CupyopsTypedSize CupyopsTypedN> struct CupyopsTypedSingle<CupyopsTypedT[CupyopsTypedN]> : CupyopsTypedSingle<CupyopsTypedT> {};
template <class CupyopsTypedT> struct CupyopsTypedVoid : CupyopsTypedBox<void> {};
template <class CupyopsTypedT, class CupyopsTypedV = void> struct CupyopsTypedBits : CupyopsTypedBox<CupyopsTypedT> {};
template <class CupyopsTypedT> struct CupyopsTypedBits<CupyopsTypedT, typename CupyopsTypedVoid<decltype(((CupyopsTypedT*)0)->__x)>::CupyopsTypedType> : CupyopsTypedBox<decltype(((CupyopsTypedT*)0)->__x)> {};
template <class CupyopsTypedT, class CupyopsTypedV = void> struct CupyopsTypedX : CupyopsTypedBits<CupyopsTypedT> {};
template <class CupyopsTypedT> struct CupyopsTypedX<CupyopsTypedT, typename CupyopsTypedVoid<decltype(((CupyopsTypedT*)0)->x)>::CupyopsTypedType> : CupyopsTypedBox<decltype(((CupyopsTypedT*)0)->x)> {};
template <class CupyopsTypedT, class CupyopsTypedV = void> struct CupyopsTypedPart : CupyopsTypedX<CupyopsTypedT> {};
template <class CupyopsTypedT> struct CupyopsTypedPart<CupyopsTypedT, typename CupyopsTypedVoid<typename CupyopsTypedT::value_type>::CupyopsTypedType> : CupyopsTypedBox<typename CupyopsTypedT::value_type> {};
template <class CupyopsTypedT, class CupyopsTypedV = void> struct CupyopsTypedMember : CupyopsTypedBox<CupyopsTypedNothing> {};
template <class CupyopsTypedT> struct CupyopsTypedMember<CupyopsTypedT, typename CupyopsTypedVoid<decltype(((CupyopsTypedT*)0)->data)>::CupyopsTypedType> : CupyopsTypedBox<decltype(((CupyopsTypedT*)0)->data)> {};
template <class CupyopsTypedT, class CupyopsTypedV = void> struct CupyopsTypedData : CupyopsTypedMember<CupyopsTypedT> {};
template <class CupyopsTypedT> struct CupyopsTypedData<CupyopsTypedT, typename CupyopsTypedVoid<decltype(((CupyopsTypedT*)0)->data())>::CupyopsTypedType> : CupyopsTypedBox<decltype(((CupyopsTypedT*)0)->data())> {};
template <class CupyopsTypedT, CupyopsTypedSize CupyopsTypedN, bool CupyopsTypedAsked> struct CupyopsTypedSized { static constexpr bool CupyopsTypedIs = false; };
template <class CupyopsTypedT, CupyopsTypedSize CupyopsTypedN> struct CupyopsTypedSized<CupyopsTypedT, CupyopsTypedN, true> {
    static constexpr bool CupyopsTypedIs = sizeof(CupyopsTypedT) == CupyopsTypedN;
};
template <class CupyopsTypedT, char CupyopsTypedK, CupyopsTypedSize CupyopsTypedN> struct CupyopsTypedNumber {
    static constexpr char CupyopsTypedHas = CupyopsTypedKind<CupyopsTypedT>::CupyopsTypedIs;
    static constexpr bool CupyopsTypedIs = CupyopsTypedSized<CupyopsTypedT, CupyopsTypedN, CupyopsTypedHas == CupyopsTypedK
        || ((CupyopsTypedK == 'i' || CupyopsTypedK == 'u') && (CupyopsTypedHas == 'c' || CupyopsTypedHas == 'e'))
        || (CupyopsTypedK == 'u' && (CupyopsTypedHas == 'p' || (CupyopsTypedHas == 's' && CupyopsTypedN == 1)))>::CupyopsTypedIs;
};
template <class CupyopsTypedT, char CupyopsTypedK, CupyopsTypedSize CupyopsTypedN, char CupyopsTypedHas = CupyopsTypedKind<CupyopsTypedT>::CupyopsTypedIs>
struct CupyopsTypedOne : CupyopsTypedNumber<CupyopsTypedT, CupyopsTypedK, CupyopsTypedN> {};
template <class CupyopsTypedT, char CupyopsTypedK, CupyopsTypedSize CupyopsTypedN> struct CupyopsTypedOne<CupyopsTypedT, CupyopsTypedK, CupyopsTypedN, 's'> { static constexpr bool CupyopsTypedIs = true; };
template <class CupyopsTypedT, char CupyopsTypedK, CupyopsTypedSize CupyopsTypedN> struct CupyopsTypedOne<CupyopsTypedT, CupyopsTypedK, CupyopsTypedN, '?'> { static constexpr bool CupyopsTypedIs = true; };
template <class CupyopsTypedT, char CupyopsTypedK, CupyopsTypedSize CupyopsTypedN, char CupyopsTypedHas = CupyopsTypedKind<CupyopsTypedT>::CupyopsTypedIs>
struct CupyopsTypedParts : CupyopsTypedNumber<CupyopsTypedT, CupyopsTypedK, CupyopsTypedN> {};
template <class CupyopsTypedT, char CupyopsTypedK, CupyopsTypedSize CupyopsTypedN> struct CupyopsTypedParts<CupyopsTypedT, CupyopsTypedK, CupyopsTypedN, 's'>
    : CupyopsTypedOne<typename CupyopsTypedPart<CupyopsTypedT>::CupyopsTypedType, CupyopsTypedK, CupyopsTypedN> {};
template <class CupyopsTypedT, char CupyopsTypedK, CupyopsTypedSize CupyopsTypedN, CupyopsTypedSize CupyopsTypedAll> struct CupyopsTypedVector {
    typedef typename CupyopsTypedSingle<CupyopsTypedT>::CupyopsTypedType CupyopsTypedEach;
    static constexpr char CupyopsTypedHas = CupyopsTypedKind<CupyopsTypedEach>::CupyopsTypedIs;
    static constexpr bool CupyopsTypedIs = CupyopsTypedSized<CupyopsTypedT, CupyopsTypedAll, CupyopsTypedHas != 'v' && CupyopsTypedHas != '?'>::CupyopsTypedIs
        && CupyopsTypedParts<CupyopsTypedEach, CupyopsTypedK, CupyopsTypedN>::CupyopsTypedIs;
};
template <class CupyopsTypedT, CupyopsTypedSize CupyopsTypedAll> struct CupyopsTypedBytes {
    static constexpr char CupyopsTypedHas = CupyopsTypedKind<typename CupyopsTypedSingle<CupyopsTypedT>::CupyopsTypedType>::CupyopsTypedIs;
    static constexpr bool CupyopsTypedIs = CupyopsTypedSized<CupyopsTypedT, CupyopsTypedAll, CupyopsTypedHas != 'v' && CupyopsTypedHas != '?'>::CupyopsTypedIs;
};
template <class CupyopsTypedT, char CupyopsTypedHas = CupyopsTypedKind<CupyopsTypedT>::CupyopsTypedIs> struct CupyopsTypedOpaque { static constexpr bool CupyopsTypedIs = CupyopsTypedHas == 'v' || CupyopsTypedHas == 's'; };
template <class CupyopsTypedT, char CupyopsTypedK, CupyopsTypedSize CupyopsTypedN, char CupyopsTypedHas = CupyopsTypedKind<CupyopsTypedT>::CupyopsTypedIs>
struct CupyopsTypedDecided : CupyopsTypedParts<CupyopsTypedT, CupyopsTypedK, CupyopsTypedN> {};
template <class CupyopsTypedT, char CupyopsTypedK, CupyopsTypedSize CupyopsTypedN> struct CupyopsTypedDecided<CupyopsTypedT, CupyopsTypedK, CupyopsTypedN, 'v'> : CupyopsTypedOpaque<CupyopsTypedT> {};
template <class CupyopsTypedT, char CupyopsTypedHas> struct CupyopsTypedBytesOf { static constexpr CupyopsTypedSize CupyopsTypedIs = sizeof(CupyopsTypedT); };
template <class CupyopsTypedT> struct CupyopsTypedBytesOf<CupyopsTypedT, 's'> { static constexpr CupyopsTypedSize CupyopsTypedIs = 0; };
template <class CupyopsTypedT> struct CupyopsTypedBytesOf<CupyopsTypedT, 'v'> { static constexpr CupyopsTypedSize CupyopsTypedIs = 0; };
template <class CupyopsTypedT> struct CupyopsTypedBytesOf<CupyopsTypedT, '?'> { static constexpr CupyopsTypedSize CupyopsTypedIs = 0; };
template <class CupyopsTypedP> struct CupyopsTypedValue : CupyopsTypedBox<CupyopsTypedP> {};
template <class CupyopsTypedT> struct CupyopsTypedValue<CupyopsTypedT*> : CupyopsTypedBox<CupyopsTypedT> {};
template <class CupyopsTypedT> struct CupyopsTypedValue<CupyopsTypedT&> : CupyopsTypedBox<CupyopsTypedT> {};
template <int CupyopsTypedI, int CupyopsTypedHas, int CupyopsTypedN, class CupyopsTypedP> struct CupyopsTypedParameter;
template <int CupyopsTypedI, class CupyopsTypedP, bool CupyopsTypedOk> struct CupyopsTypedTakes { static constexpr bool CupyopsTypedIs = true; };
template <int CupyopsTypedI, class CupyopsTypedP> struct CupyopsTypedTakes<CupyopsTypedI, CupyopsTypedP, false> {
    typedef typename CupyopsTypedValue<CupyopsTypedP>::CupyopsTypedType CupyopsTypedE;
    static constexpr char CupyopsTypedHas = CupyopsTypedKind<CupyopsTypedE>::CupyopsTypedIs;
    static constexpr bool CupyopsTypedIs = sizeof(CupyopsTypedParameter<CupyopsTypedI, CupyopsTypedHas, CupyopsTypedBytesOf<CupyopsTypedE, CupyopsTypedHas>::CupyopsTypedIs, CupyopsTypedP>) != 0;
};
template <int CupyopsTypedI> struct CupyopsTypedTakes<CupyopsTypedI, CupyopsTypedNothing, false> { static constexpr bool CupyopsTypedIs = true; };
template <class... CupyopsTypedPs> struct CupyopsTypedList;
template <class CupyopsTypedF> struct CupyopsTypedListOf;
template <class CupyopsTypedR, class... CupyopsTypedPs> struct CupyopsTypedListOf<CupyopsTypedR (*)(CupyopsTypedPs...)> : CupyopsTypedBox<CupyopsTypedList<CupyopsTypedPs...>> {};
template <int CupyopsTypedI, class CupyopsTypedPs> struct CupyopsTypedAt : CupyopsTypedBox<CupyopsTypedNothing> {};
template <class CupyopsTypedP, class... CupyopsTypedPs> struct CupyopsTypedAt<0, CupyopsTypedList<CupyopsTypedP, CupyopsTypedPs...>> : CupyopsTypedBox<CupyopsTypedP> {};
template <int CupyopsTypedI, class CupyopsTypedP, class... CupyopsTypedPs>
struct CupyopsTypedAt<CupyopsTypedI, CupyopsTypedList<CupyopsTypedP, CupyopsTypedPs...>> : CupyopsTypedAt<CupyopsTypedI - 1, CupyopsTypedList<CupyopsTypedPs...>> {};"""

_KINDS = {"float16": "h", "bfloat16": "g", "float32": "f", "float64": "f", "bool": "b"}
_OF_HEADERS = {"float16": "__half", "bfloat16": "__nv_bfloat16"}
_EACH = 1000  # the numbers of a kernel's parameters begin at a multiple of it
_ELEMENT = "typename CupyopsTypedPointee<{}>::CupyopsTypedType"
_DATA = "typename CupyopsTypedPointee<typename CupyopsTypedData<{}>::CupyopsTypedType>::CupyopsTypedType"


def assertions(
    text: str, kernels: Sequence[tuple[Signature, str]], types: Mapping[str, str], headers: Mapping[str, str]
) -> str:
    """Returns the CUDA C++ that follows a text and compares the parameters of its kernels with what launches pass.

    Args:
        text: the author's text.
        kernels: the signature of each kernel, and its name in C++; the name is empty for an ``extern "C"`` function.
        types: the dtypes of the types that the arrays decide.
        headers: the texts of the included headers, by name.
    """
    lines: list[str] = []
    dtypes: set[str] = set()
    for number, (signature, name) in enumerate(kernels):
        compared = [(i, fits) for i, p in enumerate(signature.parameters) if (fits := _comparison(p, types))]
        if not compared:
            continue
        dtypes |= {p.c_type(types) for p in signature.parameters}
        dtypes |= {*_OF_HEADERS} if any(p.untyped and p.type in types for p in signature.parameters) else set()
        address = f"&{name}" if name else _address(text, signature.kernel, number, headers, lines)
        if not address:
            continue
        listed = f"CupyopsTypedList{number}"
        lines.append(f"typedef CupyopsTypedListOf<decltype({address})>::CupyopsTypedType {listed};")
        for i, fits in compared:
            # A missing parameter is found by the sizes of the compiled kernel's parameters.
            at = f"CupyopsTypedAt<{i}, {listed}>::CupyopsTypedType"
            lines.append(
                f'static_assert(CupyopsTypedTakes<{number * _EACH + i}, {at}, {fits.format(at)}::CupyopsTypedIs>::CupyopsTypedIs, "");'
            )
    if not lines:
        return ""
    kinds = [
        f"struct {c};\ntemplate <> struct CupyopsTypedKind<{c}> {{ static constexpr char CupyopsTypedIs = '{_KINDS[name]}'; }};"
        for name, c in _OF_HEADERS.items()
        if name in dtypes
    ]
    return "\n".join(['\n#line 1 "cupyops/parameters"', *kinds, *lines, ""])


def _comparison(p: Parameter, types: Mapping[str, str]) -> str:
    """Returns the template that compares a parameter, with ``{}`` for its type; empty for a parameter that is not compared."""
    if p.map_of is not None or p.type == "TensorMap" or (p.length is not None and p.element is None):
        return ""
    at = _DATA if p.accessor is not None else _ELEMENT if p.pointer else "{}"
    dtype = DTYPES.get(p.c_type(types))
    if p.untyped and (p.type not in types or dtype is None):
        decided_by_none = p.type in types and not types[p.type]
        return "" if decided_by_none else f"CupyopsTypedOpaque<{at}>"
    if dtype is None:
        return ""
    number = f"'{_KINDS.get(dtype.name, dtype.name[0])}', {dtype.itemsize}"
    if p.element is None or p.element.handle:
        # The elements of a type that the array decides may be structs, unless a shape counts them.
        return f"{'CupyopsTypedDecided' if p.untyped and p.shape is None else 'CupyopsTypedNumber'}<{at}, {number}>"
    if p.type == "uint8":
        return f"CupyopsTypedBytes<{at}, {p.element.width}>"
    return f"CupyopsTypedVector<{at}, {number}, {p.element.width * dtype.itemsize}>"


def _address(text: str, kernel: str, number: int, headers: Mapping[str, str], lines: list[str]) -> str:
    """Returns the expression of the address of an ``extern "C"`` function. If other functions have its name, the declaration of its
    type is added to `lines`; the expression is empty if a directive stands in it."""
    code = scan(text)
    function = declarations(code, kernel)[0]
    if not any(declares(other, function.name) for other in (text, *headers.values())):
        return f"&{function.path}"
    if code.directives_between(function.parameters, function.end):
        return ""
    listed = ", ".join(split(one, "=")[0][1].strip() for _, one in split(code.bare[function.parameters : function.end]))
    spaces = [f"namespace {name} {{ " for name in function.nesting]
    lines.append(f"{''.join(spaces)}typedef void CupyopsTypedDeclared{number}({listed});{' }' * len(spaces)}")
    return f"static_cast<{'::'.join((*function.scope, f'CupyopsTypedDeclared{number}'))}*>(&{function.path})"


_MISTAKEN = re.compile(
    r"CupyopsTypedParameter<(\d+), ?(\d+), ?(\d+), ?(.+?)>[\"'’](?: \(aka \"CupyopsTypedParameter<[\d, ]*(.+?)>\"\))?"
)
_SPELLED = re.compile(r"\bCupyopsTypedBox<(.+)>::CupyopsTypedType")  # NVRTC shows a typedef as it is written
_WORDS = {"c": "char", "e": "an enumeration", "p": "pointers", "v": "void"}


def explained(message: str, text: str, filename: str, signatures: Sequence[Signature], types: Mapping[str, str]) -> str:
    """Returns a compiler's message, or, if a parameter has another type than what the launch passes, both types in its place."""
    found = _MISTAKEN.search(message)
    if found is None or not signatures:
        return message
    number, i = divmod(int(found[1]), _EACH)
    signature = signatures[number]
    p = signature.parameters[i]
    dtype = p.c_type(types)
    passed = f"elements of {dtype}" if p.pointer else f"a {dtype}"
    if p.element is not None and not p.element.handle:
        passed = f"elements of {p.element.name}" if p.pointer else f"a {p.element.name}"
    elif p.untyped and dtype not in DTYPES:
        passed = "an array of any dtype"
    place = _place(text, filename, declarations(scan(text), signature.kernel)[0].named)
    instead = (
        "pass an array of this type"
        if p.type in types
        else f"declare `{p.name}` with the C type itself, which the launch then passes"
    )
    spelled = " ".join(_SPELLED.sub(r"\1", found[5] or found[4]).split())
    kind, size = chr(int(found[2])), int(found[3])
    dtypes = (name for name, d in DTYPES.items() if _KINDS.get(name, name[0]) == kind and d.itemsize == size)
    has = next(dtypes, _WORDS.get(kind, "another type"))
    return (
        f"{message.splitlines()[0].rstrip(':')}: {place}: {signature.kernel}: `{p.name}`: the launch passes {passed}, and the "
        f"compiler says that `{spelled}` is {f'an array of {has}' if spelled.endswith(('*', '&')) else has}; {instead}"
    )


def _place(text: str, filename: str, offset: int) -> str:
    """Returns the file and the line of an offset of a text, which may have ``#line`` directives."""
    line = 1
    for at in text[:offset].split("\n")[:-1]:
        line += 1
        if directive := re.match(r'#line (\d+) "([^"]+)"', at):
            line, filename = int(directive[1]), directive[2]
    return f"{filename}:{line}"
