"""The expected values of the kernels in this folder, by NumPy: a function of the arrays of each kernel."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
# By array, pairs of an index and the values there.
Expected = dict[str, list[tuple[Any, Any]]]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-50, 50, shape).astype(np.int32)


# Cooperative groups


def groups(a: Arrays) -> Expected:
    x = a["x"].astype(np.int64)
    rows, t = len(x), np.arange(64)
    by16 = x.reshape(rows, 4, 16)
    y: dict[int, Any] = {0: x[:, ::-1]}
    y[1] = np.repeat(by16.sum(2), 16, axis=1)
    y[2] = by16.cumsum(2).reshape(rows, 64)
    before = np.maximum.accumulate(by16, 2)
    y[3] = np.concatenate([np.zeros((rows, 4, 1), int), before[:, :, :-1]], 2).reshape(rows, 64)
    odd = by16 % 2
    y[4] = np.repeat((odd << np.arange(16)).sum(2), 16, axis=1)
    y[5] = by16[:, :, np.arange(16) ^ 5].reshape(rows, 64) * 4 + 1
    y[6] = t % 32 // 8 * 1000 + 400 + t // 32 * 10 + t % 8
    source = np.where(t % 32 < 29, t + 3, t)
    y[7] = source * 1000 + 0 * x
    third = t[t % 3 == 0]
    y[8] = np.zeros(64, int)
    for warp in (0, 1):
        lanes = third[third // 32 == warp]
        y[8][lanes] = len(lanes) * 100000 + np.arange(len(lanes)) * 1000 + lanes.sum() + lanes[0]
    lane = t % 32
    y[9] = np.array([(32 - k % 5 + 4) // 5 * 1000 + k // 5 * 100 + k % 5 * 10 + 5 for k in lane])
    y[10] = np.where(lane < 10, (lane + 1) * 100 + 10, (lane - 9) * 100 + 22)
    # The sums of groups are in the thread of rank 0.
    return {
        "y": [
            *((np.s_[:, slot], np.broadcast_to(v, (rows, 64))) for slot, v in y.items()),
            (np.s_[:, 11, 0], x.sum(1)),
            (np.s_[:, 12, ::4], x.reshape(rows, 16, 4).sum(2)),
            (np.s_[:, 13], np.arange(rows)[:, None] * 10000 + t + 6400),
        ]
    }


def grid(a: Arrays) -> Expected:
    rows = len(a["x"])
    return {"y": [((), np.broadcast_to(a["x"].max(1).sum() + np.arange(rows)[:, None], (rows, 64)))]}


def cluster(a: Arrays) -> Expected:
    return {"y": [((), a["x"].reshape(-1, 2, 64)[:, ::-1].reshape(-1, 64) * 10 + 2)]}


# Integer functions


def parts(words: np.ndarray, count: int, signed: bool) -> np.ndarray:
    return (
        np.ascontiguousarray(words)
        .view(f"{'i' if signed else 'u'}{4 // count}")
        .reshape(len(words), count)
        .astype(np.int64)
    )


def joined(values: np.ndarray, count: int) -> np.ndarray:
    return (
        (values & ((1 << 32 // count) - 1)).astype(f"u{4 // count}").reshape(len(values), count).view(np.uint32)[:, 0]
    )


def round_away(total: np.ndarray) -> np.ndarray:
    return np.where(total >= 0, (total + 1) >> 1, total >> 1)


def intrinsics(a: Arrays) -> Expected:
    x = a["x"]
    return {"y": list(enumerate(_intrinsics(x[:, 0], x[:, 1])))}


def _intrinsics(a: np.ndarray, b: np.ndarray) -> Iterator[np.ndarray]:
    def both(f: Callable[..., np.ndarray], signed: bool) -> Iterator[np.ndarray]:
        for count in (2, 4):
            top = (1 << (32 // count - 1)) - 1
            yield joined(f(parts(a, count, signed), parts(b, count, signed), top), count)

    yield from both(lambda p, q, top: p + q, False)
    yield from both(lambda p, q, top: p - q, False)
    yield from both(lambda p, q, top: (p + q).clip(-top - 1, top), True)
    yield from both(lambda p, q, top: (p - q).clip(-top - 1, top), True)
    yield from both(lambda p, q, top: (p + q).clip(0, 2 * top + 1), False)
    yield from both(lambda p, q, top: (p - q).clip(0, 2 * top + 1), False)
    yield from both(lambda p, q, top: abs(p - q), True)
    yield from both(lambda p, q, top: abs(p - q), False)
    yield from both(lambda p, q, top: round_away(p + q), True)
    yield from both(lambda p, q, top: (p + q + 1) >> 1, False)
    yield from both(lambda p, q, top: (p + q) >> 1, False)
    for f in (np.maximum, np.minimum):
        yield from both(lambda p, q, top, f=f: f(p, q), True)
        yield from both(lambda p, q, top, f=f: f(p, q), False)
    compared: list[tuple[Callable[..., np.ndarray], tuple[bool, ...]]] = [
        (np.equal, (False,)),
        (np.not_equal, (False,)),
    ]
    compared += [(f, (True, False)) for f in (np.greater_equal, np.greater, np.less_equal, np.less)]
    for f, kinds in compared:
        for signed in kinds:
            yield from both(lambda p, q, top, f=f: -f(p, q).astype(int), signed)
    yield from both(lambda p, q, top: (p == q).astype(int), False)
    yield from both(lambda p, q, top: (p > q).astype(int), True)
    for signed in (True, False):
        for count in (2, 4):
            yield abs(parts(a, count, signed) - parts(b, count, signed)).sum(1)
    for sign in (abs, np.negative):
        for saturates in (False, True):
            for count in (2, 4):
                top = (1 << (32 // count - 1)) - 1
                values = sign(parts(a, count, True))
                yield joined(values.clip(None, top) if saturates else values, count)
    ia, ib = a.view(np.int32).astype(np.int64), b.view(np.int32).astype(np.int64)
    ua, ub = a.astype(np.int64), b.astype(np.int64)
    word = lambda v: np.asarray(v) & 0xFFFFFFFF  # noqa: E731
    for signed in (True, False):
        yield word((parts(a, 4, signed) * parts(b, 4, signed)).sum(1) + 7)
    for signed in (True, False):
        halves, quarters = parts(a, 2, signed), parts(b, 4, signed)
        yield word((halves * quarters[:, :2]).sum(1) + 7)
        yield word((halves * quarters[:, 2:]).sum(1) + 7)
    both_words = ub << 32 | ua
    bytes_ = np.stack([both_words >> 8 * i & 255 for i in range(8)], 1)
    yield bytes_[:, 4] | bytes_[:, 2] << 8 | bytes_[:, 2] << 16 | bytes_[:, 6] << 24  # __byte_perm reads A as 2
    wide = ub.astype(object) * 2**32 + ua
    yield np.array([int(w) << 5 >> 32 & 0xFFFFFFFF for w in wide])
    yield np.array([int(w) >> 5 & 0xFFFFFFFF for w in wide])
    yield ua
    yield np.array([int(w) >> 5 & 0xFFFFFFFF for w in wide])
    yield np.array([int(f"{v:032b}"[::-1], 2) for v in ua])
    yield np.array([32 - int(v).bit_length() for v in ua])
    yield np.array([(int(v) & -int(v)).bit_length() for v in ua])
    yield np.array([int(v).bit_count() for v in ua])
    yield np.array([_nth(int(v), int(q) % 32, 2) for v, q in zip(ua, ub, strict=True)])
    yield np.array([_nth(int(v), int(q) % 32, -3) for v, q in zip(ua, ub, strict=True)])
    low = lambda v: (v & 0xFFFFFF) - ((v & 0x800000) << 1)  # noqa: E731
    yield word(low(ua) * low(ub))
    yield word((ua & 0xFFFFFF) * (ub & 0xFFFFFF))
    yield word(ia * ib >> 32)
    yield np.array([int(p) * int(q) >> 32 for p, q in zip(ua, ub, strict=True)])
    yield word(ia + ib >> 1)
    yield word(ia + ib + 1 >> 1)
    yield ua + ub >> 1
    yield ua + ub + 1 >> 1
    yield word(abs(ia - ib) + 5)
    yield word(abs(ua - ub) + 5)
    yield word(np.maximum(np.maximum(ia, ib), 9))
    yield np.minimum(np.minimum(ua, ub), 9)
    yield word(np.maximum(((ia + ib + 2**31) % 2**32) - 2**31, 9))
    yield np.maximum(np.minimum(ia, ib), 0)
    signed, unsigned = ((parts(a, 2, s), parts(b, 2, s)) for s in (True, False))
    wrapped = ((signed[0] + signed[1] + 2**15) % 2**16) - 2**15
    yield joined(np.maximum(np.maximum(*signed), 5), 2)
    yield joined(np.minimum(np.minimum(*unsigned), 0x9000), 2)
    yield joined(np.maximum(wrapped, 5), 2)
    yield joined(np.minimum(sum(unsigned) & 0xFFFF, 0x9000), 2)
    yield joined(np.maximum(wrapped, 0), 2)
    yield joined(np.minimum(np.minimum(*signed), 5).clip(0), 2)
    yield joined(np.maximum(*signed), 2)
    chosen = (signed[0] >= signed[1]).astype(int)
    yield chosen[:, 1] * 2 + chosen[:, 0]
    yield word(np.minimum(ia, ib))
    yield (ia <= ib).astype(int)


def _nth(mask: int, base: int, offset: int) -> int:
    """The position of the offset-th set bit from `base`, upwards or downwards."""
    places = range(base, 32) if offset > 0 else range(base, -1, -1)
    found = [p for p in places if mask >> p & 1]
    return found[abs(offset) - 1] if len(found) >= abs(offset) else 0xFFFFFFFF


# Inline PTX


def ptx(a: Arrays) -> Expected:
    return {"y": list(enumerate(_ptx(a["x"][:, 0], a["x"][:, 1])))}


def _ptx(a: np.ndarray, b: np.ndarray) -> Iterator[np.ndarray]:
    ua, ub = [int(v) for v in a], [int(v) for v in b]
    pairs = list(zip(ua, ub, strict=True))
    mask = 0xFFFFFFFF
    yield np.array([p.bit_length() - 1 & mask for p in ua])
    signed = [p if p < 2**31 else ~p & mask for p in ua]
    yield np.array([32 - p.bit_length() if p else mask for p in signed])
    yield np.array([p >> q % 40 & 127 for p, q in pairs])
    yield np.array([((p >> 20) | (-(1 << 12) if p >> 31 else 0)) & mask for p in ua])
    yield np.array([(q & ~(0xFFF << 5)) | (p & 0xFFF) << 5 for p, q in pairs])
    yield np.array([(p & q) | 0x0F0F3C3C for p, q in pairs])
    sign = lambda byte: 255 if byte & 128 else 0  # noqa: E731
    yield np.array([sign(p >> 16) | p & 0xFF00 | (q & 255) << 16 | sign(q >> 8) << 24 for p, q in pairs])
    yield np.array([(q << 32 | p) >> 8 * ((p ^ q) & 3) & mask for p, q in pairs])
    yield np.array([(p * q >> 32) + 5 & mask for p, q in pairs])
    yield np.array([(q << 32 | p) << 9 >> 32 & mask for p, q in pairs])
    yield np.array([77 if p < q else p - q for p, q in pairs])
    yield np.array([max(p.bit_length(), 1) for p in ua])
    yield np.array([(p * q & mask) ^ (p * q >> 32) for p, q in pairs])
    yield np.array([(p >> 16) | (p & 0xFFFF) << 16 for p in ua])
    sums = []
    for p, q in pairs:
        total = (p | q << 32 | p << 64 | q << 96) + (q | p << 32 | (p ^ mask) << 64 | (q ^ mask) << 96)
        w = [total >> 32 * i & mask for i in range(4)]
        sums.append((w[0] ^ w[1] * 3 ^ w[2] * 5 ^ w[3] * 7) & mask)
    yield np.array(sums)
    yield np.array([p.bit_count() * 100 + 32 - p.bit_length() for p in ua])
    f = ((a & np.uint32(0x007FFFFF)) | np.uint32(0x3F800000)).view(np.float32)
    g = ((b & np.uint32(0x007FFFFF)) | np.uint32(0x40000000)).view(np.float32)
    word = lambda v: np.asarray(v, np.float32).view(np.uint32)  # noqa: E731
    yield word(_rounded(f, g))
    exact = f.astype(np.float64) + g.astype(np.float64)
    down = exact.astype(np.float32)
    yield word(np.where(down.astype(np.float64) > exact, np.nextafter(down, np.float32(0)), down))
    yield word(np.maximum(f, np.float32(1.5)))
    yield (word(f).astype(np.int64) + 0x1000) & 0xFFFFE000
    yield _bf16(g) | _bf16(f) << 16
    yield (f * np.float32(0.0001)).astype(np.float16).view(np.uint16)
    yield np.trunc(np.float32(-1000.0) * f).astype(np.int64) & mask
    yield np.array([int(f"{p:032b}"[::-1], 2) for p in ua])
    yield np.ones(len(a), int)
    ia, ib = a.view(np.int32).astype(np.int64), b.view(np.int32).astype(np.int64)
    p8, q8 = (np.trunc(v / 2**23).astype(np.int64) for v in (ia, ib))
    yield (np.array(ua) & 0xFFFF) << 16 | (p8.clip(-128, 127) & 255) << 8 | (q8.clip(-128, 127) & 255)
    yield p8.clip(0, 255) << 8 | q8.clip(0, 255)
    yield abs(parts(a, 4, False) - parts(b, 4, False)).sum(1) + 7
    yield joined((parts(a, 2, True) + parts(b, 2, True)).clip(-32768, 32767), 2)
    yield joined(np.maximum(parts(a, 4, False), parts(b, 4, False)), 4)
    yield (ia.clip(-32768, 32767) & 0xFFFF) << 16 | (ib.clip(-32768, 32767) & 0xFFFF)


def _rounded(f: np.ndarray, g: np.ndarray) -> np.ndarray:
    """f g + 1/2, rounded once: the product of two float32 is exact in float64, and so is the sum of these numbers."""
    return (f.astype(np.float64) * g.astype(np.float64) + 0.5).astype(np.float32)


def _bf16(x: np.ndarray) -> np.ndarray:
    bits = x.view(np.uint32).astype(np.int64)
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def memory(a: Arrays) -> Expected:
    x = a["x"]
    s = x.copy()
    s[:, 62:] = 0  # the last copy ends with zeros
    own = s[:, np.arange(64) % 63 + 1]
    first_of_warp = np.repeat(own[:, [0, 32]] > 0, 32, axis=1)
    values = own + 2 * own[:, np.arange(64) ^ 1] + 100 * x + first_of_warp
    return {"y": [((), values)], "count": [((), [len(x) * 2016, 63])]}


# Tensor cores


def mma_sync(a: Arrays) -> Expected:
    x, y = a["a"], a["b"]
    return {"d": list(enumerate((x @ y, x[:, 8:] @ y[8:], x @ y + 1, x @ y, x @ y)))}


def mma_narrow(a: Arrays) -> Expected:
    x, y = a["a"], a["b"]
    ones = np.unpackbits(a["bits"].view(np.uint8), axis=1).astype(np.int32)
    rows, columns = ones[:16], ones[16:].T
    above = (np.arange(16) < 8)[:, None]
    low, high = (rows[:, :128], columns[:128]), (rows[:, 128:], columns[128:])
    d = (
        x @ y + 1,
        (x[:, :32] & 15) @ y[:32],
        x[:, :32] @ (y[:32] & 15) * above,
        rows.sum(1)[:, None] + columns.sum(0) - 2 * rows @ columns + 5,
        low[0] @ low[1],
        high[0] @ high[1] * above,
    )
    f, g = a["x"], a["z"]
    e = (f[:, :4] @ g[:4] * above, f[:, :4] @ g[:4], f[:, :8] @ g[:8] + 2, f @ g)
    return {"d": list(enumerate(d)), "e": list(enumerate(e))}


def wmma_shapes(a: Arrays) -> Expected:
    def product(m: int, n: int) -> np.ndarray:
        return 2 * (a["a"].ravel()[: m * 16].reshape(m, 16) @ a["b"].ravel()[: 16 * n].reshape(16, n) + 3).ravel()

    shapes = ((16, 16), (32, 8), (8, 32), (16, 16), (16, 16), (16, 16))
    return {"d": list(enumerate(product(m, n) for m, n in shapes))}


def small(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


# CUB


def collectives(a: Arrays) -> Expected:
    wanted: Expected = {"y": [], "z": []}
    for m, (x, f) in enumerate(zip(a["x"], a["f"], strict=True)):
        items = x.reshape(64, 4)
        first = items[:, 0]
        maxima = np.maximum.accumulate(np.concatenate([[-500], items[:-1, 2]]))
        thirds = np.arange(256) // 3 % 2
        heads = np.r_[True, thirds[1:] != thirds[:-1]] | (np.arange(256) % 7 == 0)
        wanted["y"] += [
            ((m, 0), x),
            (np.s_[m, 1, :2], [x.sum(), first[:50].max()]),
            (np.s_[m, 2, :64], first.cumsum()),
            ((m, 3), x.cumsum() - x + 10000 * (x.sum() != 0)),
            (np.s_[m, 4, :64], 1000 + items[:, 1].cumsum() - items[:, 1]),
            (np.s_[m, 5, :64], maxima),
            ((m, 6), x.reshape(4, 64).T.ravel()),
            ((m, 7), np.sort(x)),
            ((m, 8), np.argsort(x, kind="stable")),
            (np.s_[m, 9, :2], first.reshape(2, 32).sum(1)),
            (np.s_[m, 10, :64], (first.reshape(4, 16).cumsum(1) - first.reshape(4, 16)).ravel()),
            ((m, 11), np.where(np.arange(256) < 250, x, 0)),
            ((m, 12), heads),
            ((m, 13), np.r_[True, heads[1:]] + 2 * np.r_[heads[1:], thirds[-1] != 1]),
        ]
        wanted["z"].append((m, np.sort(f)[::-1]))
    return wanted


# Barriers, pipelines and atomic references


def barriers(a: Arrays) -> Expected:
    x = a["x"]
    rows, tiles = len(x), x.reshape(len(x), 4, 64)
    neighbours = (tiles + np.roll(tiles, -1, 2)).reshape(rows, 256)
    return {
        "y": [
            (np.s_[:, 0], neighbours),
            (np.s_[:, 1], neighbours),
            (np.s_[:, 2], tiles[:, :, ::-1].reshape(rows, 256)),
            (np.s_[:, 3, :64], x[:, :64]),
            (np.s_[:, 4, :64], x[:, 63::-1]),
        ],
        "totals": [((), [rows * 2016, rows - 1, 32767, rows])],
    }


# cuRAND: what its header gives when a host compiler compiles it.


def draws(a: Arrays) -> Expected:
    with np.load(Path(__file__).parent / "random.npz") as known:
        return {name: [((), known[name])] for name in ("bits", "numbers", "wide")}


def words() -> np.ndarray:
    special = np.uint32([0, 1, 0x80008000, 0x7FFF7FFF, 0xFFFFFFFF, 0x80808080, 0x7F7F7F7F, 0x80000000])
    pairs = np.stack(np.meshgrid(special, special), -1).reshape(-1, 2)
    drawn = np.random.default_rng(5).integers(0, 2**32, (192, 2)).astype(np.uint32)
    return np.concatenate([pairs, drawn])


def reals(*shape: int) -> np.ndarray:
    return np.random.default_rng(6).standard_normal(shape).astype(np.float32)
