"""Calls of host functions from Python. What is expected was taken from pybind11 3.0 and PyTorch 2.13, compiled."""

import decimal
from typing import Any

import numpy as np
import pytest
import torch

from cupyops import simulate, simulator
from cupyops.importer.binding import Arg, KwOnly, Module, bound
from cupyops.importer.casters import host
from cupyops.importer.errors import NotTranslated
from cupyops.importer.numbers import NUMBERS
from cupyops.importer.torch_library import Library, library_of
from cupyops.importer.vectors import Vector

int8, int32, uint32, int64 = (NUMBERS[n] for n in ("int8", "int32", "uint32", "int64"))
float32, float64, bool_ = (NUMBERS[n] for n in ("float32", "float64", "bool_"))
DOUBLES, LONGS = ("std::vector", float64), ("c10::ArrayRef", int64)
ONE = torch.ones(1)


class Index:
    def __index__(self) -> int:
        return 5


class Whole:
    def __int__(self) -> int:
        return 6


class Real:
    def __float__(self) -> float:
        return 1.5


def identity(kind: Any, *args: Any) -> Any:
    return bound(host("f", kind, ("x", kind))(lambda x: x), args)


# Type, argument, and the result; TypeError for one that pybind11 refuses.
CASES = [
    *((int8, a, r) for a, r in ((127, 127), (-128, -128), (128, TypeError), (True, 1), (1.0, TypeError), (Index(), 5))),
    *((int8, a, r) for a, r in ((Whole(), 6), ("33", TypeError), (None, TypeError), (decimal.Decimal(3), 3))),
    *((int8, torch.tensor(a), r) for a, r in ((3, 3), (3.7, 3), ([3.7], 3), ([1, 2], TypeError))),
    *((int8, a, r) for a, r in ((np.int64(4), 4), (np.float64(4), TypeError), (np.float32(4), 4), (np.array(4), 4))),
    *((uint32, a, r) for a, r in ((-1, TypeError), (2**32, TypeError), (2**32 - 1, 2**32 - 1))),
    *((int64, a, r) for a, r in ((2**63, TypeError), (-(2**63), -(2**63)))),
    *((float64, a, r) for a, r in ((1, 1.0), (True, 1.0), ("1", TypeError), (torch.tensor(2.5), 2.5), (Real(), 1.5), (Index(), 5.0))),
    *((float64, a, r) for a, r in ((np.float32(1.5), 1.5), (None, TypeError), (2**2000, TypeError), (Whole(), TypeError))),
    *((float32, a, r) for a, r in ((0.1, 0.10000000149011612), (1e300, float("inf")))),
    *((bool_, a, r) for a, r in ((1, True), (0, False), (None, False), (np.bool_(True), True), ("x", TypeError), (1.5, True))),
    *((bool_, a, r) for a, r in ((torch.tensor(True), True), ([], TypeError))),
    *(("std::string", a, r) for a, r in (("x", "x"), (b"x", "x"), (1, TypeError), (None, TypeError))),
    *((("*", int8), a, r) for a, r in (("x", "x"), (None, None), (1, TypeError))),
    *((DOUBLES, a, [1.0]) for a in ([1], (1,), np.ones(1), {1.0}, {1: 2}.keys(), {2: 1}.values(), map(float, [1]), (x for x in [1]))),
    *((DOUBLES, a, TypeError) for a in ("ab", torch.ones(2), {1: 2}, 1, ["a"])),
    *((LONGS, a, r) for a, r in (([1, 2], (1, 2)), (torch.Size([2]), (2,)), (range(2), TypeError), (3, TypeError), ([1.5], TypeError))),
    *((LONGS, a, r) for a, r in (([torch.tensor(3)], (3,)), ([True], (1,)), ([None], TypeError))),
    *((("std::array", int32, 2), a, r) for a, r in (([1, 2], [1, 2]), (range(2), [0, 1]), ((1, 2, 3), TypeError), (1, TypeError))),
    *((("std::vector", "at::Tensor"), a, r) for a, r in (([ONE], [ONE]), ([None], TypeError), (ONE, TypeError))),
    *((("std::tuple", "at::Tensor", int32), a, r) for a, r in (((ONE, 2), (ONE, 2)), ([ONE, 2], (ONE, 2)), ((ONE,), TypeError))),
    *((("std::optional", "at::Tensor"), a, r) for a, r in ((None, None), (ONE, ONE), (1, TypeError))),
    *((("std::optional", int32), a, r) for a, r in ((None, None), (3, 3), (2.5, TypeError))),
    *((("std::map", "std::string", int32), a, r) for a, r in (({"a": 1}, {"a": 1}), ({"a": "b"}, TypeError), ([], TypeError))),
    *(("at::Tensor", a, r) for a, r in ((ONE, ONE), (None, TypeError), (1.0, TypeError))),
    *(("c10::ScalarType", a, r) for a, r in ((torch.half, torch.half), ("float32", TypeError), (6, TypeError))),
    *(("at::Device", a, r) for a, r in ((torch.device("cpu"), torch.device("cpu")), ("cpu", TypeError))),
    ("mine::Handle", 1, TypeError),
    (("*", float32), None, TypeError),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "argument", "result"), CASES)
