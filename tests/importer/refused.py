"""C++ of host code that has no translation. The tests and docs/coming_from_load_inline.md have this list."""

from typing import NamedTuple

__all__ = ["REFUSED", "Refusal"]


class Refusal(NamedTuple):
    """A construct that raises ``NotTranslated`` when it would run.

    Attributes:
        construct: what a program has.
        told: the words of the error.
        text: a program with a function ``f`` of an ``int``.
    """

    construct: str
    told: str
    text: str


_CLASS = "int x = 0; struct D { int k = 0; ~D() { x = 1; } };"
REFUSED = (
    Refusal("`goto`", "a goto", "double f(int n) { again: if (--n > 0) goto again; return n; }"),
    Refusal("`throw` of a value that is not an object", "throws no object of a class", "double f(int n) { throw n; }"),
    Refusal(
        "a call by a pointer to a function with parameters that are references, not to constants",
        "by a pointer to a function that assigns to its arguments",
        "void g(int& x) { x += 1; } typedef void (*F)(int&); double f(int n) { F h = g; h(n); return n; }",
    ),
    Refusal(
        "a union", "the union `U`", "union U { float f; unsigned u; }; double f(int n) { U u; u.f = n; return u.u; }"
    ),
    Refusal(
        "a bit-field",
        "the bit-field `a`",
        "struct B { unsigned a : 3; }; double f(int n) { B b{}; b.a = n; return b.a; }",
    ),
    Refusal(
        "an array of arrays or objects, of a size of run time",
        "a variable of the type `int[n][2]`",
        "double f(int n) { int a[n][2]; a[0][1] = 4; return a[0][1]; }",
    ),
    Refusal("`__int128`", "a variable of the type `__int128`", "double f(int n) { __int128 a = n; return a; }"),
    Refusal("`long double`", "`a * 3`", "double f(int n) { long double a = n; return a * 3; }"),
    Refusal("wide strings", "of wide characters", 'double f(int n) { return L"ab"[n]; }'),
    Refusal(
        "assigned characters of a `std::string`",
        "'operator[]' returns a const value",
        'double f(int n) { std::string s = "ab"; s[0] = n; return s[0]; }',
    ),
    Refusal(
        "functions with `...`",
        "which takes any number of arguments",
        "int g(int k, ...) { return k; } double f(int n) { return g(1, n); }",
    ),
    Refusal(
        "`dynamic_cast`",
        "the dynamic_cast",
        "struct A { virtual int g() { return 1; } }; struct B : A {}; double f(int n) { A a; return dynamic_cast<B*>(&a) ? n : 1; }",
    ),
    Refusal(
        "a pointer to a method",
        "a pointer to the method",
        "struct S { int g() { return 1; } }; double f(int n) { auto p = &S::g; return n; }",
    ),
    Refusal(
        "an assignment to what a lambda returns",
        "an assignment to `g()`",
        "double f(int n) { auto g = [&n]() -> int& { return n; }; g() = 3; return n; }",
    ),
    Refusal(
        "a generic lambda that the program keeps in a `std::function`",
        "which no function of the program calls",
        "double f(int n) { std::function<int(int)> g = [](auto a) { return a; }; return g(n); }",
    ),
    Refusal(
        "a loop over iterators of the program's own",
        "the loop over `r`",
        "struct R { int* begin(); int* end(); }; double f(int n) { R r; for (int a : r) n += a; return n; }",
    ),
    Refusal(
        "a destructor of a class template",
        "the destructor of `H<int>`",
        "int x = 0; template <class T> struct H { ~H() { x = 1; } }; double f(int n) { H<int> h; return n; }",
    ),
    Refusal(
        "members and base classes with a destructor",
        "the destructor of `O`",
        f"{_CLASS} struct O {{ D d; }}; double f(int n) {{ O o; return n; }}",
    ),
    Refusal(
        "copies of an object with a destructor",
        "a copy of `d`, whose class has a destructor",
        f"{_CLASS} double f(int n) {{ D d; D e = d; return n; }}",
    ),
    Refusal(
        "an object with a destructor as a result",
        "whose class has a destructor, as a result",
        f"{_CLASS} D g() {{ D d; return d; }} double f(int n) {{ g(); return n; }}",
    ),
    Refusal(
        "an object with a destructor in a container or a pointer",
        "a destructor, that are not variables",
        f"{_CLASS} double f(int n) {{ std::vector<D> v(2); return n; }}",
    ),
    Refusal(
        "an object with a destructor without a name",
        "a destructor, that is not a variable",
        f"{_CLASS} double f(int n) {{ D(); return n; }}",
    ),
    Refusal(
        "an object with a destructor in the head of `if`",
        "in the head of a statement",
        f"{_CLASS} double f(int n) {{ if (D d; n) return x; return n; }}",
    ),
    Refusal(
        "a guard in a container or a pointer",
        "which owns a guard",
        "double f(int n) { std::optional<at::NoGradGuard> guard; return n; }",
    ),
    Refusal("inline assembly of the host", "asm stmt", 'double f(int n) { asm("nop"); return n; }'),
    Refusal(
        "names that no header declares",
        "unknown type name 'Foo'",
        "int g(Foo a) { return a; } double f(int n) { g(n); return n; }",
    ),
    Refusal(
        "what uses a type that no header declares",
        "`S`, as clang refuses",
        "struct S { Foo a; int b; }; double f(int n) { return sizeof(S) + n; }",
    ),
    Refusal("threads", "no member named 'thread'", "double f(int n) { std::thread t([] {}); return n; }"),
    Refusal("files", "no member named 'ifstream'", 'double f(int n) { std::ifstream file("x"); return n; }'),
    Refusal(
        "`std::list`, `std::variant` and other names of the library that have no translation",
        "no member named 'list'",
        "double f(int n) { std::list<int> q; return n; }",
    ),
    Refusal("CUDA graphs", "unknown type name 'cudaGraph_t'", "double f(int n) { cudaGraph_t g; return n; }"),
    Refusal(
        "surfaces", "unknown type name 'cudaSurfaceObject_t'", "double f(int n) { cudaSurfaceObject_t t; return n; }"
    ),
    Refusal(
        "Thrust's iterators that are not pointers",
        "no member named 'make_zip_iterator' in namespace 'thrust'",
        "double f(int n) { auto i = thrust::make_zip_iterator(&n, &n); return n; }",
    ),
)
