"""The language of programs, and the errors for what is not allowed."""

import pytest
import torch

from cupyops.programs.expressions import arithmetic, inputs_of, names_in, parse, results_of
from cupyops.torch import elementwise, row_reduce


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("x + 1", "expected assignments such as `y = x \\* x`, got 'x \\+ 1'"),
        ("", "expected assignments"),
        ("y = (x", "the parentheses of `y = \\(x` do not pair"),
        ("y = x; y = 2 * x", "`y` is assigned twice"),
        ("y = y + x", "`y = y \\+ x` reads what it assigns"),
        ("y == x", "expected assignments"),
    ],
)
def test_what_is_no_program_is_refused(program: str, words: str) -> None:
    with pytest.raises(ValueError, match=f"wave: {words}"):
        elementwise(program, name="programs_test::wave")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("y = a ** 2", "CUDA C++ has no **: write a * a, or pow(a, 2)"),
        ("y = a ** -0.5", "CUDA C++ has no **: write pow(a, -0.5)"),
        ("y = (a + b) ** 2", "CUDA C++ has no **: write a * a, or pow(a, 2)"),
        ("y = a ^ 2", "^ is exclusive or in CUDA C++, of whole numbers alone: write a * a, or pow(a, 2)"),
        ("y = (a + b)^2", "^ is exclusive or in CUDA C++, of whole numbers alone: write a * a, or pow(a, 2)"),
        ("y = exp(a) ^ b", "^ is exclusive or in CUDA C++, of whole numbers alone: write pow(a, b)"),
        ("y = a % 2", "% is of whole numbers in CUDA C++: write fmod(a, 2)"),
        ("y = a // 2", "`// 2` is a comment in CUDA C++: write floor(a / b)"),
        ("y = a > 0 and b > 0", "CUDA C++ writes && for `and`"),
        ("y = a > 0 or b > 0", "CUDA C++ writes || for `or`"),
        ("y = not a", "CUDA C++ writes ! for `not`"),
        ("y = a * True", "CUDA C++ writes true for `True`"),
        ("y = a > 0 ? a : None", "there is no None; every name is a number"),
        ("y = a if a > 0 else 0", "CUDA C++ writes c ? x : y for `x if c else y`"),
        ("y = np.exp(a)", "functions are CUDA's own: write exp(...)"),
        ("y = torch.sigmoid(a)", "functions are CUDA's own: sigmoid is 1 / (1 + exp(-x))"),
        ("y = math.pi * a", "functions are CUDA's own"),
        ("y = a.exp()", "`a` is a number, and has no members: write exp(a)"),
        ("y = a @ b", "CUDA C++ has no @, and a program multiplies element by element: write *"),
        ("y = a[0]", "each name is one element, or one value of a row, and has no index"),
        ("y = a # twice", "a comment begins with //"),
        ("import math", "nothing is imported; CUDA's functions are there"),
        ("return a", "nothing is returned; the results are the names that are assigned and not read again"),
        ("y = lambda * a", "`lambda` is a reserved word, and can be no name"),
        ("y = new * a", "`new` is a reserved word, and can be no name"),
        ("float = a", "`float` is a reserved word, and can be no name"),
        ("M_PI = 3 * a", "`M_PI` is a reserved word, and can be no name"),
        ("y = pow(a, 1 / 3)", "1 / 3 is 0 in CUDA C++, a division of whole numbers: write 1.0 / 3"),
        ("y = sigmoid(a)", "CUDA C++ has no sigmoid: it is 1 / (1 + exp(-x))"),
        ("y = where(a > 0, a, 0)", "CUDA C++ has no where: it is c ? a : b"),
        ("y = sgmoid(a)", "CUDA C++ has no sgmoid; did you mean 'sigmoid', which is 1 / (1 + exp(-x))?"),
        ("y = tanhh(a)", "CUDA C++ has no tanhh; did you mean 'tanh'?"),
        (
            "y = sum(a)",
            "sum reduces a row, and an element-wise program has no rows: declare the operator by row_reduce",
        ),
        (
            "y = max(a)",
            "max reduces a row, and an element-wise program has no rows: declare the operator by row_reduce",
        ),
    ],
)
def test_what_is_of_another_language_is_said_in_this_one(program: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        elementwise(program, name="programs_test::square")
    assert str(caught.value) == f"square: in `{program}`: {words}"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("y == a", "got 'y == a'; an assignment has one =, and == compares"),
        ("y += a", "got 'y += a'; each name is assigned once, so instead of changing `y` give the result another name"),
        ("float y = a", "got 'float y = a'; types are not written: y = ..."),
        ("y: float = a", "got 'y: float = a'; types are not written: y = ..."),
        ("y, z = a", "got 'y, z = a'; a statement assigns one name"),
        ("y = z = a", "got 'y = z = a'; a statement assigns one name"),
    ],
)
def test_what_is_no_assignment_is_said_to_be_what_it_is(program: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        elementwise(program, name="programs_test::square")
    assert str(caught.value) == f"square: expected assignments such as `y = x * x`, {words}"


def test_comments_of_both_kinds_are_no_program() -> None:
    """A word of a comment would be an input."""
    (statement,) = parse("y = a /* twice;\n b */ * 2 // of a", "square")
    assert names_in(statement.expression) == ["a"]


def test_quotients_that_are_whole_or_of_numbers_with_a_fraction_stay() -> None:
    for program in ("y = a * 1 / 2", "y = a + 4 / 2", "y = a + 1 / 2.0", "y = a + 1.5 / 2", "y = a1 / 2"):
        elementwise(program, name="programs_test::quotient")


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("((x > 0) - (x < 0)) / 2 * x", "write ((x > 0) - (x < 0)) / 2.0, or trunc("),
        ("(x > 0 ? 3 : 1) / 4 * x", "write (x > 0 ? 3 : 1) / 4.0, or trunc("),
        ("x * (j / N)", "write acc_t(j) / N, or trunc("),
        ("(j + 1) / N * x", "write acc_t(j + 1) / N, or trunc("),
        ("sum(x) * (1 / N)", "write 1.0 / N, or trunc("),
        ("x * (1 / (1 + 1))", "write 1.0 / (1 + 1), or trunc("),
        ("x * abs(j - 3) / 2 + abs(j - 3) / 2", "write abs(j - 3) / 2.0, or trunc("),
        ("x * ((3) / 2)", "(3) / 2 is 1 in CUDA C++, a division of whole numbers: write 3.0 / 2"),
        ("x * (max(j, 2) / t)", "write acc_t(max(j, 2)) / t, or trunc("),
        ("x * (t / 0)", "t / 0 divides by 0"),
        ("x * (1 << j)", "a shift must be by a number from 0 to 62: for 1 << j write acc_t(1) * exp2(acc_t(j))"),
        ("x * (j * j * N)", "j * j * N may not fit a whole number of 64 bits: write acc_t(j * j) * N"),
        ("x * (j << 40)", "j << 40 may not fit a whole number of 64 bits: write"),
        ("x * 3u", "unsigned numbers wrap around: write 3 for 3u"),
    ],
)
def test_arithmetic_of_whole_numbers_that_cpp_rounds_or_wraps_is_refused(expression: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        row_reduce(f"y = {expression} + t", indices=["t"], name="programs_test::quotient")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rows": ["weigth"]}, "`rows` names `weigth`, which the program does not read; did you mean 'weight'?"),
        ({"columns": ["w"]}, "`columns` names `w`, which the program does not read"),
        ({"indices": ["y"]}, "`indices` names `y`, which the program does not read"),
        ({"rows": ["weight"], "columns": ["weight"]}, "`rows` and `columns` both name `weight`"),
    ],
)
def test_a_name_that_the_program_does_not_read_is_refused(given: dict[str, list[str]], words: str) -> None:
    """The input that is meant would be read as an array of rows."""
    with pytest.raises(ValueError) as caught:
        row_reduce("y = x * weight", name="programs_test::named", **given)
    assert str(caught.value) == f"named: {words}"


