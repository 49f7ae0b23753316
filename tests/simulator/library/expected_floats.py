"""The expected values of kernels of floating-point functions, by NumPy, PyTorch and mpmath: a function of the arrays of
each kernel."""

from collections.abc import Callable, Iterator
from typing import Any

import mpmath
import numpy as np
import torch

from tests.simulator.library.expected import Arrays, Expected

# Functions of float16 and bfloat16


def drawn(count: int) -> Arrays:
    """Numbers whose products and sums are exact in float64, with the numbers that conversions treat apart."""
    random = np.random.default_rng(7)
    x = (random.integers(-2000, 2000, (count, 3)) * 2.0 ** random.integers(-9, 1, (count, 3))).astype(np.float32)
    x[:12, 0] = [np.nan, np.inf, -np.inf, 0.5, 1.5, -0.5, 65504, -65504, 40000, 3e38, -3e38, 1e9]
    w = random.integers(-(2**62), 2**62, count) >> random.integers(0, 62, count)
    w[:6] = [0, 255, 257, 2**63 - 1, -(2**63), -1]
    return {"x": x, "w": w}


def rounded(v: np.ndarray, digits: int, way: Callable[..., np.ndarray] = np.rint) -> np.ndarray:
    """Returns float64 numbers rounded to `digits` binary digits; float16 has 11 and bfloat16 has 8."""
    with np.errstate(all="ignore"):
        least = -14 if digits == 11 else -126
        _, e = np.frexp(np.where(np.isfinite(v), v, 1.0))
        shift = digits - np.maximum(e, least + 1)
        result = np.where(np.isfinite(v), np.ldexp(way(np.ldexp(np.where(np.isfinite(v), v, 0), shift)), -shift), v)
        top = 65504.0 if digits == 11 else float(np.ldexp(255.0, 120))
        beyond = np.abs(result) > top
        over = np.sign(result) * np.inf
        if way is np.trunc:
            over = np.sign(result) * top
        elif way is np.floor:
            over = np.where(result > 0, top, -np.inf)
        elif way is np.ceil:
            over = np.where(result > 0, np.inf, -top)
        return np.where(beyond, over, result)


def halves(digits: int) -> Callable[[Arrays], Expected]:
    def expected(arrays: Arrays) -> Expected:
        a, b, c = (rounded(arrays["x"][:, i].astype(np.float64), digits) for i in range(3))
        with np.errstate(all="ignore"):
            y = list(_halves(a, b, c, arrays["w"], digits))
            p, q, r = np.tanh(a), 10.0**b, 10.0**c
        z = [p, p, q, p, np.tanh(b), p, np.tanh(b), q, r]
        top = 65504 if digits == 11 else 3.3e38
        keep = lambda v: np.where(np.abs(v) > top, np.inf, v)  # noqa: E731
        return {"y": list(enumerate(y)), "z": [(i, keep(v)) for i, v in enumerate(z)]}

    return expected


def _halves(a: np.ndarray, b: np.ndarray, c: np.ndarray, w: np.ndarray, digits: int) -> Iterator[np.ndarray]:
    def fma(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> np.ndarray:
        return rounded(p * q + r, digits)

    def saturated(v: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(v), 0, v.clip(0, 1))

    def positive(v: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(v), v, np.maximum(v, 0))

    yield from (fma(a, b, c), saturated(fma(a, b, c)), positive(fma(a, b, c)))
    for f in (lambda v: v, saturated, positive):
        yield from (f(fma(a, b, c)), f(fma(b, c, a)))
    yield from (fma(-b, c, fma(a, b, c)), fma(b, b, fma(a, c, a)))
    ways = (np.rint, np.floor, np.ceil, np.trunc)
    for bits in (16, 32, 64):
        for signed in (True, False):
            low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
            nan = 0 if bits < 64 else -(2.0**63) if signed else 2.0**63
            for way in ways:
                yield np.where(np.isnan(a), nan, way(a).clip(low, high))
    for bits in (16, 32, 64):
        for signed in (True, False):
            kind: Any = np.dtype(f"{'i' if signed else 'u'}{bits // 8}")
            for way in (np.rint, np.trunc, np.floor, np.ceil):
                yield np.array([_from_integer(int(v), digits, way) for v in w.astype(np.uint64).astype(kind)])


def _from_integer(v: int, digits: int, way: Callable[..., Any]) -> float:
    """Rounds an integer in exact arithmetic: of 64 bits, it is not a float64."""
    extra = max(abs(v).bit_length() - digits, 0)
    low, rest = divmod(v, 1 << extra)
    half = (1 << extra) // 2
    up = {
        np.rint: rest > half or (extra > 0 and rest == half and low % 2 == 1),
        np.trunc: rest > 0 and v < 0,
        np.floor: False,
        np.ceil: rest > 0,
    }[way]
    return float(rounded(np.float64((low + up) << extra), digits, way))


def bytes_(a: Arrays) -> Expected:
    x, everything = torch.from_numpy(a["x"][:, 0]), torch.arange(256, dtype=torch.uint8)
    top = 448.0
    kept = torch.where(x.isnan(), x, x.clamp(-top, top))
    e4m3 = kept.to(torch.float8_e4m3fn).view(torch.uint8).int()
    e5m2 = x.to(torch.float8_e5m2).view(torch.uint8).int()
    nan = x.isnan()
    e4m3[nan] = e5m2[nan] = 0x7F  # the canonical NaN
    wide = [everything.view(kind).float().numpy() for kind in (torch.float8_e4m3fn, torch.float8_e5m2)]
    return {
        "y": [(0, e4m3.numpy()), (1, e5m2.numpy())],
        "z": list(enumerate(wide)),
    }


# Special functions


def points(count: int) -> np.ndarray:
    """Numbers of float32, of which the fourth are in (-1, 1) and 1 minus them is exact, too."""
    random = np.random.default_rng(8)
    x = random.uniform(-4, 4, (count, 4)).astype(np.float32).astype(np.float64)
    x[:, 2] = np.abs(x[:, 2]) + 0.5
    x[:, 3] = random.integers(-1023, 1024, count) / 1024
    return x


def special(arrays: Arrays) -> Expected:
    rows = np.array([[float(v) for v in _special(*map(mpmath.mpf, x))] for x in arrays["x"]])
    return {name: list(enumerate(rows.T)) for name in ("y", "z")}


def _special(a: Any, b: Any, c: Any, d: Any) -> Iterator[Any]:
    two, three, four = (mpmath.sqrt(mpmath.fsum(v * v for v in x)) for x in ((a, b), (a, b, c), (a, b, c, d)))
    yield from (two, 1 / two, three, 1 / three, four, 1 / four, four, 1 / three)
    yield from (mpmath.besseli(0, a), mpmath.besseli(1, a), mpmath.erfinv(d), mpmath.erfinv(d))
    yield from (mpmath.sqrt(2) * mpmath.erfinv(d), mpmath.ncdf(a), mpmath.exp(a * a) * mpmath.erfc(abs(a)))
    yield mpmath.sign(a) / mpmath.cbrt(abs(a))
    yield from (mpmath.sinpi(a), mpmath.cospi(a), 10**d, mpmath.log(abs(mpmath.gamma(a))), mpmath.gamma(c))
    yield from (f(n, c) for f in (mpmath.besselj, mpmath.bessely) for n in (0, 1, 2))
