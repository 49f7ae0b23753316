"""Formulas with whole numbers, conditions and indices: the kernel, its derivatives and C++ give the same values, or the
declaration refuses the formula and says what to write."""

import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cupyops.programs.expressions import check_operations, parse
from cupyops.torch import row_reduce

pytestmark = pytest.mark.simulator


def formula(draw: random.Random, depth: int) -> str:
    """Returns a random expression, with few parentheses, of an element x, a value w of the row, an index t, j and N."""
    if depth == 0 or draw.random() < 0.1:
        return draw.choice(["x", "w", "j", "j", "N", "t", "1", "2", "3", "0x7", "010", "0.5", "true", "(x > 0)"])

    def part() -> str:
        return formula(draw, depth - 1)

    kind = draw.randrange(13)
    if kind < 3:
        return f"{part()} {draw.choice('+-*')} {part()}"
    if kind < 5:
        return f"({part()}) / {draw.choice(['2', '4', '2.0', 'N', 'x', f'({part()})'])}"
    if kind == 5:
        return f"{part()} {draw.choice(['<', '>', '<=', '>=', '==', '!=', '&&', '||'])} {part()}"
    if kind == 6:
        return f"({part()} ? {part()} : {part()})"
    if kind == 7:
        return f"{draw.choice('-!~+')}({part()})"
    if kind == 8:
        return f"({part()}) {draw.choice(['%', '&', '|', '^'])} {draw.choice(['3', '(t + 5)', '(1 + (x > 0))', 'N'])}"
    if kind == 9:
        return f"({part()}) {draw.choice(['<<', '>>'])} {draw.choice(['1', '3'])}"
    if kind == 10:
        return f"{draw.choice(['max', 'min'])}({part()}, {part()})"
    if kind == 11:
        return f"{draw.choice(['abs', 'fabs', 'floor', 'trunc', 'acc_t', 'double', 'bool'])}({part()})"
    return f"{part()} - ({part()})"


TRUTH = """#include <cmath>
#include <cstdio>
#include <cstdlib>
typedef double acc_t;
#include <type_traits>
template <typename A, typename B> auto max(A a, B b) -> decltype(a + b) {
    if constexpr (std::is_integral_v<decltype(a + b)>) return a < b ? b : a;
    else return std::fmax(a, b);
}
template <typename A, typename B> auto min(A a, B b) -> decltype(a + b) {
    if constexpr (std::is_integral_v<decltype(a + b)>) return b < a ? b : a;
    else return std::fmin(a, b);
}
using std::abs;
int main() {
    const double rows[ROWS][N] = {VALUES}, of_rows[] = {OF_ROWS};
    const long long N__ = N, indices[] = {INDICES};
#undef N
    const long long N = N__;
    for (int row = 0; row < ROWS; ++row)
        for (int j = 0; j < N; ++j) {
            const double x = rows[row][j], w = of_rows[row];
            const int t = indices[row];
FORMULAS
        }
}
"""


def by_the_compiler(formulas: list[str], x: Tensor, w: Tensor, t: Tensor, folder: Path) -> Tensor:
    """Returns the values of the formulas as statements of a C++ program, of shape (rows, N, formulas)."""
    names = "".join(f"            const double y{i} = {f};\n" for i, f in enumerate(formulas))
    shown = "".join(f'            printf("%.17g ", y{i});\n' for i in range(len(formulas)))
    values = ", ".join("{" + ", ".join(map(repr, row)) + "}" for row in x.tolist())
    text = TRUTH.replace("VALUES", values).replace("OF_ROWS", ", ".join(map(repr, w.tolist())))
    text = text.replace("INDICES", ", ".join(map(str, t.tolist()))).replace("FORMULAS", names + shown)
    (folder / "truth.cpp").write_text(text)
    compiler = str(shutil.which("g++"))
    command = [compiler, "-w", "-std=c++17", "-ffp-contract=off", f"-DROWS={len(x)}", f"-DN={x.shape[1]}"]
    subprocess.run([*command, "-o", folder / "truth", folder / "truth.cpp"], check=True)
    printed = subprocess.run([folder / "truth"], check=True, capture_output=True, text=True).stdout
    return torch.tensor([float(v) for v in printed.split()], dtype=torch.float64).view(*x.shape, -1)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the truth is what a C++ compiler computes")
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_formula_is_what_cpp_computes_in_the_kernel_and_in_its_derivative(seed: int, tmp_path: Path) -> None:
    draw, formulas = random.Random(seed), list[str]()
    refused = 0
    while len(formulas) < 40:
        candidate = formula(draw, 3)
        try:
            (step,) = parse(f"y = {candidate}", "fuzz")
            check_operations("fuzz", [step], rows=True, whole=("j", "N", "t"))
            formulas.append(candidate)
        except ValueError:
            refused += 1
    assert refused < 80
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    w, t = torch.randn(3, generator=generator, dtype=torch.float64), torch.tensor([-3, 1, 4])
    x[0, 0] = 0
    want = by_the_compiler(formulas, x, w, t, tmp_path)
    program = "; ".join(f"y{i} = {f}" for i, f in enumerate(formulas))
    op = row_reduce(
        f"{program}; z = x + w + t",
        rows=["w"],
        indices=["t"],
        results=["z", *(f"y{i}" for i in range(len(formulas)))],
        name=f"whole_numbers::fuzz{seed}",
    )
    got = op(x, w, t)
    translated, _ = torch.func.jvp(lambda x: op(x, w, t), (x,), (torch.ones_like(x),))
    for i, text in enumerate(formulas, 1):
        wanted = want[..., i - 1]
        for path, found in (("kernel", got[i]), ("translation", translated[i])):
            of = found if found.shape == x.shape else found.unsqueeze(-1).expand_as(x)
            torch.testing.assert_close(
                of, wanted, rtol=1e-12, atol=0, equal_nan=True, msg=f"{path} of {text}: {of} for {wanted}"
            )


@pytest.mark.parametrize("rows", [3, 0])
def test_sums_of_rows_of_no_elements_are_zero(rows: int) -> None:
    op = row_reduce("y = sum(x * x)", "grad_x = 2 * grad_y * x", name="whole_numbers::square")
    x = torch.empty(rows, 0, requires_grad=True)
    y = op(x)
    assert y.tolist() == [0.0] * rows
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (rows, 0)
    assert torch.isnan(row_reduce("y = sum(x) / N", name="whole_numbers::mean")(x.detach())).all()


def test_the_maximum_of_no_elements_is_refused() -> None:
    op = row_reduce("y = max(x)", name="whole_numbers::maximum")
    assert op(torch.empty(0, 0)).shape == (0,)
    with pytest.raises(ValueError, match=r"maximum: a row of no elements has no max, got \(3, 0\)"):
        op(torch.empty(3, 0))


def test_a_remainder_of_nothing_is_zero() -> None:
    """A division by 0 would end the process."""
    x = torch.ones(2, 3)
    op = row_reduce("y = x * (j % t)", indices=["t"], name="whole_numbers::remainder")
    t = torch.tensor([0, 2])
    assert op(x, t).tolist() == [[0, 0, 0], [0, 1, 0]]
    assert torch.func.jvp(lambda x: op(x, t), (x,), (x,))[0].tolist() == [[0, 0, 0], [0, 1, 0]]