def test_a_statement_that_does_not_end_or_pair_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"square: `y = a \+` ends within an expression; a statement ends with its line"
    ):
        elementwise("y = a +\n b", name="programs_test::square")
    with pytest.raises(ValueError, match="square: the parentheses of `y = a\\)\\+\\(b` do not pair"):
        elementwise("y = a)+(b", name="programs_test::square")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("y = x - mean(x)", "there is no mean: it is sum(x) / N"),
        ("y = x * var(x)", "there is no var: it is sum((x - m) * (x - m)) / N, after m = sum(x) / N"),
        ("y = x - amax(x)", "there is no amax: it is max(x)"),
        ("y = x / norm(x)", "there is no norm: it is sqrt(sum(x * x))"),
        ("y = x / len(x)", "there is no len: it is N"),
        ("y = argmax(x)", "there is no argmax: it is min(x == m ? j : N), after m = max(x)"),
        ("y = any(x > 0)", "there is no any: it is max(c ? 1 : 0)"),
        ("y = cumsum(x)", "there is no cumsum: a row is reduced by sum, max and min"),
        ("y = sum(x, 1)", "sum takes one argument"),
        ("y = x - x.mean()", "`x` is a number, and has no members: mean is sum(x) / N"),
        ("y = column_sm(x)", "CUDA C++ has no column_sm; did you mean 'column_sum'?"),
        ("y = x ^ j", "^ is exclusive or in CUDA C++, of whole numbers alone: write pow(x, j)"),
    ],
)
def test_what_a_row_is_not_reduced_by_is_said_in_what_it_is(program: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        row_reduce(program, name="programs_test::rows")
    assert str(caught.value) == f"rows: in `{program}`: {words}"


def test_a_backward_is_held_to_the_same_words() -> None:
    with pytest.raises(
        ValueError, match=r"square's backward: in `grad_x = grad_y \* x \*\* 2`: CUDA C\+\+ has no \*\*"
    ):
        elementwise("y = x * x", "grad_x = grad_y * x ** 2", name="programs_test::square")
    with pytest.raises(ValueError, match="rows's backward: in `grad_x = mean.grad_y.`: there is no mean: it is sum"):
        row_reduce("y = x - sum(x)", "grad_x = mean(grad_y)", name="programs_test::rows")


@pytest.mark.parametrize(
    "program",
    [
        "y = int(a) ^ 2 + (int(a) + 1) % 3 + llrint(a) % 2",
        "y = (a > 0) ^ (b > 0)",
        "y = expf(a) + __expf(a) + fmaxf(a, b) + std::exp(a)",
        "y = max(a, b) + min(a, 0) + abs(a) + fabs(a)",
        "y = convert<acc_t>(a) + frobnicate(a) + unsigned(a) + 1.e-3f * a  // of both",
    ],
)
def test_what_cuda_has_is_let_through(program: str) -> None:
    assert elementwise(program).text
    assert row_reduce("y = j % 2 == 0 ? x : (N ^ 1) * x; z = t % 2 * x", indices=["t"]).text


@pytest.mark.simulator
def test_abs_is_of_floats_as_fabs_is() -> None:
    x = torch.tensor([-1.75, 0.25, -0.0], dtype=torch.float64)
    y, z = elementwise("y = abs(x); z = fabs(x)", name="programs_test::absolute")(x)
    assert y.tolist() == z.tolist() == [1.75, 0.25, 0.0]


def test_an_option_that_there_is_not_is_refused() -> None:
    with pytest.raises(
        TypeError, match="square: there is no option `dtypes`: a program accepts all floating dtypes, and a"
    ):
        elementwise("y = x * x", name="programs_test::square", dtypes="float32")
    with pytest.raises(
        TypeError, match="rows: there is no option `refrence`; did you mean 'reference'\\?; there are reference"
    ):
        row_reduce("y = sum(x)", name="programs_test::rows", refrence=torch.sum)


def test_names_are_told_from_functions_numbers_and_words() -> None:
    assert names_in("x1 * exp(-a) + 1e-3f * INFINITY * acc_t(2) + (b == true ? x1 : .5)") == ["x1", "a", "b"]
    steps = parse("s = a * b // of both\nt = s + limit; y = t * t; z = c", "example")
    assert inputs_of(steps, ["limit"]) == ["a", "b", "c"]
    assert results_of(steps) == ["y", "z"]


def test_numbers_take_the_type_of_the_arithmetic() -> None:
    """A bare 0.5 is a double, and makes one of every float that it meets; so does fmax of a float and an int."""
    assert arithmetic("0.5 * x + 2. - .25e-3 + 1e-5") == "acc_t(0.5) * x + acc_t(2.) - acc_t(.25e-3) + acc_t(1e-5)"
    assert arithmetic("fmax(x, 0) + pow(x, -2) + x1 * 3") == "fmax(x, acc_t(0)) + pow(x, acc_t(-2)) + x1 * 3"
    assert arithmetic("x * 0.5f + a1.b") == "x * 0.5f + a1.b"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"backward": "grad_x = grad_z * x"},
            r"its backward reads `grad_z`; did you mean 'grad_y'\?; there are grad_y, x, y",
        ),
        ({"backward": "g = grad_y * x"}, "its backward must assign `grad_x`"),
        ({"results": ["z"]}, "the result `z` is never assigned"),
        ({"scalars": ["x"]}, "reads no tensor"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=f"square: .*{words}|square: {words}"):
        elementwise("y = x * x", name="programs_test::square", **options)


