"""The words of C++'s standard library: the types that clang gives them, and their values in Python."""

import functools
import io
import math
import sys

import pytest
import torch

pytest.importorskip("clang.cindex")

import cupyops
from cupyops.importer import generated, standard
from cupyops.importer.cursors import python_name
from cupyops.importer.numbers import NUMBERS, divide, quotient, remainder
from cupyops.importer.references import Pointer, Variable
from cupyops.importer.tree import evaluated, parse
from cupyops.importer.words import Namespace, namespaces, words

int32, int64, uint8, float32, float64 = (NUMBERS[n] for n in ("int32", "int64", "uint8", "float32", "float64"))
Vector = standard.Vector

VARIABLES = """int n = 1; long l = 2; std::vector<float> v; std::tuple<int, float> t; std::optional<float> o; std::string s;
std::map<int, std::string> m; std::array<int, 3> a = {1, 2, 3}; std::function<double(int)> fn; std::exception e; int arr[3];
"""
TYPES = {
    "std::sqrt(2)": "double", "std::sqrt(2.f)": "float", "sqrtf(2.f)": "float", "sqrt(n)": "double",
    "std::pow(2, 3)": "double", "std::pow(2.f, 3.f)": "float", "std::pow(2.f, 3)": "double", "powf(2, 3)": "float",
    "std::max<int64_t>(n, 1)": "long", "std::max(n, 1)": "int", "max(n, 1u)": "unsigned int", "max(l, l)": "long",
    "max(1.f, 2.0)": "double", "std::min({1, 2, 3})": "int", "std::abs(n)": "int", "std::abs(l)": "long",
    "abs(-1.5f)": "float", "fabs(1)": "double", "std::ceil(n / 2)": "double", "ceilf(1.f)": "float",
    "std::isnan(1.f)": "bool", "lround(1.5)": "long", "fmaxf(1, 2)": "float", "fmax(1.f, 2)": "double",
    "v.size()": "unsigned long", "v.begin()": "float *", "*v.rbegin()": "float", "v[0]": "float",
    "std::vector{1, 2}": "std::vector<int>", "std::make_pair(1, 2.f).second": "float",
    "std::get<1>(std::make_tuple(1, 2.f))": "float", "std::get<float>(t)": "float", "*o": "float",
    "std::to_string(n) + \"x\" + 'c'": "std::string", "std::numeric_limits<float>::max()": "float",
    "std::accumulate(v.begin(), v.end(), 0.0)": "double", "std::max_element(v.begin(), v.end())": "float *",
    "std::accumulate(v.begin(), v.end(), 1L, std::multiplies<int64_t>())": "long", "m[3]": "std::string",
    "m.find(3)->second": "std::string", "a.size()": "unsigned long", "std::make_unique<int>(3)": "std::unique_ptr<int>",
    "fn(3)": "double", "INFINITY": "float", "FLT_MAX": "float", "INT64_MAX": "long", "M_PI": "double",
    "std::gcd(n, l)": "long", "e.what()": "const char *", "std::plus<>()(1, 2.f)": "float", "std::end(arr)": "int *",
    "std::optional<std::string>(\"x\")": "std::optional<std::string>", "std::array{1, 2, 3}": "std::array<int, 3>",
}  # fmt: skip

STATEMENTS = """auto [x, y] = t; std::tie(n, std::ignore) = t; const auto& [p, q] = std::make_pair(1, 2.0);
constexpr std::array<int, 3> c = {4, 5, 6}; static_assert(c[1] == 5);
std::optional<int64_t> i = 5; i = std::nullopt; if (!i.has_value() || i == std::nullopt) n = i.value_or(3);
s += "b"; s += 'c'; if ("x" != s) s.push_back('d');
std::ostringstream ss; ss << "a" << 1 << 2.5f << 'c' << s << true << std::endl << std::setprecision(3); std::cout << ss.str();
printf("%d", n); fprintf(stderr, "%s", s.c_str()); assert(n > 0 && "positive");
std::vector<std::pair<int, std::string>> ps = {{1, "a"}, {2, "b"}}; for (const auto& [k, w] : ps) n += k;
std::vector<int> w = {1, 2}; w.insert(w.end(), w.begin(), w.end()); w.erase(w.begin() + 1); w = {4, 5};
for (auto it = m.begin(); it != m.end(); ++it) n += it->first;
std::unique_ptr<float[]> buffer(new float[4]); buffer[1] = 2;
try { throw std::runtime_error("a" + std::to_string(n)); } catch (const std::exception& error) { std::cerr << error.what(); }
static std::mutex mutex; std::lock_guard<std::mutex> lock(mutex);
auto start = std::chrono::steady_clock::now();
auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start).count();
static_assert(std::numeric_limits<int64_t>::min() == INT64_MIN && std::numeric_limits<uint8_t>::max() == 255);
static_assert(std::is_same_v<std::decay_t<const int&>, int> && sizeof(size_t) == 8);
"""

