"""C++ types of clang's tree: which are numbers, which have a word, and how generated code names them."""

from typing import Any

from .numbers import NUMBERS, Number
from .tree import template_arguments
from .words import Word, words

__all__ = [
    "common",
    "gives_place",
    "holds",
    "holds_reference",
    "holds_values",
    "is_guard",
    "is_immutable",
    "is_mutable",
    "is_owner",
    "is_reference",
    "is_value",
    "number",
    "qualified",
    "record_word",
    "spelled",
    "type_arguments",
]

_KINDS = {
    "BOOL": "bool_", "CHAR_S": "int8", "SCHAR": "int8", "CHAR_U": "uint8", "UCHAR": "uint8", "SHORT": "int16",
    "USHORT": "uint16", "INT": "int32", "UINT": "uint32", "LONG": "int64", "ULONG": "uint64", "LONGLONG": "int64",
    "ULONGLONG": "uint64", "FLOAT": "float32", "DOUBLE": "float64", "CHAR16": "uint16", "CHAR32": "uint32",
    "WCHAR": "int32",
}  # fmt: skip
_SMALL = {
    "c10::Half": "float16", "c10::BFloat16": "bfloat16", "c10::Float8_e4m3fn": "float8_e4m3fn", "c10::Float8_e5m2": "float8_e5m2",
}  # fmt: skip


def qualified(cursor: Any) -> str:
    """Returns the C++ name of a declaration with its namespaces and classes, without template arguments."""
    parts = [cursor.spelling]
    parent = cursor.semantic_parent
    while parent is not None and parent.kind.name != "TRANSLATION_UNIT":
        unscoped = parent.kind.name in ("LINKAGE_SPEC", "FUNCTION_DECL") or "(" in parent.spelling
        if parent.spelling and not unscoped and (parent.kind.name != "ENUM_DECL" or parent.is_scoped_enum()):
            parts.append(parent.spelling)
        parent = parent.semantic_parent
    return "::".join(reversed(parts))


def plain(type: Any) -> Any:
    """Returns the canonical type without a reference."""
    type = type.get_canonical()
    return type.get_pointee().get_canonical() if is_reference(type) else type


def is_reference(type: Any) -> bool:
    return type.get_canonical().kind.name in ("LVALUEREFERENCE", "RVALUEREFERENCE")


def number(type: Any) -> Number | None:
    """Returns the type of numbers, also of an enumeration of the user and of PyTorch's types of 16 and 8 bits, or None."""
    type = plain(type)
    name = _KINDS.get(type.kind.name)
    if name is not None:
        return NUMBERS[name]
    if type.kind.name == "ENUM":
        declaration = type.get_declaration()
        return None if declaration.is_scoped_enum() and record_word(type) else number(declaration.enum_type)
    if type.kind.name == "RECORD" and (small := _SMALL.get(qualified(type.get_declaration()))):
        return NUMBERS[small]
    return None


def record_word(type: Any) -> Word | None:
    """Returns the word of a class or an enumeration, or None."""
    type = plain(type)
    if type.kind.name not in ("RECORD", "ENUM"):
        return None
    return words().get(qualified(type.get_declaration()))


def is_value(type: Any) -> bool:
    """Returns whether values are objects that C++ copies: structs, containers, arrays. Others are immutable or handles."""
    type = plain(type)
    if type.kind.name in ("CONSTANTARRAY", "INCOMPLETEARRAY", "VARIABLEARRAY"):
        return True
    if type.kind.name != "RECORD" or number(type):
        return False
    found = record_word(type)
    if found is None:
        return "(lambda" not in type.spelling
    return not found.methods and hasattr(found.object, "copy")


def holds_reference(type: Any) -> bool:
    """Returns whether a member of this type is a Reference in Python: a reference to what is not an object in Python, or a handle."""
    return type.get_canonical().kind.name == "LVALUEREFERENCE" and not is_value(type) and not _is_function(type)


def _is_function(type: Any) -> bool:
    found = record_word(type)
    callee = plain(type).kind.name == "FUNCTIONPROTO" or "(lambda" in plain(type).spelling
    return callee or (found is not None and not found.methods and not isinstance(found.object, Number))


def is_guard(type: Any) -> bool:
    """Returns whether a class of words restores a setting at the end of its object's block, as ``CUDAGuard`` does."""
    found = record_word(type)
    return found is not None and hasattr(found.object, "__exit__")


