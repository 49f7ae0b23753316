"""Reads the machine code of a compiled kernel: calls of a function, and floating-point operations.

The reader knows the scalar instructions that g++ and clang emit for x86-64 and AArch64 without vectorization.
"""

import platform
import re
import struct

from .lines import section

__all__ = ["calls_of", "library_functions", "operations"]

ARM = platform.machine() in ("aarch64", "arm64")

# x86-64: addition, multiplication, subtraction, division and square root of a float (F3) or a double (F2).
_SCALAR = re.compile(rb"[\xf2\xf3][\x40-\x4f]?\x0f[\x51\x58\x59\x5c\x5e]", re.DOTALL)
# Functions that are one instruction of a GPU, by their operations. A compiler calls them if the CPU may lack them.
_FUSED = {"fma": 2, "fmaf": 2, "sqrt": 1, "sqrtf": 1}


def calls_of(text: bytes, text_at: int, one: int) -> tuple[list[int], int]:
    """Returns the addresses of all calls of a function, and the bytes of a call.

    Args:
        text: the machine code.
        text_at: the address of its first byte.
        one: the return address of one of the calls.
    """
    if ARM:
        words = [int.from_bytes(text[i : i + 4], "little") for i in range(0, len(text) - 3, 4)]

        def target(i: int) -> int:
            offset = words[i] & 0x3FFFFFF
            return i * 4 + (offset - (1 << 26) if offset >> 25 else offset) * 4

        wanted = target((one - text_at) // 4 - 1)
        return [text_at + i * 4 for i, w in enumerate(words) if w >> 26 == 0x25 and target(i) == wanted], 4

    def to(i: int) -> int:
        return i + 5 + int.from_bytes(text[i + 1 : i + 5], "little", signed=True)

    wanted, found, i = to(one - text_at - 5), [], text.find(b"\xe8")
    while i >= 0:
        if to(i) == wanted:
            found.append(text_at + i)
        i = text.find(b"\xe8", i + 1)
    return found, 5


def library_functions(elf: bytes) -> dict[int, str]:
    """Returns the functions of other libraries that an ELF file calls: their names by the addresses of the calls.

    The result is empty for AArch64, whose compilers emit an instruction for each of the functions that count.
    """
    if ARM:
        return {}
    _, relocations = section(elf, b".rela.plt")
    _, symbols = section(elf, b".dynsym")
    _, names = section(elf, b".dynstr")
    slots = {}
    for slot, info, _ in struct.iter_unpack("<QQq", relocations):
        name = struct.unpack_from("<I", symbols, (info >> 32) * 24)[0]
        slots[slot] = names[name : names.index(b"\0", name)].decode(errors="replace")
    found = {}
    for table in (b".plt", b".plt.sec"):
        at, code = section(elf, table)
        for jump in re.finditer(rb"\xff\x25(....)", code, re.DOTALL):  # jmp *slot(%rip), in a stub of 16 bytes
            slot = at + jump.end() + struct.unpack("<i", jump[1])[0]
            if slot in slots:
                found[at + jump.start() & ~15] = slots[slot]
    return found


def operations(code: bytes, at: int, functions: dict[int, str]) -> list[tuple[int, int]]:
    """Returns the addresses of the floating-point instructions in a piece of code, each with its operations.

    An addition, multiplication, division or square root is one operation, and a fused multiply-add two. Calls of other
    functions, such as ``expf``, are left out.

    Args:
        code: the machine code.
        at: the address of its first byte.
        functions: the result of :func:`library_functions`.
    """
    if ARM:
        words = struct.iter_unpack("<I", code[: len(code) // 4 * 4])
        return [(at + 4 * i, count) for i, (word,) in enumerate(words) if (count := _of_arm(word))]
    found = [(at + one.start(), 1) for one in _SCALAR.finditer(code)]
    for call in re.finditer(rb"(?=\xe8(....))", code, re.DOTALL):
        name = functions.get(at + call.start() + 5 + struct.unpack("<i", call[1])[0], "")
        if name in _FUSED:
            found.append((at + call.start(), _FUSED[name]))
    return found


def _of_arm(word: int) -> int:
    if word & 0xFF200C00 == 0x1E200800:  # two sources; the opcodes 0 to 3 multiply, divide, add and subtract
        return int(word >> 12 & 15 in (0, 1, 2, 3, 8))
    if word & 0xFF3FFC00 == 0x1E21C000:  # square root
        return 1
    return 2 if word & 0xFF000000 == 0x1F000000 else 0  # a fused multiply-add
