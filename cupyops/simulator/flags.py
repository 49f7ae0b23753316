"""The flags with which the compiler of the host compiles kernels for the simulator."""

from .host import Compiler

__all__ = ["COMMON", "REFUSED", "flags_of", "libraries", "tells_volatile_apart"]

# As in CUDA, plain char is signed. Multiplication and addition round separately; only a call of fma fuses them. Frame
# pointers are kept: an error report walks the frames to find the source line.
COMMON = (
    *("-std=c++17", "-gdwarf-4", "-fPIC", "-fsigned-char", "-ffp-contract=off", "-fno-strict-aliasing"),
    # NVRTC has no such names either.
    "-fno-dollars-in-identifiers",
    # Symbols are hidden: two kernels may instantiate the same template, and the loader must not merge their variables.
    *("-fvisibility=hidden", "-fvisibility-inlines-hidden"),
    # A local array that is overrun, or a frame beyond the guard page of its stack, ends the launch and not the process.
    *("-fstack-protector-strong", "-fstack-clash-protection"),
    # NVRTC refuses exceptions and types at run time, too. An exception that nobody catches would end the process.
    *("-fno-exceptions", "-fno-rtti"),
    # NVRTC takes braces that narrow a number: `int x[3] = {1.5f}`.
    "-Wno-narrowing",
    *("-fno-math-errno", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-threadsafe-statics"),
)
# Extensions of C++ that NVRTC refuses. g++ has one option for all extensions, so its warnings are read.
REFUSED = (
    *(
        "ISO C++ forbids variable length array",
        "ISO C++ forbids zero-size array",
        "ISO C++ forbids flexible array member",
    ),
    *(
        "ISO C++ forbids computed gotos",
        "taking the address of a label is non-standard",
        "ISO C++ forbids compound-literals",
    ),
    *("C++ designated initializers only available", "ISO C++ does not allow C99 designated initializers"),
    "invalid application of 'sizeof' to a void type",
    "pointer of type 'void *' used in",
)
_WARNINGS = {
    "gcc": ("-Wpedantic",),
    "clang": (
        *("-Wno-everything", "-Wno-unknown-warning-option", "-Werror=vla-extension", "-Werror=zero-length-array"),
        "-Werror=gnu-pointer-arith",
        *("-Werror=c99-extensions", "-Werror=gnu-label-as-value", "-Werror=c++20-designator", "-Werror=c99-designator"),
    ),
}
# Checks that are always on: these errors end a launch on a GPU, or would end this process.
_ALWAYS = "-fsanitize=alignment,integer-divide-by-zero,return,unreachable"
_CHECKED = f"{_ALWAYS},signed-integer-overflow,shift,bounds"
# The handlers of these checks return if only bounds are checked.
_RECOVER = "-fsanitize-recover=signed-integer-overflow,shift"
# g++ would take a tenth of a compilation to record where variables are. Error reports need line numbers only.
_NO_LOCATIONS = "-fno-var-tracking"
# Passes that g++ runs after it has inserted the checks: without these passes, a kernel has the same checks. They take a
# twelfth of a compilation. A launch takes up to 8 % longer without them; most of it is spent in the runtime.
_FEWER_PASSES = (
    *("-fno-forward-propagate", "-fno-dse", "-fno-split-wide-types", "-fno-move-loop-invariants", "-fno-if-conversion"),
    *("-fno-if-conversion2", "-fno-branch-count-reg", "-fno-combine-stack-adjustments", "-fno-compare-elim"),
    *("-fno-cprop-registers", "-fno-shrink-wrap", "-fno-reorder-blocks"),
    *("-fira-region=one", "-fira-algorithm=priority"),  # the cheapest allocation of registers
)


def flags_of(tool: Compiler, *, checked: bool, watched: bool, optimize: bool, counted: bool) -> list[str]:
    """Returns the flags that compile a kernel. The arguments are those of :func:`.build.build`."""
    return [
        *COMMON,
        *_WARNINGS[tool.family],
        *(_counting_flags(tool) if counted else _mode_flags(tool, checked, watched, optimize)),
    ]


def _mode_flags(tool: Compiler, checked: bool, watched: bool, optimize: bool) -> list[str]:
    # -O2 takes a third longer to compile than -O1, and its code is as fast: the runtime's part of a launch is the larger
    # one. A debugger reads the variables of -g. The reports of a checked kernel need only lines, which -g1 has; a
    # debugger gets the variables of a checked kernel without optimization.
    level = ["-O1", "-g1" if checked else "-g"] if optimize else ["-O0"]
    # Without optimization, the clang of ziglang adds checks whose functions are nowhere.
    checks = ["-fno-sanitize=undefined"] if tool.family == "clang" else []
    flags = [*level, *checks, _CHECKED if checked else _ALWAYS, *([] if checked else ["-fwrapv"])]
    if tool.family == "clang":
        flags += ["-fno-sanitize-trap=all", "-fsanitize-recover=all", "-ferror-limit=8", "-fno-caret-diagnostics"]
    else:
        flags += ["-fno-gnu-unique", "-fmax-errors=8", "-fno-diagnostics-show-caret"]
        # The other handlers do not return. With this flag, the compiler has less code to optimize after a check.
        flags += ["-fno-sanitize-recover=all", *([_RECOVER] if checked else [])]
        flags += [_NO_LOCATIONS, *_FEWER_PASSES] if optimize else []
    flags += ["-DCUPYOPS_CHECKED"] if checked else []
    if checked or watched:
        flags += ["-fsanitize=thread"]
        options = ["tsan-distinguish-volatile=1", "tsan-instrument-func-entry-exit=0"]
        if tool.family == "clang":
            options.append("tsan-instrument-read-before-write=1")
            flags += [f for o in options for f in ("-mllvm", f"-{o}")]
        elif tells_volatile_apart(tool):
            flags += [f"--param={o}" for o in options]
    return flags


def libraries(tool: Compiler) -> list[str]:
    """Returns the linker arguments for the libraries of C and C++.

    The runtime depends on g++'s C++ library, and the loader finds the library's functions there. Reading that library
    would take half of the linker's time, so the linker gets only the other libraries. A clang may have its C++ library
    in an archive, which the linker has to read.

    A kernel calls its own functions: the loader would bind its `operator new` to that of a C++ library which the process has
    loaded for all its libraries.
    """
    return ["-Wl,-Bsymbolic", *(("-nodefaultlibs", "-lm", "-lgcc", "-lc") if tool.family == "gcc" else ("-lm",))]


def _counting_flags(tool: Compiler) -> list[str]:
    """Returns the flags of a counted kernel, whose memory accesses are those that a GPU's compiler leaves.

    Repeated and loop-invariant loads are removed, and a structure of up to 16 bytes is one access (no scalar
    replacement). The blocks of the code keep the order of the source, by which the counters align the lanes of a warp.
    """
    flags = ["-O1", "-fwrapv", "-finline-functions", "-DCUPYOPS_COUNTED", "-fsanitize=thread"]
    flags += ["-fsanitize-coverage=trace-pc"]
    if tool.family == "clang":
        flags += ["-mllvm", "-tsan-instrument-read-before-write=1", "-mllvm", "-tsan-instrument-func-entry-exit=0"]
        flags += ["-mllvm", "-tsan-distinguish-volatile=1", "-mllvm", "-disable-block-placement"]
        return [*flags, "-fno-vectorize", "-fno-slp-vectorize", "-ferror-limit=8", "-fno-caret-diagnostics"]
    flags += ["-fno-tree-sra", "-fno-ipa-sra", "-fno-reorder-blocks", "-fno-thread-jumps", "-fno-if-conversion"]
    flags += ["-fno-if-conversion2", "-fno-gnu-unique", "-fmax-errors=8", "-fno-diagnostics-show-caret", _NO_LOCATIONS]
    flags += ["--param=tsan-instrument-func-entry-exit=0"] if tells_volatile_apart(tool) else []
    return [*flags, "--param=tsan-distinguish-volatile=1"] if tells_volatile_apart(tool) else flags


def tells_volatile_apart(tool: Compiler) -> bool:
    """Returns whether the compiler marks checked accesses as volatile.

    Without the mark, a thread that polls a volatile flag would be reported as a race with the thread that sets the
    flag. The race check of global memory is then off.
    """
    return tool.family == "clang" or tool.major >= 12