@pytest.mark.parametrize("name", ["x__row", "N", "j"])
def test_a_name_that_cannot_give_way_in_a_row_program_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"rows: `{name}` (has two underscores|is a name that the kernel's own text)"):
        row_reduce(f"{name} = sum(x); y = x * {name}", name="programs_test::rows")


# Names that generated code has, of types, macros, functions, operators and built-in variables.
NAMES = (
    *(
        "n",
        "k",
        "out",
        "results",
        "each",
        "operand",
        "convert",
        "scale_",
        "VECTORS",
        "Held",
        "time",
        "key",
        "clock",
        "off",
    ),
    *(
        "div",
        "uint8",
        "ptrdiff",
        "EOF",
        "xor",
        "bitand",
        "threadIdx",
        "warpSize",
        "linux",
        "unix",
        "errno",
        "stdin",
        "max",
        "exp",
    ),
)


@pytest.mark.simulator
def test_no_name_of_a_program_meets_one_of_the_compiler() -> None:
    values = [torch.tensor([[float(i)]]) for i in range(len(NAMES))]
    sums = " + ".join(NAMES)
    assert elementwise(f"y = {sums}", name="programs_test::names")(*values).item() == sum(range(len(NAMES)))
    assert row_reduce(f"y = sum({sums})", name="programs_test::row_names")(*values).item() == sum(range(len(NAMES)))
    x = torch.tensor([[1.0, 3.0]])
    assert row_reduce("max = max(x); y = max(x, max)", name="programs_test::max")(x).tolist() == [[3, 3]]


