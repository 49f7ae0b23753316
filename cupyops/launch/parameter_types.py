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

# The definitions stand in the prelude, before the macros of the text, and every name in them begins with `Cupyops`. They need no
# header, and no later version of C++ than C++11. The kinds of types: signed and unsigned integers, `c` for char, whose sign depends
# on the machine, floats, bool, enumerations, pointers, structs and void. A text that passes 16-bit floats has their headers, and
# their kinds are `h` and `g`.
DEFINITIONS = """\
struct CupyopsNothing;
typedef decltype(sizeof(0)) CupyopsSize;
template <class CupyopsT> struct CupyopsKind {
    static constexpr char CupyopsIs = __is_enum(CupyopsT) ? 'e' : __is_class(CupyopsT) || __is_union(CupyopsT) ? 's' : '?';
};
template <class CupyopsT> struct CupyopsKind<const CupyopsT> : CupyopsKind<CupyopsT> {};
template <class CupyopsT> struct CupyopsKind<volatile CupyopsT> : CupyopsKind<CupyopsT> {};
template <class CupyopsT> struct CupyopsKind<const volatile CupyopsT> : CupyopsKind<CupyopsT> {};
template <class CupyopsT> struct CupyopsKind<CupyopsT*> { static constexpr char CupyopsIs = 'p'; };
#define CUPYOPS_KIND(letter, ...) template <> struct CupyopsKind<__VA_ARGS__> { static constexpr char CupyopsIs = letter; };
CUPYOPS_KIND('?', CupyopsNothing) CUPYOPS_KIND('v', void) CUPYOPS_KIND('b', bool) CUPYOPS_KIND('c', char)
CUPYOPS_KIND('f', float) CUPYOPS_KIND('f', double) CUPYOPS_KIND('i', signed char) CUPYOPS_KIND('i', short) CUPYOPS_KIND('i', int)
CUPYOPS_KIND('i', long) CUPYOPS_KIND('i', long long) CUPYOPS_KIND('u', unsigned char) CUPYOPS_KIND('u', unsigned short)
CUPYOPS_KIND('u', unsigned int) CUPYOPS_KIND('u', unsigned long) CUPYOPS_KIND('u', unsigned long long)
#undef CUPYOPS_KIND
template <class CupyopsT> struct CupyopsBox { typedef CupyopsT CupyopsType; };
template <class CupyopsT> struct CupyopsPointee : CupyopsBox<CupyopsNothing> {};
template <class CupyopsT> struct CupyopsPointee<CupyopsT*> : CupyopsBox<CupyopsT> {};
template <class CupyopsT> struct CupyopsPointee<CupyopsT* __restrict__> : CupyopsBox<CupyopsT> {};
template <class CupyopsT> struct CupyopsPointee<CupyopsT&> : CupyopsBox<CupyopsT> {};
template <class CupyopsT> struct CupyopsSingle : CupyopsBox<CupyopsT> {};
template <class CupyopsT, CupyopsSize CupyopsN> struct CupyopsSingle<CupyopsT[CupyopsN]> : CupyopsSingle<CupyopsT> {};
template <class CupyopsT> __device__ CupyopsBox<typename CupyopsT::value_type> CupyopsPart(CupyopsT*, int, int);
template <class CupyopsT> __device__ CupyopsBox<decltype(((CupyopsT*)0)->x)> CupyopsPart(CupyopsT*, int, long);
template <class CupyopsT> __device__ CupyopsBox<decltype(((CupyopsT*)0)->__x)> CupyopsPart(CupyopsT*, long, int);
template <class CupyopsT> __device__ CupyopsBox<CupyopsT> CupyopsPart(CupyopsT*, ...);
template <class CupyopsT> __device__ CupyopsBox<decltype(((CupyopsT*)0)->data())> CupyopsData(CupyopsT*, int, int);
template <class CupyopsT> __device__ CupyopsBox<decltype(((CupyopsT*)0)->data)> CupyopsData(CupyopsT*, int, long);
template <class CupyopsT, CupyopsSize CupyopsN, bool CupyopsAsked> struct CupyopsSized { static constexpr bool CupyopsIs = false; };
template <class CupyopsT, CupyopsSize CupyopsN> struct CupyopsSized<CupyopsT, CupyopsN, true> {
    static constexpr bool CupyopsIs = sizeof(CupyopsT) == CupyopsN;
};
template <class CupyopsT, char CupyopsK, CupyopsSize CupyopsN> struct CupyopsNumber {
    static constexpr char CupyopsHas = CupyopsKind<CupyopsT>::CupyopsIs;
    static constexpr bool CupyopsIs = CupyopsSized<CupyopsT, CupyopsN, CupyopsHas == CupyopsK
        || ((CupyopsK == 'i' || CupyopsK == 'u') && (CupyopsHas == 'c' || CupyopsHas == 'e'))
        || (CupyopsK == 'u' && (CupyopsHas == 'p' || (CupyopsHas == 's' && CupyopsN == 1)))>::CupyopsIs;
};
template <class CupyopsT, char CupyopsK, CupyopsSize CupyopsN, char CupyopsHas = CupyopsKind<CupyopsT>::CupyopsIs>
struct CupyopsOne : CupyopsNumber<CupyopsT, CupyopsK, CupyopsN> {};
template <class CupyopsT, char CupyopsK, CupyopsSize CupyopsN> struct CupyopsOne<CupyopsT, CupyopsK, CupyopsN, 's'> { static constexpr bool CupyopsIs = true; };
template <class CupyopsT, char CupyopsK, CupyopsSize CupyopsN> struct CupyopsOne<CupyopsT, CupyopsK, CupyopsN, '?'> { static constexpr bool CupyopsIs = true; };
template <class CupyopsT, char CupyopsK, CupyopsSize CupyopsN, char CupyopsHas = CupyopsKind<CupyopsT>::CupyopsIs>
struct CupyopsParts : CupyopsNumber<CupyopsT, CupyopsK, CupyopsN> {};
template <class CupyopsT, char CupyopsK, CupyopsSize CupyopsN> struct CupyopsParts<CupyopsT, CupyopsK, CupyopsN, 's'>
    : CupyopsOne<typename decltype(CupyopsPart((CupyopsT*)0, 0, 0))::CupyopsType, CupyopsK, CupyopsN> {};
template <class CupyopsT, char CupyopsK, CupyopsSize CupyopsN, CupyopsSize CupyopsAll> struct CupyopsVector {
    typedef typename CupyopsSingle<CupyopsT>::CupyopsType CupyopsEach;
    static constexpr char CupyopsHas = CupyopsKind<CupyopsEach>::CupyopsIs;
    static constexpr bool CupyopsIs = CupyopsSized<CupyopsT, CupyopsAll, CupyopsHas != 'v' && CupyopsHas != '?'>::CupyopsIs
        && CupyopsParts<CupyopsEach, CupyopsK, CupyopsN>::CupyopsIs;
};
template <class CupyopsT, CupyopsSize CupyopsAll> struct CupyopsBytes {
    static constexpr char CupyopsHas = CupyopsKind<typename CupyopsSingle<CupyopsT>::CupyopsType>::CupyopsIs;
    static constexpr bool CupyopsIs = CupyopsSized<CupyopsT, CupyopsAll, CupyopsHas != 'v' && CupyopsHas != '?'>::CupyopsIs;
};
template <class CupyopsT, char CupyopsHas = CupyopsKind<CupyopsT>::CupyopsIs> struct CupyopsOpaque { static constexpr bool CupyopsIs = CupyopsHas == 'v' || CupyopsHas == 's'; };
template <class CupyopsT, char CupyopsK, CupyopsSize CupyopsN, char CupyopsHas = CupyopsKind<CupyopsT>::CupyopsIs>
struct CupyopsDecided : CupyopsParts<CupyopsT, CupyopsK, CupyopsN> {};
template <class CupyopsT, char CupyopsK, CupyopsSize CupyopsN> struct CupyopsDecided<CupyopsT, CupyopsK, CupyopsN, 'v'> : CupyopsOpaque<CupyopsT> {};
template <class CupyopsT, char CupyopsHas> struct CupyopsBytesOf { static constexpr CupyopsSize CupyopsIs = sizeof(CupyopsT); };
template <class CupyopsT> struct CupyopsBytesOf<CupyopsT, 's'> { static constexpr CupyopsSize CupyopsIs = 0; };
template <class CupyopsT> struct CupyopsBytesOf<CupyopsT, 'v'> { static constexpr CupyopsSize CupyopsIs = 0; };
template <class CupyopsT> struct CupyopsBytesOf<CupyopsT, '?'> { static constexpr CupyopsSize CupyopsIs = 0; };
template <class CupyopsP> struct CupyopsValue : CupyopsBox<CupyopsP> {};
template <class CupyopsT> struct CupyopsValue<CupyopsT*> : CupyopsBox<CupyopsT> {};
template <class CupyopsT> struct CupyopsValue<CupyopsT&> : CupyopsBox<CupyopsT> {};
template <int CupyopsI, int CupyopsHas, int CupyopsN, class CupyopsP> struct CupyopsParameter;
template <int CupyopsI, class CupyopsP, bool CupyopsOk> struct CupyopsTakes { static constexpr bool CupyopsIs = true; };
template <int CupyopsI, class CupyopsP> struct CupyopsTakes<CupyopsI, CupyopsP, false> {
    typedef typename CupyopsValue<CupyopsP>::CupyopsType CupyopsE;
    static constexpr char CupyopsHas = CupyopsKind<CupyopsE>::CupyopsIs;
    static constexpr bool CupyopsIs = sizeof(CupyopsParameter<CupyopsI, CupyopsHas, CupyopsBytesOf<CupyopsE, CupyopsHas>::CupyopsIs, CupyopsP>) != 0;
};
template <int CupyopsI> struct CupyopsTakes<CupyopsI, CupyopsNothing, false> { static constexpr bool CupyopsIs = true; };
template <class... CupyopsPs> struct CupyopsList;
template <class CupyopsR, class... CupyopsPs> __device__ CupyopsList<CupyopsPs...> CupyopsListOf(CupyopsR (*)(CupyopsPs...));
template <int CupyopsI, class CupyopsPs> struct CupyopsAt : CupyopsBox<CupyopsNothing> {};
template <class CupyopsP, class... CupyopsPs> struct CupyopsAt<0, CupyopsList<CupyopsP, CupyopsPs...>> : CupyopsBox<CupyopsP> {};
template <int CupyopsI, class CupyopsP, class... CupyopsPs>
struct CupyopsAt<CupyopsI, CupyopsList<CupyopsP, CupyopsPs...>> : CupyopsAt<CupyopsI - 1, CupyopsList<CupyopsPs...>> {};"""

