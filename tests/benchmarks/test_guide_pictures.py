"""The pictures of the guides are those of the committed data, small, and on a page."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.guide_pictures import FOLDER, PICTURES

DOCS = Path(__file__).parents[2] / "docs"


def test_every_picture_has_a_drawing_and_a_page() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(PICTURES)
    for name in PICTURES:
        assert f"](plots/guides/{name}.svg)" in (DOCS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.simulator if n == "live" else ()) for n in PICTURES]
)
def test_a_picture_is_that_of_the_committed_data(name: str) -> None:
    if name == "onnx":
        pytest.importorskip("onnxscript", minversion="0.7")
        pytest.importorskip("onnxruntime")
    drawn = PICTURES[name]()
    assert drawn == (FOLDER / f"{name}.svg").read_text(encoding="utf-8"), "make figures"
    assert len(drawn) < 15_000
    ElementTree.fromstring(drawn)
