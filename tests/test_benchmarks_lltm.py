"""The LLTM's benchmark, as far as it goes without a GPU."""

import pytest
import torch

from benchmarks import lltm


def test_a_sequence_is_measured_beside_its_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(lltm, "FEW", 10)
    rows = list(lltm.sequence_rows(3, 2, 4, torch.float32, torch.device("cpu")))
    assert [row["implementation"] for row in rows] == ["ours", "cuDNN LSTM", "cuDNN GRU"]
    assert all(row["sizes"] == [3, 2, 32, 4] and row["forward"] > 0 and row["backward"] > 0 for row in rows)
    lines = lltm.table(rows).split("\n")
    assert lines[0] == "| case | sizes | dtype | ours | cuDNN LSTM | cuDNN GRU |"
    assert lines[2].startswith("| sequence | 3×2×32×4 | float32 | ")


def test_a_version_that_is_missing_is_a_dash() -> None:
    row = {"case": "cell", "sizes": [1, 2, 3], "dtype": "float32", "forward": 1.0, "backward": 2.0}
    rows = [{**row, "implementation": "ours"}, {**row, "sizes": [4, 5, 6], "implementation": "extension"}]
    assert lltm.table(rows).split("\n")[2:] == [
        "| cell | 1×2×3 | float32 | 1.0 / 2.0 | – |",
        "| cell | 4×5×6 | float32 | – | 1.0 / 2.0 |",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        lltm.main([])
    assert caught.value.code == 2
    assert "measuring needs a CUDA GPU" in capsys.readouterr().err