KERNEL = """__global__ void k(float* x, int n) { x[0] = fmaxf(expf(x[1]), -INFINITY) + std::max(1.f, x[2]) + min(n, 3);
x[1] = std::sqrt(x[3]) + powf(x[1], 2.f) + exp(x[0]) + max(x[0], 0.0f) + std::numeric_limits<float>::infinity(); assert(n > 0); }
struct Own : std::exception { const char* what() const noexcept override { return "own"; } };
"""


def parsed(text):
    return parse([("m.cu", text)])


def test_expressions_have_cpp_types():
    lines = "".join(f"auto q{i} = {expression};\n" for i, expression in enumerate(TYPES))
    unit = parsed(f"void f() {{ {VARIABLES} {lines} }}")
    assert [p.message for p in unit.problems] == []
    found = {
        c.spelling: c.type.get_canonical().spelling for c in unit.cursor.walk_preorder() if c.kind.name == "VAR_DECL"
    }
    assert {e: found[f"q{i}"] for i, e in enumerate(TYPES)} == TYPES


def test_statements_and_kernels_parse():
    assert [p.message for p in parsed(f"void f() {{ {VARIABLES} {STATEMENTS} }} {KERNEL}").problems] == []


@pytest.mark.parametrize(
    "statement",
    [
        "auto x = std::max(int64_t(1), 1);", "auto x = max(int64_t(1), 1);", "auto x = max(1.f, 1);", "auto x = std::min(1u, 1);",
        "std::string s = 'c';", "std::vector<int> v = 3;", "auto x = std::get<2>(std::make_tuple(1, 2));",
    ],
)  # fmt: skip
def test_what_cpp_refuses_is_an_error(statement):
    assert parsed(f"void f() {{ {statement} }}").problems


def test_limits_are_constants():
    wanted = {
        "std::numeric_limits<float>::lowest()": -3.4028234663852886e38, "INFINITY": math.inf, "INT_MIN": -(2**31),
        "SIZE_MAX": 2**64 - 1, "std::numeric_limits<int8_t>::min()": -128, "M_PI": math.pi,
    }  # fmt: skip
    unit = parsed("void f() {" + "".join(f"auto q{i} = {e};" for i, e in enumerate(wanted)) + "}")
    variables = [c for c in unit.cursor.walk_preorder() if c.kind.name == "VAR_DECL" and c.spelling.startswith("q")]
    values = [evaluated([k for k in c.get_children() if k.kind.is_expression()][-1]) for c in variables]
    assert values == list(wanted.values())


def names():
    return dict(namespaces())


def test_numbers_convert_as_cpp():
    assert uint8(-1) == 255
    assert NUMBERS["int8"](200) == -56
    assert (int32(-2.7), uint8(3.9), NUMBERS["uint64"](1e19)) == (-2, 3, 10**19)
    assert (int32(math.nan), int32(1e10), int64(math.inf)) == (-(2**31), -(2**31), -(2**63))
    assert float32(0.1) == 0.10000000149011612
    assert (float32(1e300), NUMBERS["float16"](1e6), NUMBERS["bfloat16"](1.01)) == (math.inf, math.inf, 1.0078125)
    assert (quotient(-7, 2), remainder(-7, 2), divide(-1.0, 0.0)) == (-3, -1, -math.inf)
    assert (NUMBERS["bool_"](0.5), NUMBERS["bool_"](Pointer([1])), int32(True)) == (True, True, 1)


def test_mathematics_have_ieee_results():
    c = names()
    assert (c["log"](0.0), c["pow"](0.0, -1.0), c["exp"](1000.0), c["sinh"](-1000.0)) == (
        -math.inf,
        math.inf,
        math.inf,
        -math.inf,
    )
    assert all(map(math.isnan, (c["sqrt"](-1.0), c["log"](-1.0), c["fmod"](1.0, 0.0), c["pow"](-8.0, 1 / 3))))
    assert [c["round"](x) for x in (2.5, -2.5, 0.49999999999999994, math.inf)] == [3, -3, 0, math.inf]
    assert math.copysign(1, c["ceil"](-0.5)) == -1
    assert (c["fmin"](math.nan, 1.0), c["fmax"](1.0, math.nan), c["cbrt"](27.0), c["lround"](-0.5)) == (1, 1, 3, -1)
    assert c["std"].max(Vector([1, 3, 2])) == 3
    assert c["std"].min(2, 1, lambda a, b: a > b) == 2