_KINDS = {"float16": "h", "bfloat16": "g", "float32": "f", "float64": "f", "bool": "b"}
_OF_HEADERS = {"float16": "__half", "bfloat16": "__nv_bfloat16"}
_EACH = 1000  # the numbers of a kernel's parameters begin at a multiple of it
_ELEMENT = "typename CupyopsPointee<{}>::CupyopsType"
_DATA = "typename CupyopsPointee<typename decltype(CupyopsData(({}*)0, 0, 0))::CupyopsType>::CupyopsType"


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
        listed = f"CupyopsList{number}"
        lines.append(f"typedef decltype(CupyopsListOf({address})) {listed};")
        for i, fits in compared:
            # A missing parameter is found by the sizes of the compiled kernel's parameters.
            at = f"CupyopsAt<{i}, {listed}>::CupyopsType"
            lines.append(
                f'static_assert(CupyopsTakes<{number * _EACH + i}, {at}, {fits.format(at)}::CupyopsIs>::CupyopsIs, "");'
            )
    if not lines:
        return ""
    kinds = [
        f"struct {c};\ntemplate <> struct CupyopsKind<{c}> {{ static constexpr char CupyopsIs = '{_KINDS[name]}'; }};"
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
        return "" if decided_by_none else f"CupyopsOpaque<{at}>"
    if dtype is None:
        return ""
    number = f"'{_KINDS.get(dtype.name, dtype.name[0])}', {dtype.itemsize}"
    if p.element is None or p.element.handle:
        # The elements of a type that the array decides may be structs, unless a shape counts them.
        return f"{'CupyopsDecided' if p.untyped and p.shape is None else 'CupyopsNumber'}<{at}, {number}>"
    if p.type == "uint8":
        return f"CupyopsBytes<{at}, {p.element.width}>"
    return f"CupyopsVector<{at}, {number}, {p.element.width * dtype.itemsize}>"


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
    lines.append(f"{''.join(spaces)}typedef void CupyopsDeclared{number}({listed});{' }' * len(spaces)}")
    return f"static_cast<{'::'.join((*function.scope, f'CupyopsDeclared{number}'))}*>(&{function.path})"


_MISTAKEN = re.compile(
    r"CupyopsParameter<(\d+), ?(\d+), ?(\d+), ?(.+?)>[\"'’](?: \(aka \"CupyopsParameter<[\d, ]*(.+?)>\"\))?"
)
_SPELLED = re.compile(r"\bCupyopsBox<(.+)>::CupyopsType")  # NVRTC shows a typedef as it is written
_WORDS = {"c": "char", "e": "an enumeration", "p": "pointers", "v": "void"}


def explained(message: str, text: str, filename: str, signatures: Sequence[Signature], types: Mapping[str, str]) -> str:
    """Returns a compiler's message, or, if a parameter has another type than what the launch passes, both types in its place."""
    found = _MISTAKEN.search(message)
    if found is None:
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
