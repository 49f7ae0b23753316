"""C++ means what C++ means: statements of host code have the values that g++ gives them."""

import json
import math
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cupyops.importer.errors import NotTranslated
from cupyops.importer.program import program

HERE = Path(__file__).parent
# Arithmetic and statements; references, copies and lambdas; characters, rows, functions with variables, members, destructors.
FILES = ("host_semantics", "host_places", "host_objects")
PRELUDE = (HERE / "host_prelude.cuh").read_text()  # what all use
SOURCES = {file: PRELUDE + (HERE / f"{file}.cu").read_text() for file in FILES}
TRUTHS: dict[str, dict[str, list[Any]]] = {file: json.loads((HERE / f"{file}.json").read_text()) for file in FILES}
INPUTS = [(7, 2.6), (-7, -2.6), (0, 0.5), (1000003, 1e9)]


@cache
def functions_of(file: str) -> dict[str, Any]:
    return program(file, [(f"{file}.cu", SOURCES[file])], functions=list(TRUTHS[file])).functions


def equal(got: float, want: Any) -> bool:
    want = float(want)
    return got == want or (math.isnan(got) and math.isnan(want)) or abs(got - want) <= 1e-14 * abs(want)


@pytest.mark.parametrize(("file", "case"), [(file, case) for file in FILES for case in TRUTHS[file]])
def test_values_are_those_of_a_compiler(file: str, case: str) -> None:
    found = [functions_of(file)[case](n, d) for n, d in INPUTS]
    assert all(map(equal, found, TRUTHS[file][case])), (found, TRUTHS[file][case])


@pytest.mark.thorough
@pytest.mark.parametrize("file", FILES)
def test_the_expected_values_are_those_of_gcc(tmp_path: Path, file: str) -> None:
    """Builds the same text by g++."""
    truth = TRUTHS[file]
    table = ", ".join(truth)
    runs = ", ".join(f"{{{n}, {d!r}}}" for n, d in INPUTS)
    text = f"""{SOURCES[file]}
int main() {{
  double (*all[])(int, double) = {{{table}}};
  struct {{ int n; double d; }} in[] = {{{runs}}};
  for (int i = 0; i < {len(truth)}; ++i) for (auto& x : in) {{ calls = 0; printf("%.17g\\n", all[i](x.n, x.d)); }}
}}"""
    (tmp_path / "cases.cpp").write_text(text)
    command = ["g++", "-std=c++17", "-O0", "-w", "cases.cpp", "-o", "cases"]
    subprocess.run(command, check=True, cwd=tmp_path)
    lines = subprocess.run([tmp_path / "cases"], capture_output=True, text=True, check=True).stdout.split()
    found = dict(zip(truth, zip(*[iter(lines)] * len(INPUTS), strict=True), strict=True))
    for case, values in found.items():
        assert all(equal(float(v), w) for v, w in zip(values, truth[case], strict=True)), case


# What would be another value in Python, and has no translation yet.
REFUSED = {
    "union": "union U { float f; unsigned u; }; double f(int n) { U u; u.f = n; return u.u; }",
    "the destructor of `H<int>`": "int log_ = 0; template <class T> struct H { ~H() { log_ = 1; } }; double f(int n) { H<int> h; return n; }",
    "in the head of a statement": "int log_ = 0; struct D { ~D() { log_ = 1; } }; double f(int n) { if (D d; n) return log_; return n; }",
    "throws no object of a class": "double f(int n) { throw n; }",
    "a goto": "double f(int n) { again: if (--n > 0) goto again; return n; }",
    "a destructor, that are no variables": "int log_ = 0; struct D { ~D() { log_ = 1; } }; double f(int n) { std::vector<D> v(2); return n; }",
    "unknown type name 'Foo'": "int g(Foo x) { return x; } double f(int n) { g(n); return n; }",
    "`S`, as clang refuses": "struct S { Foo a; int b; }; double f(int n) { return sizeof(S) + n; }",
    "the loop over `r`": "struct R { int* begin(); int* end(); }; double f(int n) { R r; for (int x : r) n += x; return n; }",
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_python_would_do_otherwise_is_refused(why: str) -> None:
    text = f"#include <vector>\n{REFUSED[why]}"
    with pytest.raises(NotTranslated, match=r"refused\.cu:2: no translation of .*" + why):
        program("refused", [("refused.cu", text)], functions=["f"]).functions["f"](1)


def test_sources_keep_their_names_to_themselves() -> None:
    """Two files have a constant, a static function and a macro of one name, as files that are compiled apart may."""
    text = "#define W {0}\nconstexpr int K = {0};\nstatic int twice(int n) {{ return {0} * n; }}\nint {1}(int n) {{ return K * twice(n) + W; }}"
    found = program("apart", [("a.cpp", text.format(2, "f")), ("b.cu", text.format(3, "g"))], functions=["f", "g"])
    assert (found.functions["f"](5), found.functions["g"](5)) == (22, 48)
    one = "#ifndef W\n#define W {0}\n#endif\nint {1}() {{ return W; }}"
    found = program("macros", [("a.cpp", one.format(2, "f")), ("b.cu", one.format(3, "g"))], functions=["f", "g"])
    assert (found.functions["f"](), found.functions["g"]()) == (2, 3)
