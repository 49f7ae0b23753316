"""Statements of host code compute the same values as compiled by g++."""

import json
import math
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cupyops.importer.errors import NotTranslated
from cupyops.importer.numbers import NUMBERS
from cupyops.importer.program import program
from tests.importer.refused import REFUSED, Refusal

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


@pytest.mark.parametrize("refusal", REFUSED, ids=lambda refusal: refusal.construct)
def test_what_has_no_translation_is_refused_by_name(refusal: Refusal) -> None:
    text = f"#include <torch/extension.h>\n{refusal.text}"
    with pytest.raises(NotTranslated, match=r"refused\.cu:2: no translation of .*" + re.escape(refusal.told)):
        program("refused", [("refused.cu", text)], functions=["f"]).functions["f"](1)


def test_sources_keep_their_names_to_themselves() -> None:
    """Two files may have a constant, a static function and a macro of the same name, since they are compiled
    separately."""
    text = "#define W {0}\nconstexpr int K = {0};\nstatic int twice(int n) {{ return {0} * n; }}\nint {1}(int n) {{ return K * twice(n) + W; }}"
    found = program("apart", [("a.cpp", text.format(2, "f")), ("b.cu", text.format(3, "g"))], functions=["f", "g"])
    assert (found.functions["f"](5), found.functions["g"](5)) == (22, 48)
    one = "#ifndef W\n#define W {0}\n#endif\nint {1}() {{ return W; }}"
    found = program("macros", [("a.cpp", one.format(2, "f")), ("b.cu", one.format(3, "g"))], functions=["f", "g"])
    assert (found.functions["f"](), found.functions["g"]()) == (2, 3)


@pytest.mark.parametrize(
    ("number", "value", "converted"),
    [
        ("uint32", -3e9, 2**32 - 3 * 10**9),
        ("uint32", 3e9, 3 * 10**9),
        ("int32", 3e9, -(2**31)),
        ("uint8", 300.0, 300 % 256),
        ("int64", 1e19, -(2**63)),
        ("uint64", 1e19, 10**19),
    ],
)
def test_a_float_beyond_an_integer_is_what_x86_leaves_of_it(number: str, value: float, converted: int) -> None:
    """x86 converts to the 32 or 64 bits that hold all numbers of the type, and truncates these."""
    assert NUMBERS[number](value) == converted
