"""Laying out a launch's arguments as C does."""

import ctypes
import random
import struct

import pytest
import torch

from cupyops.dtypes import bfloat16_bits
from cupyops.launch.signature import Parameter, Signature

C_TYPES = {
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "int8": ctypes.c_int8,
    "int16": ctypes.c_int16,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint8": ctypes.c_uint8,
    "uint16": ctypes.c_uint16,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
    "bool": ctypes.c_bool,
}


def test_packing_is_what_c_makes_of_a_struct() -> None:
    generator = random.Random(0)
    for _ in range(200):
        chosen, fields = [], []
        for i in range(generator.randint(1, 12)):
            kind = generator.choice(["pointer", "tuple", *C_TYPES, *C_TYPES])
            if kind == "pointer":
                chosen.append(Parameter(f"p{i}", "float16", pointer=True))
                fields.append((f"p{i}", ctypes.c_void_p))
            elif kind == "tuple":
                length = generator.randint(1, 4)
                chosen.append(Parameter(f"p{i}", "int64", length=generator.choice([str(length), f"N{length}"])))
                fields.append((f"p{i}", ctypes.c_int64 * length))
            else:
                chosen.append(Parameter(f"p{i}", kind))
                fields.append((f"p{i}", C_TYPES[kind]))
        layout = type("Layout", (ctypes.Structure,), {"_fields_": fields})
        packing, places = Signature("k", tuple(chosen)).packing({}, {f"N{n}": n for n in range(5)})
        assert places == [(getattr(layout, name).offset, getattr(layout, name).size) for name, _ in fields]
        assert packing.size == sum(places[-1]) <= ctypes.sizeof(layout)


def test_packed_values_are_read_back_by_c() -> None:
    class Layout(ctypes.Structure):
        _fields_ = (
            ("flag", ctypes.c_bool),
            ("x", ctypes.c_uint64),
            ("small", ctypes.c_int8),
            ("sizes", ctypes.c_int64 * 3),
            ("factor", ctypes.c_float),
            ("wide", ctypes.c_double),
            ("n", ctypes.c_int32),
        )

    text = """extern "C" __global__ void k(
        bool flag, half* x, char small, Int64s<3> sizes, acc_t factor, double wide, int n, scalar_t* y) {}"""
    signature = Signature("k", Signature.parse(text, "k").parameters[:-1])
    packing, _ = signature.packing({"scalar_t": "bfloat16"}, {})
    memory = bytearray(ctypes.sizeof(Layout))
    packing.pack_into(memory, 0, True, 2**63 + 5, -7, 1, -(2**62), 3, 0.1, 0.1, -9)
    got = Layout.from_buffer(memory)
    assert (got.flag, got.x, got.small, list(got.sizes), got.n) == (True, 2**63 + 5, -7, [1, -(2**62), 3], -9)
    assert (got.factor, got.wide) == (ctypes.c_float(0.1).value, 0.1)


@pytest.mark.parametrize(("dtype", "code"), [("float16", "e"), ("bfloat16", None)])
def test_sixteen_bit_floats_are_packed_with_two_bytes(dtype: str, code: str | None) -> None:
    parameters = (Parameter("n", "int32"), Parameter("x", "scalar_t", pointer=True), Parameter("a", "scalar_t"))
    packing, fields = Signature("k", (*parameters, Parameter("m", "int32"))).packing({"scalar_t": dtype}, {})
    assert fields == [(0, 4), (8, 8), (16, 2), (20, 4)]
    for number in (0.0, -1.5, 3.14159, 65504.0, 1e-3, float("inf")):
        bits = torch.tensor(number).to(getattr(torch, dtype)).view(torch.int16).item()
        assert packing.pack(7, 4096, number, 9)[16:18] == struct.pack("<h", bits)


def test_a_bfloat16_is_the_nearest_one() -> None:
    numbers = torch.cat([torch.randn(1000), torch.tensor([0.0, -0.0, 1e-40, 3.3e38]), torch.arange(256) * 2.0**-8 + 1])
    for number, rounded in zip(numbers.tolist(), numbers.bfloat16().view(torch.int16).tolist(), strict=True):
        assert bfloat16_bits(number) == rounded & 0xFFFF, number
    assert bfloat16_bits(float("nan")) & 0x7FFF > 0x7F80
    for large in (3.4e38, 1e39):
        with pytest.raises(OverflowError):
            bfloat16_bits(large)
