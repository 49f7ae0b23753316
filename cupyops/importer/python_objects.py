"""pybind11's classes of Python objects, such as py::list: here they are the Python objects themselves."""

from typing import Any

from . import binding  # noqa: F401  its C++ text comes first
from .casters import as_python, cast_value, load_value
from .words import declare, methods, word

__all__: list[str] = []

# The methods are constant: an object in C++ is a reference to one of Python, whatever its method does.
_OBJECT = """object(); template <class T> T cast() const; bool is_none() const; explicit operator bool() const;
  template <class... A> object operator()(const A&...) const; object attr(const char*) const;
  template <class T> bool equal(const T&) const;"""
declare(f"""namespace pybind11 {{ struct object {{ {_OBJECT}
  template <class T> object& operator[](const T&) const; template <class T> object& operator=(const T&); }}; using handle = object; }}""")
word("pybind11::object", methods="pybind11.object_")(lambda value=None: value)


def _class(name: str, of: str, make: Any, more: str = "") -> None:
    """Declares a class of Python's objects.

    Args:
        name: its name.
        of: the parameters of its constructors, each after ``;``.
        make: returns an object of the constructor's arguments.
        more: further methods.
    """
    constructors = "".join(f" {name}({parameters});" for parameters in ("", "const object&", *of.split(";")))
    text = f"struct {name} : object {{ {constructors} {more} }};"
    word(f"pybind11::{name}", text, methods="pybind11.object_")(make)


def _of(kind: Any) -> Any:
    return lambda *values: kind(*map(as_python, values))


_SIZED = "size_t size() const; bool empty() const; "
_class("none", "", lambda *_: None)
_class("int_", "int;long;unsigned;unsigned long;long long", _of(int), "operator long() const;")
_class("float_", "double", _of(float), "operator double() const;")
_class("bool_", "bool", _of(bool), "operator bool() const;")
_class("str", "const char*;const std::string&", _of(str), "operator std::string() const;")
_class(
    "list",
    "",
    _of(list),
    f"{_SIZED} template <class T> void append(const T&) const; object* begin() const; object* end() const;",
)
_class("tuple", "", _of(tuple), f"{_SIZED} object* begin() const; object* end() const;")
_class("args", "", _of(tuple), f"{_SIZED} object* begin() const; object* end() const;")
for _dict in ("dict", "kwargs"):
    _class(_dict, "", _of(dict), f"{_SIZED} template <class T> bool contains(const T&) const;"
           " std::pair<object, object>* begin() const; std::pair<object, object>* end() const;")  # fmt: skip


def _cast(*arguments: Any) -> Any:
    kind, value = arguments
    return load_value(kind, value, "cast")


word("pybind11::object_::cast", typed=True)(_cast)
methods(
    "pybind11::object_",
    {
        "is_none": lambda x: x is None,
        "operator_bool": bool,
        "equal": lambda x, y: x == as_python(y),
        "attr": getattr,
        "size": len,
        "empty": lambda x: not x,
        "append": lambda x, value: x.append(as_python(value)),
        "contains": lambda x, key: as_python(key) in x,
    },
)
word("pybind11::print", "template <class... A> void print(const A&...);")(
    lambda *values: print(*map(as_python, values))
)
word("pybind11::len", "size_t len(const object&);")(len)


@word("pybind11::isinstance", "template <class T> bool isinstance(const object&);", typed=True)
def _isinstance(kind: Any, value: Any) -> bool:
    try:
        load_value(kind, value, "isinstance")
    except TypeError:
        return False
    return True


@word(
    "pybind11::cast", "template <class T> object cast(const T&); template <class T> T cast(const object&);", typed=True
)
def _converted(kind: Any, value: Any) -> Any:
    return cast_value(kind, value)


@word("pybind11::make_tuple", "template <class... A> tuple make_tuple(const A&...);")
def _tuple(*values: Any) -> tuple[Any, ...]:
    return tuple(map(as_python, values))
