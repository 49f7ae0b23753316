"""Plots and tables of a results file. No GPU needed."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.table import Form, losing_rows, markdown

from .documents import document, row


@pytest.mark.thorough
def test_plots_are_drawn_and_repeat_to_the_byte(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plots import draw

    first, second = (draw(document(), tmp_path / name) for name in ("first", "second"))
    assert [path.name for path in first] == ["gelu-share.svg", "gelu-sizes.svg", "host.svg", "build.svg", "lenet5.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    text = {path.stem: path.read_text(encoding="utf-8") for path in first}
    assert "PyTorch eager" in text["gelu-share"]
    assert "not measured" in text["gelu-share"]  # eager has no float32 backward
    assert "commit 0123456789" in text["host"]
    assert "31 s" in text["build"]
    assert "<dc:date>" not in text["host"]


def test_plots_need_only_the_rows_that_are_there(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plots import draw

    only = document([row("ours", 259.0)])
    only["host"], only["build"], only["lenet5"] = [], [], []
    assert [path.name for path in draw(only, tmp_path)] == ["gelu-share.svg", "gelu-sizes.svg"]


def test_the_table_shows_the_largest_size_and_the_fastest_in_bold() -> None:
    text = markdown(document())
    assert "| gelu | none | forward | bfloat16 | 268435456 | **96.9% (259.0)** | 73.1% (343.0) |" in text
    assert "| gelu | none | backward | float32 | 268435456 | **48.4% (518.0)** | – |" in text
    assert "1048576" not in text
    assert "| gelu | forward | **6.50** | 30.00 |" in text
    assert "| C++ extension | gelu | 31 s | – |" in text
    assert "| kernels | fast | 2 | 98.50 (98.00, 99.00) | 1.60 |" in text
    assert "- gelu.device, extension: nvcc is missing" in text
    assert "| gelu none forward | bfloat16 | PyTorch eager | 1048576 | 1.20 × |" in markdown(document(), "all")


def layers() -> list[dict[str, Any]]:
    """Rows of linear layers as a run leaves them: each has the shape of its first result and K in its variant."""
    rows = []
    for m, n, k in ((4096, 4096, 4096), (16384, 1, 4096)):
        for variant in (f"K={k}", f"gelu, K={k}", f"K={k}, TF32"):
            for direction, shape in (("forward", [m, n]), ("backward", [m, k]), ("forward and backward", [m, k])):
                dtype = "float32" if "TF32" in variant else "bfloat16"
                labels = {"op": "linear", "variant": variant, "direction": direction, "dtype": dtype, "shape": shape}
                rows += [row("ours", 200.0, **labels), row("eager", 250.0, **labels)]
    return rows


@pytest.mark.parametrize("form", ["largest", "all"])
def test_no_matrix_product_is_counted_in_shares_of_a_copy(form: Form) -> None:
    lines = [line for line in markdown(document(layers()), form).splitlines() if "linear" in line]
    assert lines
    assert not [line for line in lines if "%" in line]


def test_a_product_is_shown_with_its_operations_in_a_second() -> None:
    text = markdown(document(layers()), "all")
    # 2·4096³ operations forward, twice as many backward.
    for direction, rate in (("forward", 687.2), ("backward", 1374.4)):
        cells = f"| bfloat16 | 4096×4096×4096 | **200.0** | 250.0 | {rate} |"
        assert f"| linear | {direction} {cells}" in text
        assert f"| linear_gelu | {direction} {cells}" in text
    alone = [row for row in layers() if "TF32" in row["variant"]]
    text = markdown(document(alone), "all")
    assert "| linear | backward | float32 as TF32 | 4096×4096×4096 | **200.0** | 250.0 | 1374.4 |" in text
    assert "forward and backward" not in text
    assert "16384×1×4096" not in text, "the table has large products"


def test_other_dtypes_are_left_out_where_bfloat16_was_measured() -> None:
    sizes = (("bfloat16", 8), ("float16", 8), ("float16", 9), ("bfloat16", 7), ("float16", 7))
    rows = [row("ours", 200.0, dtype=dtype, shape=[size]) for dtype, size in sizes]
    text = markdown(document([*rows, row("eager", 190.0, dtype="float16", shape=[7])]), "all")
    assert "| float16 | 9 |" in text
    assert "| gelu none forward | float16 | PyTorch eager | 7 | 1.05 × |" in text, (
        "a case in which ours is slower is listed"
    )
    assert "| float16 | 8 |" not in text
    assert "TF32" not in markdown(document(layers()), "all")


def test_a_layer_that_is_measured_no_more_is_shown_by_its_time() -> None:
    gone = row("ours", 200.0, op="linear", variant="K=5", direction="forward", shape=[3, 7])
    assert "| linear | forward | bfloat16 | 3×7, K=5 | **200.0** | – |" in markdown(document([gone]), "all")


def test_every_row_of_a_layer_names_one_layer() -> None:
    """Else a table would count the operations of another layer."""
    from benchmarks.linear import SHAPES, cases, product_of

    found = [(case.labels(), product_of(case.labels())) for case in cases([2**40])]
    assert len({repr(labels) for labels, _ in found}) == len(found) == len(SHAPES) * 24
    for labels, product in found:
        assert product is not None
        assert product.variant == labels["variant"]
        m, second = labels["shape"]
        assert (m, second) == (product.m, product.n if labels["direction"] == "forward" else product.k)


def test_rows_lost_to_eager_are_listed() -> None:
    assert losing_rows(document()) == ["gelu none forward bfloat16 1048576: 20.0% longer than eager"]


def by_length() -> list[dict[str, Any]]:
    """LayerNorm's rows as a run leaves them: length by length, 1000 dividing no power of two, few rows beside many."""
    rows = []
    for n, variants in ((8192, ("affine", "add_layer_norm")), (64, ("affine",)), (1000, ("affine",))):
        for variant in variants:
            for dtype in ("float32", "bfloat16"):
                for direction in ("forward", "backward"):
                    for m in (2**28 // n, 8) if n == 8192 else (2**28 // n,):
                        labels = {"op": "layer_norm", "variant": variant, "dtype": dtype, "direction": direction}
                        rows += [row(name, m * n / 2**20, shape=[m, n], **labels) for name in ("ours", "liger")]
    return rows


def test_operators_on_rows_are_listed_where_another_is_faster_and_have_no_other_table_here() -> None:
    slower = [
        {**r, "microseconds": 0.5 * r["microseconds"]} if r["implementation"] == "liger" else r for r in by_length()
    ]
    text = markdown(document(slower), "all")
    assert "### Time on the GPU" not in text
    assert "| layer_norm affine forward | float32, bfloat16 | Liger |" in text


def test_rows_stand_at_typical_lengths_where_there_is_no_room() -> None:
    text = markdown(document(by_length()))
    lines = [line for line in text.splitlines() if line.startswith("| layer_norm")]
    assert len(lines) == 8
    assert all("32768×8192" in line for line in lines)


@pytest.mark.thorough
def test_rows_are_drawn_over_their_length(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plots import draw

    rows = by_length()
    made = document([*rows, *({**r, "direction": "tangent"} for r in rows if r["direction"] == "forward")])
    paths = {path.name: path for path in draw(made, tmp_path)}
    assert "layer_norm-rows.svg" in paths
    assert "layer_norm-share.svg" not in paths
    text = paths["layer_norm-rows.svg"].read_text(encoding="utf-8")
    for title in ("forward, affine, float32", "backward, affine, bfloat16", "row length", "Liger"):
        assert title in text
    assert "add_layer_norm" not in text
    assert "tangent" not in text
    assert text.index("forward, affine") < text.index("backward, affine")


@pytest.mark.thorough
def test_the_forward_is_drawn_first_and_the_tangent_last(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plots import draw

    labels = [{"direction": d, "shape": [n]} for d in ("tangent", "backward", "forward") for n in (2**20, 2**28)]
    paths = {path.name: path for path in draw(document([row("ours", 259.0, **of) for of in labels]), tmp_path)}
    text = paths["gelu-sizes.svg"].read_text(encoding="utf-8")
    at = [text.index(f"{d}, none") for d in ("forward", "backward", "tangent")]
    assert at == sorted(at)


def test_versions_name_liger_where_it_was_there() -> None:
    made = document()
    assert "Liger" not in markdown(made)
    made["environment"]["liger"] = "0.8.5"
    assert "Triton 3.6.0, Liger 0.8.5, Python" in markdown(made)


def test_tables_go_between_the_markers_of_a_page(tmp_path: Path) -> None:
    from benchmarks.table import BEGIN, END, insert

    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    new = insert(page, document([row("ours", 10.0), row("eager", 12.0)]))
    assert new.startswith(f"before\n{BEGIN}\n")
    assert new.endswith(f"{END}\nafter\n")
    assert "old" not in new
    assert "| gelu" in new
    for broken in ("no markers", f"{END}{BEGIN}", page + page):
        with pytest.raises(ValueError, match="must have the lines"):
            insert(broken, document([row("ours", 10.0)]))
