"""--parallel: two processes of torchrun reach the numbers of one process, and continue after a kill, on a CPU with
gloo."""

import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.tensor import DTensor, Partial, Replicate

from examples import char_gpt, lenet5
from examples.checkpoints import KEPT, Checkpoints
from examples.command import CHECKPOINTS, UserError
from examples.gpt.model import OPERATORS, CharGPT
from examples.gpt.plans import split_matrices, sum_gradients
from examples.gpt.text import Share
from examples.parallel import devices_of
from tests.examples.example_support import Example, gpt_arguments, interrupt, lenet5_arguments, status

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]
CLOCKS = ("seconds", "train_seconds", "test_seconds", "gpu")


def records(out: Path) -> list[dict[str, Any]]:
    """The numbers of a run's metrics.json, without times."""
    metrics = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
    found = metrics.get("evaluations") or metrics["epochs"]
    return [{key: value for key, value in record.items() if key not in CLOCKS} for record in found]


@contextmanager
def launched(**more: object) -> Iterator[None]:
    """This process is the only one of a launch by torchrun. more: other variables of the environment."""
    names = {"RANK": 0, "LOCAL_RANK": 0, "GROUP_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
    names |= {"TORCHELASTIC_RUN_ID": "one", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0, **more}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, str(value))
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The records of the transformer trained in one process."""
    out = tmp_path_factory.mktemp("one") / "run"
    assert char_gpt.main(gpt_arguments(out)) == 0
    return records(out)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the runs of tests/examples/ranks.py, and what they printed."""
    folder = tmp_path_factory.mktemp("ranks")
    with launched(), pytest.MonkeyPatch.context() as patch:
        Example("char_gpt").within(patch, 3, interrupt)
        assert status(char_gpt.main, *gpt_arguments(folder / "one_to_two", "--parallel", "ddp")) == 130
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "1", "--monitor-interval", "0.1", "-m", "tests.examples.ranks", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def close(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """The numbers are the same within the order of sums."""
    assert len(found) == len(wanted) == 3
    for record, right in zip(found, wanted, strict=True):
        assert record == pytest.approx(right, rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["ddp", "fsdp", "tp"])
def test_two_processes_come_to_the_losses_of_one(way: str, ran: tuple[Path, str], one: list[dict[str, Any]]) -> None:
    close(records(ran[0] / way), one)


def test_gradients_of_whole_parameters_are_summed_before_they_are_clipped() -> None:
    """PyTorch 2.11 left gradients that are partial sums as large as they were."""
    with launched():
        mesh = dist.init_device_mesh("cpu", (1,))
        parameter = nn.Parameter(DTensor.from_local(torch.ones(3), mesh, [Replicate()]))
        parameter.grad = DTensor.from_local(torch.full((3,), 2.0), mesh, [Partial()])
        module = nn.Module()
        module.weight = parameter
        sum_gradients(module)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        found: Any = parameter.grad
        assert found.placements == (Replicate(),)
        torch.testing.assert_close(found.to_local(), torch.full((3,), 3**-0.5), atol=1e-5, rtol=0)


@pytest.mark.thorough
def test_batches_that_ranks_cannot_halve_have_the_gradient_of_one_process(
    ran: tuple[Path, str], tmp_path: Path, small_digits: None
) -> None:
    assert lenet5.main(lenet5_arguments(tmp_path / "out", "--batch-size", 31)) == 0
    close(records(ran[0] / "lenet5"), records(tmp_path / "out"))


@pytest.mark.thorough
def test_a_run_goes_on_after_a_killed_rank_with_the_bits_of_an_unbroken_one(ran: tuple[Path, str]) -> None:
    folder, output = ran
    assert f"output:  {folder / 'killed'}, going on after step 4" in output
    assert records(folder / "killed") == records(folder / "ddp")
    assert tensors(folder / "killed") == tensors(folder / "ddp")


def tensors(out: Path) -> list[Any]:
    """The parameters of the last checkpoint."""
    dcp_to_torch_save(out / CHECKPOINTS / "00000012", out / "last.pt")
    return [x.tolist() for x in torch.load(out / "last.pt", weights_only=True)["model"].values()]


@pytest.mark.thorough
def test_two_processes_print_and_log_as_one(ran: tuple[Path, str]) -> None:
    folder, output = ran
    assert output.count("ranks:   2, --parallel tp\n") == output.count(f"output:  {folder / 'tp'}\n") == 1
    assert output.count("tokens per second: ") == 5
    assert len(list((folder / "tp" / "tensorboard").iterdir())) == 1


@pytest.mark.thorough
def test_a_checkpoint_of_one_process_goes_on_in_two(ran: tuple[Path, str], one: list[dict[str, Any]]) -> None:
    folder, output = ran
    assert f"output:  {folder / 'one_to_two'}, going on after step 8" in output
    close(records(folder / "one_to_two"), one)


def copied(ran: tuple[Path, str], to: Path) -> list[Path]:
    """The two checkpoints in a copy of a finished run under tensor parallelism."""
    shutil.copytree(ran[0] / "tp" / CHECKPOINTS, to / CHECKPOINTS)
    found = sorted((to / CHECKPOINTS).iterdir())
    assert [path.name for path in found] == ["00000008", "00000012"]
    assert len(found) == KEPT
    return found


def damage_file(path: Path) -> None:
    contents = path.read_bytes()
    path.write_bytes(contents[:-9] + bytes([contents[-9] ^ 1]) + contents[-8:])


@pytest.mark.thorough
def test_a_damaged_checkpoint_of_two_is_named_and_one_process_takes_the_one_before(
    ran: tuple[Path, str], one: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    _, last = copied(ran, out)
    damage_file(last / "__1_0.distcp")
    (out / CHECKPOINTS / "00000016.part").mkdir()  # of a run that was killed while it wrote
    with launched():
        assert status(char_gpt.main, *gpt_arguments(out, "--parallel", "fsdp", "--resume")) == 0
    output = capsys.readouterr().out
    assert f"{last} is damaged (the SHA-256 of __1_0.distcp differs); taking the checkpoint before it" in output
    assert "going on after step 8" in output
    close(records(out), one)
    assert sorted(path.name for path in (out / CHECKPOINTS).iterdir()) == ["00000008", "00000012"]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["removed", "no object"])
def test_a_run_without_a_whole_checkpoint_is_refused(
    fault: str, ran: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in copied(ran, tmp_path):
        if fault == "removed":
            (path / "digests.json").unlink()
        else:
            (path / "digests.json").write_text("[]")
    with launched():
        assert status(char_gpt.main, *gpt_arguments(tmp_path, "--parallel", "ddp", "--resume")) == 2
    told = capsys.readouterr()
    assert f"error: {tmp_path / CHECKPOINTS} has no whole checkpoint; leave out --resume to begin anew" in told.err
    reason = {"removed": "No such file or directory", "no object": "digests.json is no JSON object"}[fault]
    assert told.out.count(f"is damaged ({reason})") == KEPT


@pytest.mark.thorough
def test_a_restart_does_not_go_on_with_the_run_of_an_earlier_launch(
    ran: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copied(ran, tmp_path / "run")
    with launched(TORCHELASTIC_RESTART_COUNT=1), pytest.MonkeyPatch.context() as patch:
        Example("char_gpt").within(patch, 1, interrupt)
        assert status(char_gpt.main, *gpt_arguments(tmp_path / "run", "--parallel", "ddp")) == 130
    assert "(an earlier run's files moved to " in capsys.readouterr().out
    assert (tmp_path / "run" / "earlier-1" / CHECKPOINTS / "00000012").is_dir()


def test_a_failed_write_names_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fabric = Namespace(is_global_zero=True, barrier=lambda: None)
    checkpoints = Checkpoints(tmp_path / "file" / "run", fabric, print)
    with pytest.raises(UserError, match=r"00000004 cannot be written: Not a directory"):
        checkpoints.save(4, {"model": nn.Linear(1, 1)}, {})


MISUSES = {
    "--parallel ddp": (0, "--parallel ddp needs the processes that torchrun starts: torchrun --nproc-per-node 2 -m"),
    "": (2, "torchrun started 2 processes; add --parallel ddp|fsdp|tp"),
    "--parallel tp --compare": (2, "--compare works in one process; leave out --parallel"),
    "--parallel tp --resume": (2, "--resume: there is no {out}/checkpoints; leave out --resume to begin"),
    "--resume": (0, "go on from {out}/checkpoints with torchrun and --parallel, in one process or several"),
}


@pytest.mark.parametrize("arguments", MISUSES)
def test_a_wrong_launch_is_said_in_one_line_by_the_first_rank(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, words = MISUSES[arguments]
    if world:
        for name, value in {
            "RANK": 0,
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": world,
            "TORCHELASTIC_RUN_ID": 1,
        }.items():
            monkeypatch.setenv(name, str(value))
    else:
        (tmp_path / CHECKPOINTS).mkdir()
    command = [*arguments.split(), "--out", tmp_path]
    assert status(char_gpt.main, *command) == 2
    err = capsys.readouterr().err
    assert words.format(out=tmp_path) in err
    assert err.count("\n") == 1
    if world:
        monkeypatch.setenv("RANK", "1")
        assert status(char_gpt.main, *command) == 2
        assert capsys.readouterr().err == ""


def test_ranks_that_do_not_divide_are_refused_by_option() -> None:
    fabric = Namespace(world_size=3, global_rank=0)
    with pytest.raises(UserError, match="--batch-size must be a multiple of the 3 processes of torchrun, got 16"):
        Share(fabric, "fsdp", 16)
    assert Share(fabric, "tp", 16).rows == slice(0, 16)
    model = CharGPT(9, context=8, layers=1, heads=2, width=4, operators=OPERATORS["torch"])
    for ranks, words in ((3, "a --heads that its 3 processes divide, got 2"), (16, "--heads")):
        with pytest.raises(UserError, match=words):
            split_matrices(model, Namespace(size=lambda ranks=ranks: ranks))


def test_a_gpu_for_each_process_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 0, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    gpu = torch.device("cuda", 0)
    with pytest.raises(UserError, match="use --device cuda, not cuda:1"):
        devices_of(gpu, Namespace(device="cuda:1"))
    with pytest.raises(UserError, match="torchrun started 2 processes on a machine with 1 GPUs; each needs its own"):
        devices_of(gpu, Namespace(device="auto"))
    assert devices_of(torch.device("cpu"), Namespace(device="cpu")) == {"devices": 2, "num_nodes": 2}


@pytest.mark.gpu
@pytest.mark.multi_gpu
@pytest.mark.parametrize("way", ["ddp", "fsdp", "tp"])
def test_two_gpus_come_to_the_losses_of_one(way: str, tmp_path: Path) -> None:
    """Two ranks use NCCL, and continue from a checkpoint of two."""
    on_gpu = ("--device", "cuda", "--no-amp")
    assert char_gpt.main(gpt_arguments(tmp_path / "one", *on_gpu)) == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NCCL_NVLS_ENABLE": "0"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    for more in ((), ("--resume",)):
        arguments = gpt_arguments(tmp_path / "two", *on_gpu, "--parallel", way, *more)
        done = subprocess.run(
            [*command, "examples.char_gpt", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
        shutil.rmtree(tmp_path / "two" / CHECKPOINTS / "00000012")  # the second run goes on after step 8
    for record, right in zip(records(tmp_path / "two"), records(tmp_path / "one"), strict=True):
        assert record == pytest.approx(right, rel=1e-3)