def test_vectors_copy_and_insert():
    std = names()["std"]
    v = std.vector(float32, 2)
    v.push_back(1.5)
    v.emplace_back(0.1)
    assert v == [0.0, 0.0, 1.5, float32(0.1)]
    assert std.vector(int32, v.begin() + 2, v.end()) == [1, 0]
    v.insert(v.begin(), 7.0)
    v.insert(v.end(), 2, 8.0)
    assert v.erase(v.begin() + 1, v.begin() + 5)[0] == 8.0
    assert v == [7.0, 8.0, 8.0]
    nested = std.vector(("std::vector", int32), 2, std.vector(int32, 2, 1))
    other = nested.copy()
    other[0][0] = 5
    assert nested == [[1, 1], [1, 1]]
    nested.resize(3)
    assert nested[2] == []
    assert [std.accumulate(("*", int32), int32, i, v.rend(), 0) for i in (v.rbegin(),)] == [23]
    with pytest.raises(IndexError):
        v.at(3)
    assert std.array(int32, 3, 1, 2) == [1, 2, 0]


def test_tuples_and_optionals():
    std = names()["std"]
    assert std.tuple(float32, int32, (0.1, 2)) == (float32(0.1), 2)
    assert std.tuple(float32, int32) == (0.0, 0)
    assert std.tuple(1, "x") == (1, "x")
    assert std.get(float32, ("std::tuple", int32, float32), (1, 0.5)) == 0.5
    a, b = Variable(0), Variable(0)
    std.tie(a, b).assign((1, 2))
    assert (a.value, b.value) == (1, 2)
    place = Variable((1, 2))
    std.pair_.first_reference(place).value = 5
    assert place.value == (5, 2)
    assert std.optional(float32, 0.1) == float32(0.1)
    assert std.optional_.value_or(None, 3) == 3
    with pytest.raises(RuntimeError, match="bad optional access"):
        std.optional_.value(None)


def test_maps_and_sets():
    std = names()["std"]
    m = std.map("std::string", int32)
    m["b"] = 1
    assert m["a"] == 0
    assert list(m) == [("a", 0), ("b", 1)]
    assert m.find("z") == m.end()
    assert m.find("b").deref() == ("b", 1)
    assert m.insert(("b", 7))[1] is False
    s = std.set(int32, Vector([3, 1, 3]))
    assert list(s) == [1, 3]
    assert s.erase(3) == 1


def test_algorithms_store_the_type_of_elements():
    std = names()["std"]
    v = std.vector(float32, 3)
    std.fill(("*", float32), int32, v.begin(), v.end(), 1)
    assert [type(x) for x in v] == [float] * 3
    std.iota(("*", float32), float64, v.begin(), v.end(), 0.1)
    assert v[1] == float32(1.1)
    assert std.accumulate(("*", float32), int32, v.begin(), v.end(), 0) == 3
    w = std.vector(int32, Vector([3, 1, 2]))
    std.sort(w.begin(), w.end(), std.greater(int32))
    assert w == [3, 2, 1]
    assert std.max_element(w.begin(), w.end()) - w.begin() == 0
    assert std.remove(w.begin(), w.end(), 2) - w.begin() == 2
    assert std.accumulate(("*", int32), int64, "f", w.begin(), w.end(), 2, std.multiplies(int64)) == 6


def test_strings_and_streams(monkeypatch):
    c = names()
    std = c["std"]
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    c["printf"]("%d %5.2f|%-4s|%u %llu %c %x %zu%%\n", -1, 3.14159, "ab", -1, -1, 97, 255, 7)
    std.cout << "n=" << 3 << " " << 0.1 << True << std.endl << std.fixed << std.setprecision(2) << 1.0
    assert out.getvalue() == "-1  3.14|ab  |4294967295 18446744073709551615 a ff 7%\nn=3 0.11\n1.00"
    stream = std.ostringstream()
    stream << Vector([1, 2]) << standard.default(float32) << c["cupyops"].character(120)
    assert stream.str() == "[1, 2]0x"
    assert std.string_.find("hello", "z") == 2**64 - 1
    assert std.string_.subscript("é", 0) == -23
    assert (std.to_string(3), std.to_string(0.5), std.stoi(" 42x")) == ("3", "0.500000", 42)


def test_exceptions_are_pythons():
    std = names()["std"]
    for name, kind in (("invalid_argument", ValueError), ("out_of_range", IndexError), ("runtime_error", RuntimeError)):
        error = getattr(std, name)("text")
        assert isinstance(error, kind)
        assert isinstance(error, std.exception)
        assert std.exception_.what(error) == "text"
    assert not issubclass(std.invalid_argument, std.runtime_error)
    assert issubclass(std.invalid_argument, std.logic_error)


def test_every_word_of_std_is_reachable():
    roots = names()
    for name in [n for n in words() if n.startswith("std::")]:
        place = roots
        for part in name.split("::"):
            place = place[part] if isinstance(place, dict) else getattr(place, part)


def test_generated_code_finds_every_word() -> None:
    scope = generated.names(None)
    for name, word in words().items():
        first, *rest = map(python_name, name.split("::"))
        found = functools.reduce(getattr, rest, scope[first])
        assert found is word.object or isinstance(found, Namespace) or name in scope, name
    x = torch.zeros(2)
    with cupyops.simulate():
        assert generated.at.cuda(x).device == x.device  # a method of tensors, and the namespace at::cuda
    assert generated.at.cuda.warp_size() == 32