def is_owner(type: Any) -> bool:
    """Returns whether a type is a smart pointer, which is null when it has been moved from."""
    found = record_word(type)
    return found is not None and found.name in ("std::unique_ptr", "std::shared_ptr")


def is_mutable(type: Any) -> bool:
    """Returns whether a type is that of a lambda that changes its captures, which a copy does not share."""
    if "(lambda" not in plain(type).spelling:
        return False
    methods = plain(type).get_declaration().get_children()
    return any(c.spelling == "operator()" and not c.is_const_method() for c in methods)


def holds_values(type: Any) -> bool:
    """Returns whether values are tuples or optionals with objects inside, which C++ copies with them."""
    found = record_word(type)
    if found is None or found.name not in ("std::pair", "std::tuple", "std::optional"):
        return False
    return any(is_value(a) or holds_values(a) for a in type_arguments(type))


def is_immutable(type: Any) -> bool:
    """Returns whether values are not places in Python: numbers, pointers, strings, tuples. Not tensors, which are handles."""
    if number(type) is not None or plain(type).kind.name == "POINTER":
        return True
    found = record_word(type)
    return found is not None and bool(found.methods) and found.name != "at::Tensor"


def gives_place(function: Any) -> bool:
    """Returns whether a function of the user returns a reference by which its caller may assign: a Reference in Python."""
    if function.kind.name not in ("FUNCTION_DECL", "CXX_METHOD"):
        return False
    result = function.result_type.get_canonical()
    if result.kind.name != "LVALUEREFERENCE" or result.get_pointee().is_const_qualified():
        return False
    parent = function.semantic_parent
    return is_immutable(result) and not (parent is not None and "(lambda" in parent.type.spelling)


def holds(wide: Number, narrow: Number) -> bool:
    """Returns whether one type of integers holds all values of another."""
    if wide.floating or narrow.floating or wide.name == "bool_":
        return False
    if narrow.name == "bool_":
        return True
    if wide.signed == narrow.signed:
        return wide.size >= narrow.size
    return wide.signed and wide.size > narrow.size


def common(a: Number, b: Number) -> Number:
    """Returns the type of ``a + b`` by C++'s usual arithmetic conversions."""
    for name in ("float64", "float32", *_SMALL.values()):
        if name in (a.name, b.name):
            return NUMBERS[name]
    a, b = promoted(a), promoted(b)
    return max(a, b, key=lambda n: (n.size, not n.signed))


def promoted(n: Number) -> Number:
    """Returns the type of ``+n``."""
    return NUMBERS["int32"] if not n.floating and n.size < 4 else n


def type_arguments(type: Any) -> list[Any]:
    """Returns the types among the template arguments of a class, those of a pack one after another."""
    type = plain(type)
    found = [type.get_template_argument_type(i) for i in range(max(0, type.get_num_template_arguments()))]
    return [t for t in found if t.kind.name != "INVALID"]


def spelled(type: Any, structs: Any) -> str:
    """Returns a type in generated code: the argument of a typed word, or of a signature.

    Args:
        type: clang's type.
        structs: gives the Python class of a user's struct.
    """
    type = plain(type)
    kind = type.kind.name
    if kind == "VOID":
        return "None"
    if of_numbers := number(type):
        return of_numbers.name
    if kind == "POINTER":
        pointee = type.get_pointee()
        if pointee.get_canonical().kind.name in ("FUNCTIONPROTO", "FUNCTIONNOPROTO"):
            return repr(type.spelling)
        return f'("*", {spelled(pointee, structs)})'
    if kind == "INCOMPLETEARRAY":
        return f'("[]", {spelled(type.element_type, structs)})'
    if kind == "CONSTANTARRAY":
        return f'("[]", {spelled(type.element_type, structs)}, {type.element_count})'
    if kind == "RECORD":
        declaration = type.get_declaration()
        found = record_word(type)
        name = qualified(declaration)
        if found is None:
            return structs(type) if "(lambda" not in type.spelling else repr("lambda")
        declared = template_arguments(declaration)
        arguments = (
            [] if None in declared else [str(a) if isinstance(a, int) else spelled(a, structs) for a in declared]
        )
        arguments = arguments or [spelled(a, structs) for a in type_arguments(type)]
        return f"({name!r}, {', '.join(arguments)})" if arguments else repr(name)
    return repr(type.spelling)