@pytest.mark.simulator
def test_messages_have_the_names_of_the_program() -> None:
    op = elementwise("y = clock * 2", name="programs_test::named_clock")
    with pytest.raises(TypeError, match="named_clock: `clock` must have dtype float16"):
        op(torch.ones(2, dtype=torch.int64))


def test_a_name_of_other_letters_is_refused() -> None:
    with pytest.raises(ValueError, match="letters: in `y = x . ñ`: `ñ` is no part of an expression"):
        elementwise("y = x * ñ", name="programs_test::letters")


def test_brackets_are_of_an_index_alone() -> None:
    with pytest.raises(ValueError, match="rows: in `y = x\\[t\\]`: each name is one element"):
        row_reduce("y = x[t]", name="programs_test::rows")
    with pytest.raises(ValueError, match="rows: in `y = s\\[t\\]`, s\\[t\\] must be an input"):
        row_reduce("s = 2 * x; y = s[t]", indices=["t"], name="programs_test::rows")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("y = x / sum(exp(x - max(x)))", "max is inside sum; assign max to a name first"),
        ("y = 2 * column_sum(x)", "column_sum must be the whole right-hand side"),
        ("s = column_sum(x); y = x - s", "is a sum over all rows, which no statement can read"),
    ],
)
def test_reductions_that_no_pass_can_make_are_refused(program: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        row_reduce(program, name="programs_test::rows")


def test_gradients_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`grad_weight` must be a column_sum\(...\), as `weight` has one value"):
        row_reduce(
            "y = x * weight",
            "grad_x = grad_y * weight; grad_weight = grad_y * x",
            columns=["weight"],
            name="programs_test::kinds",
        )


def test_a_program_without_a_name_has_the_same_one_in_every_process() -> None:
    first, second = elementwise("y = x * x * x"), elementwise("y = x * x")
    assert first.qualified_name == "cupyops_elementwise::y_" + first.qualified_name[-8:]
    assert first.qualified_name != second.qualified_name
    assert elementwise("y = x * x * x").qualified_name == first.qualified_name
