"""torchtitan's own trainer on CPUs: ``python -m tests.integrations.titan RANK FOLDER RANKS TENSOR_PARALLEL OURS``.

The model, its parallelism, loss, optimizer and loop are torchtitan's, and so is its way to take what OURS, "yes" or "no", asks
for. Random tokens take the place of its data and tokenizer, which it reads from files that its wheel does not have, and
:class:`Cpu` that of ``torch.cuda``, of which the trainer asks the name and the memory of a device. One line is JSON: the
losses, and how often cupyops' operators were called.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode

ROWS, LENGTH, STEPS = 4, 32, 3


class Cpu:
    """A stand-in for ``torch.cuda`` on a CPU."""

    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    get_device_name = staticmethod(lambda device: "CPU")
    get_device_properties = staticmethod(lambda device: SimpleNamespace(name="CPU", total_memory=2**34))
    memory_stats = staticmethod(lambda device: {})
    set_device = reset_peak_memory_stats = empty_cache = synchronize = staticmethod(lambda *_: None)


class Calls(TorchDispatchMode):
    """Counts the calls of cupyops' operators."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "cupyops":
            self.found[func._schema.name.partition("::")[2]] += 1
        return func(*args, **(kwargs or {}))


class Tokens:
    """A loader of random tokens."""

    def __init__(self, rank: int, vocabulary: int) -> None:
        self.generator, self.vocabulary = torch.Generator().manual_seed(rank), vocabulary

    def __iter__(self) -> Any:
        while True:
            drawn = torch.randint(self.vocabulary, (ROWS, LENGTH + 1), generator=self.generator)
            yield {"input": drawn[:, :-1].contiguous()}, drawn[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def summing(parallelize: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Makes FSDP reduce gradients by plain sums: gloo cannot scale a sum."""
    found = parallelize(*args, **kwargs)
    for module in found.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
    return found


def counting(trainer: Any, calls: Calls, losses: list[float]) -> Any:
    """Makes the trainer's steps count calls and keep their losses."""
    step = trainer.forward_backward_step

    def counted(self: Any, **given: Any) -> Any:
        with calls:
            loss = step(self, **given)
        losses.append(float(loss.detach()))
        return loss

    return patch.object(trainer, "forward_backward_step", counted)


def by_0_2(folder: str, degree: int, ours: bool, calls: Calls, losses: list[float]) -> None:
    import torchtitan.train as train
    from torchtitan.models.llama3 import get_train_spec
    from torchtitan.protocols.train_spec import register_train_spec

    spec = get_train_spec()
    of_model = spec.model_args["debugmodel"]
    of_model.n_layers = 2
    spec.build_tokenizer_fn = spec.state_dict_adapter = None
    spec.build_dataloader_fn = lambda dp_rank, **_: Tokens(dp_rank, of_model.vocab_size)
    spec.parallelize_fn = partial(summing, spec.parallelize_fn)
    register_train_spec("llama3_of_random_tokens", spec)
    given = ["--model.name", "llama3_of_random_tokens", "--model.flavor", "debugmodel", "--debug.seed", "0"]
    given += ["--training.steps", str(STEPS), "--training.local_batch_size", str(ROWS)]
    given += ["--training.seq_len", str(LENGTH), "--training.mixed_precision_param", "float32"]
    given += ["--parallelism.tensor_parallel_degree", str(degree), "--job.dump_folder", folder]
    if ours:
        given += ["--experimental.custom_import", "cupyops.integrations.torchtitan", "--model.converters", "cupyops"]
    parse = train.ConfigManager.parse_args
    with (
        patch.object(train.ConfigManager, "parse_args", lambda self: parse(self, given)),
        counting(train.Trainer, calls, losses),
    ):
        train.main(train.Trainer)


def by_0_3(folder: str, degree: int, ours: bool, calls: Calls, losses: list[float]) -> None:
    from dataclasses import dataclass

    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.config import OverrideConfig
    from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel
    from torchtitan.trainer import Trainer

    config = llama3_debugmodel()
    spec = config.model_spec
    assert spec is not None

    # Its flex attention has no gradient on a CPU.
    for _, _, parent, name in spec.model.traverse(FlexAttention.Config):
        setattr(parent, str(name), ScaledDotProductAttention.Config())

    class Loader(Tokens, BaseDataLoader):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):
            pass

        def __init__(self, config: Any, dp_rank: int, **_: Any) -> None:
            super().__init__(dp_rank, spec.model.vocab_size)

    class Tokenizer(BaseTokenizer):
        @dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):
            pass

        def __init__(self, config: Any, tokenizer_path: str) -> None:
            super().__init__()

        encode = decode = get_vocab_size = None  # type: ignore[assignment]

    config.dataloader, config.tokenizer, config.dump_folder = Loader.Config(), Tokenizer.Config(), folder
    config.training.local_batch_size, config.training.seq_len, config.training.steps = ROWS, LENGTH, STEPS
    config.training.mixed_precision_param = "float32"
    config.parallelism.tensor_parallel_degree, config.debug.seed = degree, 0
    config.parallelism.spmd_backend = "partial_dtensor"  # PyTorch 2.13 lacks what the default needs
    spec.parallelize_fn, spec.state_dict_adapter = partial(summing, spec.parallelize_fn), None
    if ours:
        config.override = OverrideConfig(imports=["cupyops.integrations.torchtitan.rms_norm"])
    with (
        counting(Trainer, calls, losses),
        patch("torchtitan.distributed.utils.set_pg_timeouts"),  # by a function that PyTorch 2.13 does not have
    ):
        trainer = config.build()
        trainer.train()
        trainer.close()
    dist.destroy_process_group()


def main(rank: int, folder: str, ranks: int, degree: int, ours: bool) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": Path(folder, "port").read_text(encoding="utf-8")}
    torch.set_num_threads(1)
    with (
        patch("torch._utils._get_available_device_type", lambda: "cpu"),
        patch("torch._utils._get_device_module", lambda _: Cpu()),
    ):
        import torchtitan.train  # noqa: F401
    calls, losses = Calls(), list[float]()
    of_version = by_0_2 if find_spec("torchtitan.protocols.model_converter") else by_0_3
    of_version(folder, degree, ours, calls, losses)
    print(json.dumps({"losses": losses, "calls": calls.found}), flush=True)


if __name__ == "__main__":
    _, rank, folder, ranks, degree, ours = sys.argv
    main(int(rank), folder, int(ranks), int(degree), ours == "yes")
