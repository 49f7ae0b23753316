"""The structures of ``runtime/abi.h`` as :mod:`ctypes` classes; the fields match the C declarations one by one."""

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_int, c_longlong, c_size_t, c_uint, c_ulonglong, c_void_p

__all__ = ["Checks", "Fault", "Kind", "Launch", "Module", "Origin", "Range", "Variable"]

_THREE = c_uint * 3


class Checks:
    """What a launch checks: the enumerators of ``CupyopsChecks``."""

    NONE, BOUNDS, ALL_BUT_GLOBAL_RACES, ALL = range(4)


class Kind:
    """The kinds of faults: the enumerators of ``CupyopsFaultKind``."""

    GLOBAL_BOUNDS, SHARED_BOUNDS, CONST_WRITE, SHARED_RACE, GLOBAL_RACE, UNINITIALISED, NOT_SHOWN = range(1, 8)
    UNDEFINED, BARRIER, WARP, ASSERT, SIGNAL, REMOTE_ENDED, LIMIT = range(8, 15)


class Shared(ctypes.Structure):
    """A variable in shared memory: ``CupyopsShared``."""

    _fields_ = (("name", c_char_p), ("begin", c_uint), ("bytes", c_uint), ("element_bytes", c_uint))


class Module(ctypes.Structure):
    """A compiled kernel: ``CupyopsModule``."""

    _fields_ = (
        ("entry", c_void_p),
        ("thread_index", c_void_p),
        ("block_index", c_void_p),
        ("block_dim", c_void_p),
        ("grid_dim", c_void_p),
        ("parameter_bytes", POINTER(c_uint)),
        ("parameters", c_uint),
        ("cluster", _THREE),
        ("max_threads", c_uint),
        ("shared_end", c_uint),
        ("shared_count", c_uint),
        ("shared", Shared * 256),
        ("variables", c_void_p),
        ("variable_count", c_uint),
        ("code", c_size_t),
        ("code_end", c_size_t),
        ("shared_bytes", c_size_t),
        ("shared_largest", c_size_t),
    )


class Origin(ctypes.Structure):
    """The library and the symbol of an address: ``Dl_info``."""

    _fields_ = (("path", c_char_p), ("base", c_size_t), ("symbol", c_char_p), ("address", c_size_t))


class Variable(ctypes.Structure):
    """A device variable of a text: ``CupyopsVariable``."""

    _fields_ = (("name", c_char_p), ("address", c_void_p), ("bytes", c_size_t))


class Range(ctypes.Structure):
    """The byte range of an array, and whether a kernel may write it: ``CupyopsRange``."""

    _fields_ = (("begin", c_size_t), ("end", c_size_t), ("writable", c_int))


class Launch(ctypes.Structure):
    """The arguments and the geometry of a launch: ``CupyopsLaunch``."""

    _fields_ = (
        ("module", POINTER(Module)),
        ("arguments", c_void_p),
        ("grid", _THREE),
        ("block", _THREE),
        ("dynamic_shared", c_uint),
        ("checked", c_int),
        ("ranges", POINTER(Range)),
        ("range_count", c_uint),
        ("first_block", c_ulonglong),
        ("end_block", c_ulonglong),
        ("alone", c_int),
        ("cooperative", c_int),
    )


class Fault(ctypes.Structure):
    """The record of a fault: ``CupyopsFault``."""

    _fields_ = (
        ("kind", c_int),
        ("block", _THREE),
        ("thread", _THREE),
        ("address", c_size_t),
        ("bytes", c_size_t),
        ("write", c_int),
        ("shared_variable", c_int),
        ("shared_offset", c_longlong),
        ("other_block", _THREE),
        ("other_thread", _THREE),
        ("other_write", c_int),
        ("other_pc", c_size_t),
        ("other_caller", c_size_t),
        ("same_value", c_int),
        ("file", c_char_p),
        ("line", c_uint),
        ("frame_count", c_uint),
        ("frames", c_size_t * 24),
        ("text", c_char * 8192),
    )