def test_arguments_convert_as_with_pybind11(kind: Any, argument: Any, result: Any) -> None:
    if result is TypeError:
        with pytest.raises(TypeError, match="incompatible function arguments"):
            identity(kind)(argument)
        return
    got = identity(kind)(argument)
    assert got == result
    assert type(got) is type(result)


def test_a_vector_is_one_of_cpp_inside_and_a_list_outside() -> None:
    def f(x: Any) -> Any:
        assert isinstance(x, Vector)
        return Vector([Vector([v]) for v in x])

    assert bound(host("f", ("std::vector", DOUBLES), ("x", DOUBLES))(f))([1, 2]) == [[1.0], [2.0]]


def test_results_convert_by_their_types() -> None:
    assert bound(host("f", None)(lambda: 3))() is None
    assert bound(host("f", "at::Tensor")(lambda: None))() is None
    assert bound(host("f", ("std::tuple", DOUBLES, int32))(lambda: (Vector([1.0]), 2)))() == ([1.0], 2)


def test_a_reference_refers_to_a_copy() -> None:
    def f(x: Any) -> int:
        x.value += 1
        return x.value

    assert bound(host("f", int32, ("x", ("&", int32)))(f))(2) == 3


@host("add", "at::Tensor", ("x", "at::Tensor"), ("k", int32, 7))
def add(x: Any, k: int = 7) -> Any:
    return x + k


def test_keywords_and_defaults_are_those_of_arg() -> None:
    named = bound(add, ("adds", Arg("x"), Arg("k").assign(3)))
    assert named(ONE) == named(k=3, x=ONE) == 4
    assert named.__doc__ == (
        "add(x: torch.Tensor, k: typing.SupportsInt | typing.SupportsIndex = 3) -> torch.Tensor\n\nadds\n"
    )
    for given, keywords in (((ONE,), {"z": 4}), ((ONE,), {"x": ONE}), ((ONE, 1, 2), {}), ((), {})):
        with pytest.raises(TypeError, match=r"add\(\): incompatible"):
            named(*given, **keywords)
    positional = bound(add)
    assert positional(ONE, 1) == 2
    for keywords in ({"arg1": 2}, {"k": 2}, {}):
        with pytest.raises(TypeError, match=r"add\(\): incompatible"):
            positional(ONE, **keywords)
    only = bound(add, (Arg("x"), KwOnly(), Arg("k").assign(3)))
    assert only(ONE, k=2) == 3
    assert (only.__doc__ or "").startswith("add(x: torch.Tensor, *, k: ")
    with pytest.raises(TypeError):
        only(ONE, 2)


def test_the_message_is_that_of_pybind11() -> None:
    with pytest.raises(TypeError) as caught:
        bound(add)(ONE, 2.5, y="a")
    assert str(caught.value) == (
        "add(): incompatible function arguments. The following argument types are supported:\n"
        "    1. (arg0: torch.Tensor, arg1: typing.SupportsInt | typing.SupportsIndex) -> torch.Tensor\n"
        "\nInvoked with: tensor([1.]), 2.5; kwargs: y='a'"
    )


def test_no_conversion_where_arg_says_so() -> None:
    exact = identity(float64, Arg("v").noconvert())
    assert exact(1.0) == 1.0
    for value in (1, np.float32(1), Index()):
        with pytest.raises(TypeError):
            exact(value)


