"""Reads the DWARF line table of a compiled kernel: the source line of each address.

The reader needs no external tool. It covers 64-bit little-endian ELF files that g++ or clang write with ``-gdwarf-4``.
"""

import struct
from bisect import bisect_right
from pathlib import Path

__all__ = ["LineTable", "functions", "line_program", "line_table", "objects", "section", "symbol_names"]


# An address, the file and line that begin there, the column, and whether a statement begins there.
Row = tuple[int, tuple[str, int] | None, int, bool]


class LineTable:
    """A sorted list of addresses, and the (file, line) that begins at each; None for an address without a line.

    Attributes:
        statements: the address, file, line and column of each beginning of a statement, in the order of the addresses.
        instructions: the lines of the other instructions, in the same form.
    """

    def __init__(self, rows: list[Row]) -> None:
        rows.sort(key=lambda row: (row[0], row[1] is not None))
        self.addresses = [row[0] for row in rows]
        self.places = [row[1] for row in rows]
        found = [(row[0], row[1][0], row[1][1], row[2], row[3]) for row in rows if row[1]]
        self.statements = [row[:4] for row in found if row[4]]
        self.instructions = [row[:4] for row in found if not row[4]]

    def at(self, address: int) -> tuple[str, int] | None:
        """Returns the file and line of the instruction at an address, or None."""
        position = bisect_right(self.addresses, address) - 1
        return self.places[position] if position >= 0 else None


def line_program(library: Path) -> bytes:
    """Returns the program from which :func:`line_table` makes the line table of a library; no bytes if the library has
    no readable one."""
    try:
        return section(library.read_bytes(), b".debug_line")[1]
    except (OSError, struct.error, IndexError, ValueError):
        return b""


def line_table(program: bytes) -> LineTable:
    """Returns the line table that a program makes; the table is empty if the program cannot be read."""
    rows: list[Row] = []
    try:
        at = 0
        while at + 4 < len(program):
            length = struct.unpack_from("<I", program, at)[0]
            rows += _unit(program[at + 4 : at + 4 + length])
            at += 4 + length
    except (struct.error, IndexError, ValueError):
        return LineTable([])
    return LineTable(rows)


def section(elf: bytes, wanted: bytes) -> tuple[int, bytes]:
    """Returns the address and the bytes of a section of an ELF file; (0, no bytes) if the file lacks the section.

    Raises:
        ValueError: the file is not a 64-bit little-endian ELF file.
    """
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    table = struct.unpack_from("<Q", elf, 40)[0]
    size, count, names_at = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = headers[names_at][4]
    for name, _, _, address, offset, length in headers:
        start = names + name
        if elf[start : elf.index(b"\0", start)] == wanted:
            return address, elf[offset : offset + length]
    return 0, b""


def functions(elf: bytes) -> list[int]:
    """Returns the addresses of the functions of an ELF file, from its symbol table."""
    _, symbols = section(elf, b".symtab")
    return [value for _, info, _, _, value, _ in struct.iter_unpack("<IBBHQQ", symbols) if info & 15 == 2 and value]


def objects(elf: bytes) -> list[tuple[str, int, int, bool]]:
    """Returns the variables of an ELF library: name, address, bytes, and whether the loader leaves the variable writable."""
    table = struct.unpack_from("<Q", elf, 40)[0]
    size, count, names_at = struct.unpack_from("<HHH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    titles = sections[names_at][4]
    writable = [s[2] & 1 == 1 and not elf.startswith(b".data.rel.ro", titles + s[0]) for s in sections]
    names, symbols = section(elf, b".strtab")[1], section(elf, b".symtab")[1]
    return [
        (names[name : names.index(b"\0", name)].decode(), value, length, writable[place])
        for name, info, _, place, value, length in struct.iter_unpack("<IBBHQQ", symbols)
        if info & 15 == 1 and length and 0 < place < count
    ]


def symbol_names(elf: bytes, *, dynamic: bool) -> tuple[list[str], list[str]]:
    """Returns the names that an ELF file defines, and those that it takes from other files.

    Args:
        elf: the file.
        dynamic: reads the table of the loader, which a library has. Else reads that of the linker, which an object has.
    """
    texts, table = (b".dynstr", b".dynsym") if dynamic else (b".strtab", b".symtab")
    text = section(elf, texts)[1]
    defined: list[str] = []
    taken: list[str] = []
    for name, info, _, place, _, _ in struct.iter_unpack("<IBBHQQ", section(elf, table)[1]):
        if name and info >> 4:  # a name that other files see
            (defined if place else taken).append(text[name : text.index(b"\0", name)].decode())
    return defined, taken


def _leb(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _signed_leb(data: bytes, at: int) -> tuple[int, int]:
    start = at
    value, at = _leb(data, at)
    bits = 7 * (at - start)
    return (value - (1 << bits) if value >> (bits - 1) & 1 else value), at


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(b"\0", at)
    return data[at:end].decode(errors="replace"), end + 1


def _unit(data: bytes) -> list[Row]:
    """Returns the rows of one compilation unit by running its line number program (DWARF 4, section 6.2)."""
    version, header_length = struct.unpack_from("<HI", data, 0)
    if version not in (2, 3, 4):
        return []
    at = 6
    minimum = data[at]
    at += 1 + (version >= 4)  # skips maximum_operations_per_instruction, which only VLIW processors use
    default, line_base, line_range, opcode_base = struct.unpack_from("<BbBB", data, at)
    lengths = (0, *data[at + 4 : at + 3 + opcode_base])
    at += 3 + opcode_base
    folders, files = [""], [""]
    while data[at]:
        folder, at = _text(data, at)
        folders.append(folder)
    at += 1
    while data[at]:
        name, at = _text(data, at)
        index, at = _leb(data, at)
        _, at = _leb(data, at)
        _, at = _leb(data, at)
        files.append(f"{folders[index]}/{name}" if index and not name.startswith("/") else name)
    at = 6 + header_length
    rows: list[Row] = []
    address, file, line, column, statement = 0, 1, 1, 0, bool(default)

    while at < len(data):
        opcode = data[at]
        at += 1
        if opcode >= opcode_base:
            step = opcode - opcode_base
            address += step // line_range * minimum
            line += line_base + step % line_range
            rows.append((address, (files[file], line), column, statement))
        elif opcode == 0:  # an extended opcode
            length, at = _leb(data, at)
            extended = data[at]
            if extended == 1:  # DW_LNE_end_sequence
                rows.append((address, None, 0, False))
                address, file, line, column, statement = 0, 1, 1, 0, bool(default)
            elif extended == 2:
                address = struct.unpack_from("<Q", data, at + 1)[0]
            at += length
        elif opcode == 1:
            rows.append((address, (files[file], line), column, statement))
        elif opcode == 2:
            step, at = _leb(data, at)
            address += step * minimum
        elif opcode == 3:
            step, at = _signed_leb(data, at)
            line += step
        elif opcode == 4:
            file, at = _leb(data, at)
        elif opcode == 5:
            column, at = _leb(data, at)
        elif opcode == 6:
            statement = not statement
        elif opcode == 8:
            address += (255 - opcode_base) // line_range * minimum
        elif opcode == 9:
            address += struct.unpack_from("<H", data, at)[0]
            at += 2
        else:
            for _ in range(lengths[opcode]):
                _, at = _leb(data, at)
    return rows
