"""What programs compute: without a reference, so that a CPU simulates them, under checks."""

import pytest
import torch

import cupyops
from cupyops.compile.compiler import OPTIONS, binary_for
from cupyops.launch.kernel import all_kernels
from cupyops.programs.row_config import config_of, work_of
from cupyops.torch import elementwise, row_reduce


@pytest.fixture(params=[pytest.param("cpu", marks=pytest.mark.simulator), pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    with cupyops.simulate(request.param == "cpu", sanitize=True):
        yield request.param


def test_several_results_and_numbers(place: str) -> None:
    op = elementwise(
        "y = a * b + limit; z = a - b",
        "grad_a = grad_y * b + grad_z; grad_b = grad_y * a - grad_z",
        scalars=["limit"],
        name="programs_test::several",
    )
    for shape in ((5,), (37, 19), (511,), (512,), (513,)):
        a, b = (torch.randn(shape, device=place, requires_grad=True) for _ in range(2))
        y, z = op(a, b, 0.5)
        torch.testing.assert_close(y, a * b + 0.5)
        torch.testing.assert_close(z, a - b)
        grad_y, grad_z = torch.randn_like(y), torch.randn_like(z)
        for wanted in ((a,), (b,), (a, b)):
            got = torch.autograd.grad((y, z), wanted, (grad_y, grad_z), retain_graph=True)
            exact = {a: grad_y * b + grad_z, b: grad_y * a - grad_z}
            for x, g in zip(wanted, got, strict=True):
                torch.testing.assert_close(g, exact[x])
    batched = torch.func.vmap(torch.func.grad(lambda a, b: op(a, b, 0.5)[0].sum()), in_dims=(0, None))
    torch.testing.assert_close(batched(a.detach().reshape(27, 19), b.detach()[:19]), b.detach()[:19].expand(27, 19))


def test_only_wanted_gradients_are_written(place: str) -> None:
    op = elementwise("y = a * b", "grad_a = grad_y * b; grad_b = grad_y * a", name="programs_test::wanted")
    assert op.backward is not None
    for n in (40, 1024):
        g, a, b = torch.randn(3, n, device=place)
        grad_a, grad_b = op.backward(g, a, b, False, True)
        assert grad_a.numel() == 0
        torch.testing.assert_close(grad_b, g * a)


def test_layouts_and_alignments_of_a_program(place: str) -> None:
    op = elementwise("y = a * b", name="programs_test::laid_out")
    x = torch.randn(24, 24, device=place)
    flat = torch.randn(1001, device=place)
    channels = torch.randn(2, 3, 4, 5, device=place).to(memory_format=torch.channels_last)
    for a, b in (
        (x.t(), x),
        (x[:, 1::2], x[:, ::2]),
        (x[3], x),
        (x[:, :1], x.t()),
        (flat[1:], flat[:-1]),
        (x.expand(2, 24, 24), x),
        (channels, channels),
    ):
        y = op(a, b)
        assert torch.equal(y, a * b)
    assert op(channels, channels).stride() == channels.stride()


@pytest.mark.sample(2)
@pytest.mark.parametrize("n", [1, 37, 96, 1000, 40_000, 2049])
def test_sums_over_rows_and_columns(place: str, n: int) -> None:
    op = row_reduce(
        "m = sum(x) / N; d = x - m; v = sum(d * d) / N; r = rsqrt(v + eps); y = d * r * weight + shift",
        """
            m = sum(x) / N
            d = x - m
            r = rsqrt(sum(d * d) / N + eps)
            w = grad_y * weight
            a = sum(w) / N
            c = sum(w * d) / N * r * r
            grad_x = r * (w - a - d * c)
            grad_weight = column_sum(grad_y * d * r)
            grad_shift = column_sum(grad_y)
        """,
        columns=["weight", "shift"],
        scalars=["eps"],
        name="programs_test::norm",
    )
    for rows in (1, 5 if n > 10_000 else 13) if n > 1000 else (1, 3, 70):
        x = torch.randn(rows, n, device=place, dtype=torch.double, requires_grad=True)
        weight, shift = (torch.randn(n, device=place, dtype=torch.double, requires_grad=True) for _ in range(2))
        y = op(x, weight, shift, 1e-5)
        wanted = torch.nn.functional.layer_norm(x, (n,), weight, shift, 1e-5)
        torch.testing.assert_close(y, wanted)
        grad = torch.randn_like(y)
        inputs = (x, weight, shift)
        for got, exact in zip(
            torch.autograd.grad(y, inputs, grad), torch.autograd.grad(wanted, inputs, grad), strict=True
        ):
            torch.testing.assert_close(got, exact, rtol=1e-6, atol=1e-9)


# Rows of a few threads, of three warps, of blocks with as many warps as lanes that collect their parts, and with more.
@pytest.mark.sample(2)
@pytest.mark.parametrize("n", [36, 2300, 40_000, 70_000])
@pytest.mark.simulator
def test_a_reduction_forgets_a_part_or_adds_one_that_is_not_there(n: int) -> None:
    """A maximum below 0, a minimum above 0, an infinite maximum, and a sum of exponentials behind another reduction."""
    op = row_reduce(
        "s = sum(x); m = max(x); p = exp(x - m); e = sum(p); low = min(x)",
        results=["s", "m", "p", "e", "low"],
        name=f"programs_test::folds_{n}",
    )
    x = torch.rand(6, n) + 1
    x[0] *= -1
    x[2] = torch.linspace(-80, 0, n)
    x[3, 1::2] = -torch.inf
    x[4] = -torch.inf
    x[5, n // 2] = torch.inf
    with cupyops.simulate():
        found = op(x)
    exact = x.double()
    m = exact.amax(-1)
    p = torch.exp(exact - m[:, None])
    for got, wanted in zip(found, (exact.sum(-1), m, p, p.sum(-1), exact.amin(-1)), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1.3e-6, atol=0, equal_nan=True)


@pytest.mark.simulator
def test_the_rows_of_a_block_are_summed_in_another_order() -> None:
    """In float32, 2^24 + 1 + 1 is 2^24 in this order alone."""
    op = row_reduce("r = sum(x); y = x * r; z = column_sum(x)", results=["y", "z"], name="programs_test::order")
    x = torch.ones(8, 40)
    x[0] = 2**24
    with cupyops.simulate():
        assert torch.equal(op(x)[1], x[0])


# Rows of a few threads, of a warp, of a block; prefetched by a cluster; and read again in each pass.
@pytest.mark.sample(2)
@pytest.mark.parametrize(("n", "capability"), [(40, 0), (1152, 0), (33_000, 0), (33_000, 89), (190_000, 0)])
@pytest.mark.simulator
def test_mixed_dtypes_at_every_cut(n: int, capability: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 columns, a float32 row operand and float32 results beside 16-bit rows; and a GPU without clusters."""
    if capability:
        monkeypatch.setattr("cupyops.launch.driver.capability", lambda device: capability)
    op = row_reduce(
        "s = x + residual; m = max(s); l = m + log(sum(exp(s - m))); y = (s - l) * weight * gain; top = m",
        """
            s = x + residual
            g = grad_y * weight * gain
            d = sum(g) - grad_l
            grad_x = g - exp(s - l) * d
            grad_residual = grad_x
            grad_weight = column_sum(grad_y * gain * (s - l))
            grad_gain = column_sum(grad_y * weight * (s - l))
        """,
        results=["y", "l", "top"],
        columns=["weight", "gain"],
        wide=["y", "l"],
        name=f"programs_test::mixed_{n}_{capability}",
    )
    rows = 6 if capability else 3  # more than there are blocks, where the sums over the rows are in global memory
    x, residual, weight, gain = torch.randn(rows, n).bfloat16(), torch.randn(rows, n), torch.randn(n), torch.randn(n)
    inputs = [t.requires_grad_() for t in (x, residual, weight, gain)]
    with cupyops.simulate():
        y, lse, top = op(*inputs)
        assert [t.dtype for t in (y, lse, top)] == [torch.float32, torch.float32, torch.bfloat16]
        grads = torch.randn_like(y), torch.randn_like(lse)
        found = torch.autograd.grad((y, lse), inputs, grads)
    assert [g.dtype for g in found] == [t.dtype for t in inputs]
    s = x.double() + residual.double()
    torch.testing.assert_close(lse.double(), s.logsumexp(-1), rtol=1e-6, atol=1e-5)
    wanted_y = s.log_softmax(-1) * weight * gain
    torch.testing.assert_close(y.double(), wanted_y, rtol=1e-5, atol=1e-4)
    exact = torch.autograd.grad((wanted_y, s.logsumexp(-1)), inputs, [g.double() for g in grads])
    for got, wanted in zip(found, exact, strict=True):
        scale = wanted.abs().max().item()
        torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=torch.finfo(got.dtype).eps * scale * 8)


@pytest.mark.simulator
def test_a_value_of_several_passes_is_computed_again_where_the_row_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cupyops.launch.driver.capability", lambda device: 80)  # no clusters
    op = row_reduce("a = exp(sin(x)); s = sum(a); y = a / s", name="programs_test::again")
    x = torch.randn(1, 16384, dtype=torch.float64)
    (program,) = op.programs
    assert config_of(x.shape[1], "float64", work_of(program, {"x": 8}), 80).stream
    with cupyops.simulate():
        torch.testing.assert_close(op(x), x.sin().softmax(-1))


def test_the_bits_of_a_row_do_not_depend_on_the_others_or_on_its_address(place: str) -> None:
    """Few rows have blocks of their own; unaligned rows take another path; prefetched rows come round by round."""
    op = row_reduce("m = max(x); e = exp(x - m); y = e / sum(e); z = sum(tanh(x))", name="programs_test::bits")
    for n, rows in ((40, 1100), (40_000, 12)):
        storage = torch.randn(rows * n + 1, device=place)
        x = storage[:-1].view(rows, n)
        storage[1:].copy_(x.flatten().clone())
        shifted = storage[1:].view(rows, n)
        x = shifted.clone()
        y, z = op(x)
        for part in (x[5:6].clone(), x[5:8].clone(), shifted[5:6]):
            assert torch.equal(op(part)[0][0], y[5])
            assert torch.equal(op(part)[1][0], z[5])
        assert torch.equal(op(shifted)[0], y)


def test_an_element_at_an_index_and_names_of_every_kind(place: str) -> None:
    """`k`, `n`, `out`, `at`, `group`, `v`: the kernel's own names give way. jvp translates the element at an index."""
    op = row_reduce(
        "k = sum(x) / N; n = x - k; v = sum(n * n) / N; at = x[group] * weight[group]; out = n * rsqrt(v) + at",
        indices=["group"],
        columns=["weight"],
        name="programs_test::named",
    )
    x, weight = torch.randn(4, 37, device=place), torch.rand(37, device=place)
    group = torch.tensor([0, 36, 37, -1], device=place)
    inside = (group >= 0) & (group < 37)
    of = group.clamp(0, 36)
    at = torch.where(inside, x.gather(1, of[:, None])[:, 0] * weight[of], 0)
    d = x - x.mean(1, keepdim=True)
    wanted = d * torch.rsqrt(d.square().mean(1, keepdim=True)) + at[:, None]
    torch.testing.assert_close(op(x, group, weight), wanted)
    tangent = torch.func.jvp(lambda x: op(x, group, weight), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(tangent, torch.where(inside, weight[of], 0)[:, None].expand(4, 37), atol=1e-4, rtol=1e-4)


def test_an_element_at_an_index_is_there_before_the_first_reduction(place: str) -> None:
    """The load of the element follows the first loads of the row, in registers and where each pass loads the row."""
    op = row_reduce(
        "a = 2 * x[t]; s = sum(abs(x - a)); z = s + a", indices=["t"], results=["z"], name="programs_test::at"
    )
    both = row_reduce(
        "s = sum(abs(x - x[t])); m = max(x - s)", indices=["t"], results=["s", "m"], name="programs_test::at2"
    )
    for n in (37, 3000):
        x, t = torch.randn(5, n, device=place), torch.randint(n, (5,), device=place)
        chosen = x.gather(1, t[:, None])
        torch.testing.assert_close(op(x, t), (x - 2 * chosen).abs().sum(1) + 2 * chosen[:, 0])
        s = (x - chosen).abs().sum(1)
        torch.testing.assert_close(both(x, t), (s, x.amax(1) - s))


def test_few_rows_without_reductions_have_more_threads() -> None:
    """The gradient of a loss of rows has no reduction, and no order to keep."""
    op = row_reduce("y = x * g", rows=["g"], name="programs_test::apart")
    work = work_of(op.programs[0], {"x": 2, "g": 2})
    for n in (768, 1600):
        few = config_of(n, "bfloat16", work, 90).few_rows(n, work, 4, 90)
        assert few.row_threads > config_of(n, "bfloat16", work, 90).row_threads
        assert few.groups == 1
        x, g = torch.randn(3, n, dtype=torch.bfloat16), torch.randn(3, dtype=torch.bfloat16)
        with cupyops.simulate(sanitize=True):
            torch.testing.assert_close(op(x, g), x * g[:, None])


def test_a_maximum_is_nan_where_pytorchs_is(place: str) -> None:
    op = row_reduce("y = x - max(x); z = min(x)", name="programs_test::extremes")
    x = torch.randn(4, 50, device=place)
    x[1, 7] = x[2, 0] = x[3, 49] = float("nan")
    y, z = op(x)
    torch.testing.assert_close(y, x - x.amax(-1, keepdim=True), equal_nan=True)
    torch.testing.assert_close(z, x.amin(-1), equal_nan=True)


def test_values_of_rows_and_their_gradients(place: str) -> None:
    op = row_reduce(
        "y = x * gate; s = sum(x * x)",
        "grad_x = grad_y * gate + 2 * grad_s * x; grad_gate = sum(grad_y * x)",
        rows=["gate"],
        name="programs_test::gated",
    )
    x = torch.randn(2, 5, 30, device=place, requires_grad=True)
    gate = torch.randn(2, 5, device=place, requires_grad=True)
    y, s = op(x, gate)
    torch.testing.assert_close(y, x * gate[..., None])
    torch.testing.assert_close(s, x.square().sum(-1))
    loss, exact = (y.sum() + s.square().sum(), (x * gate[..., None]).sum() + x.square().sum(-1).square().sum())
    for got, wanted in zip(torch.autograd.grad(loss, (x, gate)), torch.autograd.grad(exact, (x, gate)), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("parameters", [torch.float32, torch.bfloat16])
def test_a_gradient_of_what_the_backward_does_not_read_is_rounded_once(place: str, parameters: torch.dtype) -> None:
    """For rows in 16 bits. The sums are whole numbers of 10 bits, of which bfloat16 has 8."""
    op = row_reduce(
        "y = x + shift + offset",
        "grad_x = grad_y; grad_shift = column_sum(grad_y); grad_offset = sum(grad_y)",
        columns=["shift"],
        rows=["offset"],
        name="programs_test::shifted",
    )
    for rows, n in ((1023, 8), (8, 1023)):
        x = torch.zeros(rows, n, device=place, dtype=torch.bfloat16)
        inputs = [torch.zeros(k, device=place, dtype=parameters, requires_grad=True) for k in (n, rows)]
        y = op(x, inputs[1], inputs[0])
        for dim, got in enumerate(torch.autograd.grad(y, inputs, torch.ones_like(y))):
            assert got.dtype == parameters
            assert torch.equal(got, torch.full_like(got, y.shape[dim]))


def test_a_compile_error_shows_the_program(place: str) -> None:
    op = elementwise("y = frobnicate(x)", name="programs_test::unknown")
    with pytest.raises(cupyops.CompileError, match="frobnicate"):
        op(torch.ones(3, device=place))


@pytest.mark.sample(2)
@pytest.mark.simulator
@pytest.mark.parametrize("name", ["norm", "exp", "min"])
def test_an_operator_may_be_called_as_a_function_of_cudas(name: str) -> None:
    op = row_reduce("y = sum(x * x)", name=f"programs_test::{name}")
    x = torch.randn(3, 5)
    torch.testing.assert_close(op(x), x.square().sum(1))
    kernel = next(k for k in all_kernels() if k.name == f"{name}_")
    for types in kernel.type_choices():
        assert binary_for(kernel.final_text(types), name, "sm_90", OPTIONS).code
    other = elementwise("y = 2 * x", name=f"programs_test::twice_{name}")
    torch.testing.assert_close(other(x), 2 * x)


def test_an_index_beyond_32_bits_is_no_column(place: str) -> None:
    chosen = row_reduce("y = sum(j == t ? x : 0)", indices=["t"])
    x = torch.arange(1.0, 9.0, device=place).expand(5, 8).contiguous()
    t = torch.tensor([3, 2**32 + 3, -(2**32) + 3, -1, 2**62], device=place)
    assert chosen(x, t).tolist() == [4, 0, 0, 0, 0]


def test_the_dtype_of_an_input_has_no_name_of_c() -> None:
    """The type of `size` would be `size_t`, and that of `acc` the type of the arithmetic."""
    names = ("key", "size", "time", "acc", "scalar", "int8", "where", "name", "value")
    total = " + ".join(f"{2**i} * {name}" for i, name in enumerate(names))
    op = row_reduce(f"m = max(x); y = x - m * ({total})", name="program_kernels::of_names")
    x, *given = torch.randn(3, 9).bfloat16(), *torch.randn(len(names), 3, 9)
    with cupyops.simulate():
        y = op(x, *given)
    factor = sum(2**i * one for i, one in enumerate(given))
    exact = x.float() - x.float().amax(-1, keepdim=True) * factor
    torch.testing.assert_close(y, exact.bfloat16(), rtol=2**-7, atol=2**-7)


def test_a_number_of_c_has_the_dtype_of_the_arithmetic() -> None:
    """A double among floats would make the arithmetic of the GPU double, too."""
    op = row_reduce("y = sum(sin(x * M_PI)); z = FLT_MAX * 2", name="program_kernels::numbers", results=["y", "z"])
    assert op.programs[0].inputs == ("x",)
    x = torch.randn(3, 9)
    with cupyops.simulate():
        y, z = op(x)
    torch.testing.assert_close(y, (x * torch.pi).sin().sum(-1))
    assert z.isinf().all()