def overload(kind: Any, name: str) -> Any:
    return host("o", "std::string", ("x", kind))(lambda x: name)


def test_overloads_are_tried_in_order_first_without_conversions() -> None:
    m = Module("m")
    for kind, name in ((int32, "int"), (float64, "double"), ("at::Tensor", "tensor")):
        m.def_("o", overload(kind, name))
    o = m.members["o"]
    cases = {
        1: "int",
        1.5: "double",
        np.float64(2.5): "double",
        np.float32(3.5): "int",
        Index(): "int",
        torch.tensor(1.5): "tensor",
    }
    assert [o(value) for value in cases] == list(cases.values())
    assert o(True) == "int"
    with pytest.raises(TypeError, match=r"3\. \(arg0: torch\.Tensor\) -> str"):
        o("a")
    assert o.__doc__.startswith("o(*args, **kwargs)\nOverloaded function.\n\n1. o(arg0: typing.SupportsInt")


def test_a_module_has_values_a_docstring_and_modules() -> None:
    m = Module("m")
    m.doc().assign("the module")
    m.attr("VERSION").value = 3
    m.attr("SIZES").assign(Vector([1, 2]))
    m.def_submodule("inner").def_("add", add)
    assert (m.members["__doc__"], m.members["VERSION"], m.members["SIZES"]) == ("the module", 3, [1, 2])
    assert m.members["inner"].members["add"](ONE, 1) == 2


def test_errors_of_the_function_pass() -> None:
    @host("f", None)
    def f() -> None:
        raise NotTranslated("a.cu:3: goto")

    with pytest.raises(NotTranslated, match=r"a\.cu:3"):
        bound(f)()
    with pytest.raises(NotTranslated, match="types are not known"):
        bound(lambda: None)


def test_a_library_registers_operators() -> None:
    library = Library("cupyops_test_binding")
    library.def_(
        "shift(Tensor x, int k=2) -> Tensor",
        host("shift", "at::Tensor", ("x", "at::Tensor"), ("k", int64))(lambda x, k: x + k),
    )
    library.def_("inferred", host("g", ("std::vector", "at::Tensor"), ("x", ("std::optional", "at::Tensor")), ("s", "std::string"))(
        lambda x, s: Vector([x] if s == "one" else [])
    ))  # fmt: skip
    ops = torch.ops.cupyops_test_binding
    assert ops.shift(ONE) == 3
    assert ops.shift(ONE, k=3) == 4
    assert ops.inferred(ONE, "one") == [ONE]
    assert ops.inferred(None, "none") == []
    library.def_(
        "shift(Tensor x, int k = 2) -> Tensor",
        host("shift", "at::Tensor", ("x", "at::Tensor"), ("k", int64))(lambda x, k: x - k),
    )
    assert ops.shift(ONE) == -1, "a program that is loaded again replaces its functions"
    with pytest.raises(RuntimeError, match="another schema"):
        library.def_("shift(Tensor x) -> Tensor")
    with pytest.raises(RuntimeError, match="not defined"):
        library.impl("absent", add)


@pytest.mark.simulator
def test_a_function_for_cuda_serves_cpu_tensors_in_a_simulation() -> None:
    Library("cupyops_test_binding").def_("cuda_only(Tensor x, int k) -> Tensor")
    key = library_of("cupyops_library_cupyops_test_binding__CUDA__3")
    assert (key.namespace, key.key) == ("cupyops_test_binding", "CUDA")
    assert library_of("cupyops_library_a_b____0").namespace == "a_b"
    key.impl("cuda_only", add)
    op = torch.ops.cupyops_test_binding.cuda_only
    with simulate():
        assert op(ONE, 1) == 2
    if not simulator.enabled():
        with pytest.raises(
            NotImplementedError, match=r"Could not run 'cupyops_test_binding::cuda_only'.*'CPU' backend"
        ):
            op(ONE, 1)
    Library("cupyops_test_binding").impl("cuda_only", torch._C.DispatchKey.CPU, host("f", "at::Tensor", ("x", "at::Tensor"), ("k", int64))(
        lambda x, k: x * 10
    ))  # fmt: skip
    assert op(ONE, 1) == 10
