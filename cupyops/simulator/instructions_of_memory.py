"""The PTX instructions of memory, barriers, warps and matrices that the simulator covers, as in :mod:`.instructions`."""

import re

from .instructions import Registers, Row, Unknown, assign, plain

__all__ = ["MEMORY"]

_SPACES = "global|shared|local|const|param"
_SPACE = rf"(?:\.(?P<space>{_SPACES})(?:::cta)?)?"
_HINTS = (
    r"(?:\.(?:ca|cg|cs|cv|lu|wb|wt|nc|L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate"
    r"|L2::(?:64|128|256)B|L2::evict_first|L2::evict_last|L2::evict_normal|L2::cache_hint))*"
)
_TYPE = r"\.(?P<t>[busf](?:8|16|32|64))"


def _order_and_space(orders: str) -> str:
    """Returns the expression of an order, a scope and a state space, which ptxas takes in any order."""
    return (
        rf"(?=(?:.*?\.(?P<order>{orders})(?!\w))?)(?=(?:.*?\.(?P<space>{_SPACES})(?!\w))?)"
        rf"(?:\.(?:{orders}|cta|cluster|gpu|sys|(?:{_SPACES})(?:::cta)?)(?!\w|::))*"
    )


def _without_policy(match: re.Match[str], operands: list[str]) -> list[str]:
    """Returns the operands without the cache policy of ``.L2::cache_hint``."""
    return operands[:-1] if ".L2::cache_hint" in match["hints"] else operands


def _many(statement: Registers, match: re.Match[str], operand: str) -> list[str]:
    names = statement.vector(operand)
    if len(names) != int(match["v"] or 1):
        raise IndexError
    return names


