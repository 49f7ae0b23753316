"""Pointers into memory of tensors, and copies between the host and device memory."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import cupyops
from cupyops.importer import cuda, memory  # noqa: F401  the words of CUDA name its vectors
from cupyops.importer.errors import NotTranslated
from cupyops.importer.generated import dim3, pointer_cast
from cupyops.importer.launches import Kernels
from cupyops.importer.memory import copy, fill, host_bytes, pointer_to
from cupyops.importer.numbers import NUMBERS
from cupyops.importer.references import Pointer, Variable

float32, float16, bfloat16, int32, uint8 = (NUMBERS[n] for n in ("float32", "float16", "bfloat16", "int32", "uint8"))


class Particle:
    """A struct as the translator makes it."""

    size = 12
    fields = (("x", ("[]", float32, 2), 0), ("n", NUMBERS["int16"], 8))

    def __init__(self, x=(0.0, 0.0), n=0):
        self.x, self.n = list(x), n

    def assign(self, other):
        self.x, self.n = other.x, other.n


def test_a_pointer_moves_by_the_size_of_its_type_and_casts_keep_its_address():
    x = torch.arange(8, dtype=torch.float32)
    p = pointer_to(x[1:], float32)
    assert p[0] == 1
    assert (p + 2)[1] == 4
    assert (p + 3) - p == 3
    assert (p + 3 - 2) == p + 1
    assert p == pointer_to(x, float32) + 1
    assert p != pointer_to(x, float32)
    assert p > pointer_to(x, float32)
    quads = p.cast("float4")
    assert quads.offset == p.offset
    assert (quads + 1).offset == p.offset + 16
    assert (p.cast(None) + 3).offset == p.offset + 3
    assert p.cast(None).cast(float32)[0] == 1
    assert p.cast(int32)[0] == 0x3F800000
    p[2] = 7.0
    assert x[3] == 7
    with pytest.raises(IndexError, match="bytes at byte 32 of memory of 32"):
        p[7]
    with pytest.raises(IndexError):
        (p - 2)[0]


def test_an_undefined_tensor_and_one_without_elements_have_null_pointers():
    assert pointer_to(None, float32) is None
    assert pointer_to(torch.empty(0), float32) is None


@pytest.mark.parametrize("kind", [float16, bfloat16])
def test_elements_of_16_bit_floats(kind):
    x = torch.tensor([1.5, -2.0], dtype=kind.dtype)
    p = pointer_to(x, kind)
    p[0] = 0.1
    assert p[1] == -2
    assert x[0] == torch.tensor(0.1, dtype=kind.dtype)


def test_a_pointer_keeps_its_tensor():
    p = pointer_to(torch.full((1 << 16,), 3.0), float32)
    torch.zeros(1 << 16)
    assert p[65535] == 3


def test_host_code_cannot_read_device_memory():
    with cupyops.simulate():
        p = memory.allocate(16, float32)
    with pytest.raises(RuntimeError, match="cudaMemcpy"):
        p[0]
    assert memory.allocate(0) is None


def test_copies_between_the_host_and_device_memory():
    x = torch.zeros(4)
    p, host = pointer_to(x, float32), [1.0, 2.0, 3.0]
    memory.copy(p.cast(None) + 4, Pointer(host, 1, float32).cast(None), 8)
    assert x.tolist() == [0, 2, 3, 0]
    memory.copy(Pointer(host, 0, float32).cast(None), p, 12)
    assert host == [0, 2, 3]
    place = Variable(0.0)
    memory.copy(Pointer(place, 0, float32), p + 2, 4)
    assert place.value == 3
    memory.copy(p, p + 1, 8)
    assert x.tolist() == [2, 3, 3, 0]
    memory.fill(p.cast(None), 255, 4)
    assert x.view(torch.int32)[0] == -1
    with pytest.raises(IndexError):
        memory.copy(p, Pointer(host, 2, float32), 8)
    with pytest.raises(IndexError):
        memory.copy(p, p, 20)
    with pytest.raises(NotTranslated):
        memory.copy(p, Pointer(host, 0, float32), 3)


def test_host_memory_of_unknown_type_has_the_type_of_the_other_side():
    x, found = torch.tensor([1, 2], dtype=torch.int32), [0, 0]
    memory.copy(Pointer(found), pointer_to(x, int32).cast(None), 8)
    assert found == [1, 2]


def test_structs_and_arrays_as_bytes():
    memory_of_two = torch.zeros(24, dtype=torch.uint8)
    p, one = pointer_to(memory_of_two, uint8), Particle((1.0, 2.0), -3)
    memory.copy(p, Pointer([one, Particle()], 0, Particle), 24)
    assert memory_of_two[:8].view(torch.float32).tolist() == [1, 2]
    assert memory_of_two[8:10].view(torch.int16)[0] == -3
    there = Particle()
    memory.copy(Pointer(Variable(there), 0, Particle), p, 12)
    assert list(there.x) == [1, 2]
    assert there.n == -3
    assert memory.pack(("[]", float32, 2), [[1.0, 2.0]]) == memory.pack(float32, [1.0, 2.0])
    assert memory.sizeof("float3") == 12
    assert memory.sizeof(("*", float32)) == 8
    assert memory.sizeof("unsigned int") == 4


def test_host_memory_of_another_type_is_not_read():
    p = Pointer([1.0, 2.0], 0, float32).cast(int32)
    with pytest.raises(NotTranslated):
        p[0]
    assert p.cast(float32)[1] == 2


def test_fake_tensors_have_pointers_whose_copies_and_launches_do_nothing():
    kernels = Kernels("__global__ void k(const float* x, float* y) { y[0] = x[0]; }", "k.cu")
    with FakeTensorMode():
        x, y = (pointer_to(torch.empty(4), float32) for _ in range(2))
        assert x is not None
        kernels["k"][dim3(1), dim3(32), 0, None](x + 2, pointer_cast(y, float32))
        copy(x, y, 8)
        copy(x, Pointer([1.0], 0, float32), 4)
        fill(x, 0, 16)
        for read in (lambda: host_bytes(x, 4), lambda: x[0]):
            with pytest.raises(DataDependentOutputException):
                read()


def test_a_struct_has_the_alignment_of_its_widest_member_wherever_that_is() -> None:
    class Mixed:
        fields = (("wide", "double"), ("narrow", "char"))

    class Holding:
        fields = (("first", "char"), ("mixed", Mixed), ("last", "short"))

    assert memory.layout(Mixed)[1:] == (16, 8)
    assert memory.layout(Holding) == ((("first", "char", 0), ("mixed", Mixed, 8), ("last", "short", 24)), 32, 8)
