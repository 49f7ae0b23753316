"""benchmarks.graphs: measurements of several processes take turns on the GPU."""

import multiprocessing
from pathlib import Path

import pytest
from torch._inductor.runtime import benchmarking

from benchmarks import graphs


def measure(path: Path) -> None:
    class Nested:
        def benchmark_gpu(self, call: object) -> float:
            return call() if callable(call) else 0.0

    benchmarking.benchmarker = Nested()
    graphs.alone_on_the_gpu(path)
    measured = benchmarking.benchmarker.benchmark_gpu
    # The first call of a compiled graph measures the launches of its kernels.
    assert measured(lambda: measured(lambda: 2.0)) == 2.0


def test_a_measurement_inside_a_measurement_has_the_gpu_already(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=measure, args=(tmp_path / "lock",))
    process.start()
    process.join(20)
    ended = process.exitcode
    process.kill()
    assert ended == 0


def test_the_table_of_the_file_is_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parents[2]
    assert graphs.main(["--from", str(root / "benchmarks/results/graphs-nvidia-h200.json")]) == 0
    table = capsys.readouterr().out
    assert table.count("| `") == 2 * len(graphs.GRAPHS)
    assert table in (root / "docs/benchmarks_models.md").read_text(encoding="utf-8")