def _load(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    target, address = _without_policy(match, operands)
    targets = _many(statement, match, target)
    strong = match["order"] in ("volatile", "relaxed", "acquire") or ".cv" in match["hints"]
    words = f"<cupyops_ptx::{match['t']}, {len(targets)}>"
    value = f"cupyops_ptx::load{'_strong' if strong else ''}{words}({statement.address(address, match['space'])})"
    after = " cupyops_ptx::fence();" if match["order"] == "acquire" else ""
    copied = " ".join(assign(statement, t, f"cupyops_ptx::bits(cupyops_words.at[{i}])") for i, t in enumerate(targets))
    return f"const auto cupyops_words = {value};{after} {copied}"


def _store(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    address, source = _without_policy(match, operands)
    sources = _many(statement, match, source)
    strong = match["order"] in ("volatile", "relaxed", "release")
    kind = f"cupyops_ptx::{match['t']}"
    words = ", ".join(f"cupyops_ptx::as<{kind}>({statement.floating(s, match['t'])})" for s in sources)
    before = "cupyops_ptx::fence(); " if match["order"] == "release" else ""
    to = statement.address(address, match["space"])
    return f"{before}cupyops_ptx::store{'_strong' if strong else ''}<{kind}, {len(sources)}>({to}, {{{{{words}}}}});"


def _atomic(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    target, address, *values = operands if match["name"] == "atom" else ["_", *operands]
    kind, operation = match["t"].replace("b", "u"), match["op"]
    if kind[0] == "f" and operation not in ("add", "exch"):
        raise Unknown(f"the instruction `{match[0]}`")
    order = match["order"] or ""
    before = "cupyops_ptx::fence(); " if order in ("release", "acq_rel") else ""
    after = " cupyops_ptx::fence();" if order in ("acquire", "acq_rel") else ""
    to = statement.address(address, match["space"])
    if operation == "cas":
        compare, value = values
        call = (
            f"cupyops_ptx::atomic_cas<cupyops_ptx::{kind}>({to}, {statement.value(compare)}, {statement.value(value)})"
        )
    else:
        (value,) = values
        name = f"cupyops_ptx::{operation.upper()}"
        call = f"cupyops_ptx::atomic<cupyops_ptx::{kind}, {name}>({to}, {statement.floating(value, kind)})"
    return f"{before}{assign(statement, target, call)}{after}"


def _convert_address(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a = operands
    if match["space"] != "shared":
        return assign(statement, d, statement.value(a))
    return assign(statement, d, f"cupyops_ptx::{'to_shared' if match['to'] else 'to_generic'}({statement.value(a)})")


def _is_space(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    p, a = operands
    name = {"shared": "__isShared", "global": "__isGlobal"}[match["space"]]
    return assign(statement, p, f"{name}(cupyops_ptx::generic({statement.value(a)})) != 0")


def _copy_async(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    to, source, size, *more = operands
    given = f"(unsigned)({statement.value(size)})"
    limit = f"(unsigned)({statement.value(more[0])})" if more and not match["policy"] else given
    places = f"{statement.address(to, 'shared')}, {statement.address(source, 'global')}"
    return f"cupyops_ptx::cp_async({places}, {given}, {limit});"


def _copy_wait(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    return f"cupyops_ptx::cp_async_wait((unsigned)({statement.value(operands[0])}));"


def _barrier(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    return f"cupyops_ptx::bar_sync({', '.join(f'(unsigned)({statement.value(o)})' for o in operands)});"


def _barrier_of_warp(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    return f"cupyops_ptx::sync_warp((unsigned)({statement.value(operands[0])}));"


def _shuffle(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    target, *sources = operands
    if len(sources) != 4:
        raise IndexError
    names = target.split("|")
    operation = {"idx": "SHFL", "up": "SHFL_UP", "down": "SHFL_DOWN", "bfly": "SHFL_XOR"}[match["way"]]
    values = ", ".join(f"(unsigned)({statement.value(s)})" for s in sources)
    call = f"cupyops_ptx::shfl(CUPYOPS_{operation}, cupyops_inside, {values})"
    second = f" {assign(statement, names[1], 'cupyops_inside')}" if len(names) > 1 else ""
    return f"bool cupyops_inside; {assign(statement, names[0], call)}{second}"


def _vote(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, p, mask = operands
    values = f"bool({statement.value(p)}), (unsigned)({statement.value(mask)})"
    if match["way"] == "uni":
        return assign(statement, d, f"cupyops_ptx::vote_uniform({values})")
    return assign(statement, d, f"cupyops_ptx::vote(CUPYOPS_{match['way'].upper()}, {values})")


def _match(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    target, a, mask = operands
    names = target.split("|")
    call = f"cupyops_ptx::match(CUPYOPS_MATCH_{match['way'].upper()}, cupyops_all, {statement.value(a)}, (unsigned)({statement.value(mask)}))"
    second = f" {assign(statement, names[1], 'cupyops_all')}" if len(names) > 1 else ""
    return f"bool cupyops_all; {assign(statement, names[0], call)}{second}"


def _redux(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a, mask = operands
    name = match["op"].upper()
    if match["t"] == "u32" and name in ("MIN", "MAX"):
        name = f"U{name}"
    values = f"(unsigned)({statement.value(a)}), (unsigned)({statement.value(mask)})"
    return assign(statement, d, f"cupyops_ptx::redux(CUPYOPS_REDUCE_{name}, {values})")


def _elect(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    target, mask = operands
    names = target.split("|")
    call = f"cupyops_ptx::elect(cupyops_chosen, (unsigned)({statement.value(mask)}))"
    return f"bool cupyops_chosen; {assign(statement, names[0], call)} {assign(statement, names[1], 'cupyops_chosen')}"


def _active_mask(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    return assign(statement, operands[0], "cupyops_active_mask()")


def _registers(
    statement: Registers, name: str, operand: str, count: int, kind: str = "unsigned", *, decimal: bool = False
) -> str:
    """Returns the declaration of an array with the values of a vector of registers, which may be decimal numbers of float32."""
    sources = statement.vector(operand)
    if len(sources) != count:
        raise IndexError
    read = (lambda s: statement.floating(s, "f32")) if decimal else statement.value
    return f"const {kind} {name}[] = {{{', '.join(f'({kind})({read(s)})' for s in sources)}}};"


def _results(statement: Registers, operand: str, count: int) -> str:
    targets = statement.vector(operand)
    if len(targets) != count:
        raise IndexError
    return " ".join(assign(statement, t, f"cupyops_d[{i}]") for i, t in enumerate(targets))


_FORMATS = {
    "f16": "half_format",
    "bf16": "bf16_format",
    "tf32": "tf32_format",
    "s8": "s8_format",
    "u8": "u8_format",
    "s4": "s4_format",
    "u4": "u4_format",
    "e4m3": "e4m3_format",
    "e5m2": "e5m2_format",
}
_SIZES = {
    "f16": (8, 16),
    "bf16": (8, 16),
    "tf32": (4, 8),
    "s8": (16, 32),
    "u8": (16, 32),
    "s4": (32, 64),
    "u4": (32, 64),
    "e4m3": (32,),
    "e5m2": (32,),
}


def _mma(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a, b, c = operands
    rows, depth, to, left, right, of = int(match["m"]), int(match["k"]), match["d"], match["a"], match["b"], match["c"]
    width = {"tf32": 32, "f16": 16, "bf16": 16, "s4": 4, "u4": 4}.get(left, 8)
    whole = left in ("s8", "u8", "s4", "u4")
    mixed = ({"s8", "u8"}, {"s4", "u4"}, {"e4m3", "e5m2"})
    fits = depth in _SIZES.get(left, ()) and (left == right or {left, right} in mixed)
    fits &= to == of and to in (("s32",) if whole else ("f32", "f16") if left == "f16" else ("f32",))
    fits &= rows == 16 or (whole and depth == 128 // width)
    if not fits or (match["sat"] and not whole):
        raise Unknown(f"the instruction `{match[0]}`")
    count = rows // (8 if to == "f16" else 4)
    name = "mma_half" if to == "f16" else "mma"
    formats = f"cupyops_ptx::{_FORMATS[left]}, cupyops_ptx::{_FORMATS[right]}"
    parts = [
        _registers(statement, "cupyops_a", a, rows * depth * width // 1024),
        _registers(statement, "cupyops_b", b, 8 * depth * width // 1024),
        _registers(statement, "cupyops_c", c, count, decimal=to == "f32"),
        f"unsigned cupyops_d[{count}];",
        f"cupyops_ptx::{name}<{formats}, {rows}, {depth}, {'true' if match['sat'] else 'false'}>"
        "(cupyops_d, cupyops_a, cupyops_b, cupyops_c);",
        _results(statement, d, count),
    ]
    return " ".join(parts)


def _mma_f64(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a, b, c = operands
    rows, depth = int(match["m"]), int(match["k"])
    if (rows, depth) not in ((8, 4), (16, 4), (16, 8), (16, 16)):
        raise Unknown(f"the instruction `{match[0]}`")
    counts = {"a": rows * depth // 32, "b": depth // 4, "c": rows // 4}
    parts = [
        _registers(statement, f"cupyops_{name}", operand, counts[name], "unsigned long long")
        for name, operand in (("a", a), ("b", b), ("c", c))
    ]
    call = f"cupyops_ptx::mma_f64<{rows}, {depth}>(cupyops_d, cupyops_a, cupyops_b, cupyops_c);"
    return " ".join(
        [*parts, f"unsigned long long cupyops_d[{counts['c']}];", call, _results(statement, d, counts["c"])]
    )


def _mma_bits(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a, b, c = operands
    rows, depth = int(match["m"]), int(match["k"])
    if (rows, depth) not in ((8, 128), (16, 128), (16, 256)):
        raise Unknown(f"the instruction `{match[0]}`")
    parts = [
        _registers(statement, "cupyops_a", a, rows * depth // 1024),
        _registers(statement, "cupyops_b", b, depth // 128),
        _registers(statement, "cupyops_c", c, rows // 4),
        f"unsigned cupyops_d[{rows // 4}];",
        f"cupyops_ptx::mma_bits<{'true' if match['op'] == 'and' else 'false'}, {rows}, {depth}>"
        "(cupyops_d, cupyops_a, cupyops_b, cupyops_c);",
        _results(statement, d, rows // 4),
    ]
    return " ".join(parts)


def _ldmatrix(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, address = operands
    count = int(match["x"])
    call = f"cupyops_ptx::ldmatrix<{count}, {'true' if match['trans'] else 'false'}>"
    place = statement.address(address, match["space"])
    return f"unsigned cupyops_d[{count}]; {call}(cupyops_d, {place}); {_results(statement, d, count)}"


def _stmatrix(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    address, s = operands
    count = int(match["x"])
    call = f"cupyops_ptx::stmatrix<{count}, {'true' if match['trans'] else 'false'}>"
    return f"{_registers(statement, 'cupyops_s', s, count)} {call}({statement.address(address, 'shared')}, cupyops_s);"


def _movmatrix(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    d, a = operands
    return assign(statement, d, f"cupyops_ptx::movmatrix((unsigned)({statement.value(a)}))")


def _nothing(statement: Registers, match: re.Match[str], operands: list[str]) -> str:
    return ""


MEMORY: dict[str, list[tuple[str, Row]]] = {
    "ld, st with cache hints, .volatile, .relaxed, .acquire, .release": [
        (
            rf"ld(?:\.c[ag](?=\.global))?{_order_and_space('weak|volatile|relaxed|acquire')}(?P<hints>{_HINTS})(?:\.v(?P<v>[24]))?{_TYPE}",
            _load,
        ),
        (rf"(?P<order>ldu){_SPACE}(?P<hints>)(?:\.v(?P<v>[24]))?{_TYPE}", _load),
        (
            rf"st{_order_and_space('weak|volatile|relaxed|release')}(?P<hints>{_HINTS})(?:\.v(?P<v>[24]))?{_TYPE}",
            _store,
        ),
    ],
    "atom, red": [
        (
            rf"(?P<name>atom|red){_order_and_space('relaxed|acquire|release|acq_rel')}"
            r"\.(?P<op>add|min|max|and|or|xor|inc|dec|exch|cas)\.(?P<t>[busf](?:32|64))",
            _atomic,
        ),
    ],
    "cvta, isspacep, prefetch, createpolicy": [
        (r"cvta(?P<to>\.to)?\.(?P<space>global|shared|local|const)(?:::cta)?\.u64", _convert_address),
        (r"isspacep\.(?P<space>global|shared)(?:::cta)?", _is_space),
        (r"prefetch(?:u)?(?:\.(?:global|local))?\.L[12](?:::evict_\w+)?", _nothing),
        (
            r"createpolicy\.fractional(?:\.L2::evict_\w+){1,2}\.b64",
            lambda s, m, o: assign(s, o[0], "0ull"),  # a hint, which the simulator has no cache for
        ),
    ],
    "cp.async, cp.async.commit_group, cp.async.wait_group, cp.async.wait_all": [
        (
            r"cp\.async\.c[ag]\.shared(?:::cta)?\.global(?P<policy>\.L2::cache_hint)?(?:\.L2::(?:64|128|256)B)?",
            _copy_async,
        ),
        (r"cp\.async\.commit_group", plain("cupyops_ptx::cp_async_commit();")),
        (r"cp\.async\.wait_group", _copy_wait),
        (r"cp\.async\.wait_all", plain("cupyops_ptx::cp_async_wait_all();")),
    ],
    "membar, fence, griddepcontrol": [
        (r"membar\.(?:cta|gl|sys)", plain("cupyops_ptx::fence();")),
        (r"fence(?:\.(?:sc|acq_rel))?\.(?:cta|cluster|gpu|sys)", plain("cupyops_ptx::fence();")),
        (r"fence\.proxy\.async(?:\.shared(?:::cta)?|\.global)?", plain("cupyops_show();")),
        (r"griddepcontrol\.(?:wait|launch_dependents)", _nothing),
    ],
    "bar.sync, bar.warp.sync": [
        (r"(?:bar|barrier)(?:\.cta)?\.sync(?:\.aligned)?", _barrier),
        (r"bar\.warp\.sync", _barrier_of_warp),
        (r"(?:barrier\.cluster\.arrive)(?:\.release)?(?:\.aligned)?", plain("cupyops_cluster_arrive(0);")),
        (r"(?:barrier\.cluster\.arrive\.relaxed)(?:\.aligned)?", plain("cupyops_cluster_arrive(1);")),
        (r"(?:barrier\.cluster\.wait)(?:\.acquire)?(?:\.aligned)?", plain("cupyops_cluster_wait();")),
    ],
    "shfl.sync, vote.sync, match.sync, redux.sync, elect.sync, activemask": [
        (r"shfl\.sync\.(?P<way>idx|up|down|bfly)\.b32", _shuffle),
        (r"vote\.sync\.(?P<way>all|any|uni)\.pred", _vote),
        (r"vote\.sync\.(?P<way>ballot)\.b32", _vote),
        (r"match\.(?P<way>any|all)\.sync\.b(?:32|64)", _match),
        (r"redux\.sync\.(?P<op>add|min|max|and|or|xor)\.(?P<t>[bus]32)", _redux),
        (r"elect\.sync", _elect),
        (r"activemask\.b32", _active_mask),
    ],
    "mma.sync": [
        (
            r"mma\.sync\.aligned\.m(?P<m>16|8)n8k(?P<k>\d+)\.row\.col(?P<sat>\.satfinite)?"
            r"\.(?P<d>\w+)\.(?P<a>\w+)\.(?P<b>\w+)\.(?P<c>\w+)",
            lambda s, m, o: (_mma_f64 if {m["a"], m["b"], m["c"], m["d"]} == {"f64"} else _mma)(s, m, o),
        ),
        (
            r"mma\.sync\.aligned\.m(?P<m>16|8)n8k(?P<k>\d+)\.row\.col\.s32\.b1\.b1\.s32\.(?P<op>xor|and)\.popc",
            _mma_bits,
        ),
    ],
    "ldmatrix, stmatrix, movmatrix": [
        (
            r"ldmatrix\.sync\.aligned(?=.*\.m8n8)(?=.*\.x(?P<x>[124]))(?=(?:.*\.(?P<space>shared))?)(?=(?:.*(?P<trans>\.trans))?)"
            r"(?:\.m8n8|\.x[124]|\.trans|\.shared(?:::cta)?){2,4}\.b16",
            _ldmatrix,
        ),
        (r"stmatrix\.sync\.aligned(?:\.m8n8)?\.x(?P<x>[124])(?P<trans>\.trans)?\.shared(?:::cta)?\.b16", _stmatrix),
        (r"movmatrix\.sync\.aligned\.m8n8\.trans\.b16", _movmatrix),
    ],
}
