"""Optimises a small model of every folder of transformers that uses nn.LayerNorm, and records which places are matched.

    python -m tests.models.sweep                # all folders, into sweep.json
    python -m tests.models.sweep bert gpt2      # the sites of these folders, printed
    python -m tests.models.sweep --record bert  # these folders again, into sweep.json

Each model is built from its configuration with two layers, without weights (on the meta device), in a process of its own with a
time limit. A site is a module whose class says layer norm, RMS norm or GELU, an attribute that holds a function for GELU, or a
method that calls one of PyTorch's functions for these. A module that computes another function than its class says (QuickGELU,
an RMS norm that scales by 1 + weight) is a site that is not matched.
"""

import argparse
import ast
import importlib
import inspect
import json
import os
import re
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn

from cupyops.torch import optimize
from cupyops.torch.models.expressions import own_gelu

RESULT = Path(__file__).with_name("sweep.json")
LIMIT = 150  # seconds for a folder
MOST_CLASSES = 8  # models tried of a folder; the one with the most modules is optimised
LAYERS = re.compile(r"(num|n)_?(\w+_)?(hidden_)?(layers?|blocks?)$|^(encoder|decoder)_layers$|_depth$|^depth$")
NORM = re.compile(r"layer_?norm|rms_?norm", re.IGNORECASE)
GELU = re.compile(r"gelu", re.IGNORECASE)
GIVEN = {"vocab_size": 64, "pad_token_id": 1, "prediction_length": 24, "context_length": 48, "num_key_value_heads": 2}


def folders() -> list[str]:
    """The folders of transformers whose modeling files use nn.LayerNorm."""
    import transformers

    models = Path(transformers.__file__).parent / "models"
    files = models.glob("*/modeling_*.py")
    return sorted({f.parent.name for f in files if "nn.LayerNorm" in f.read_text(encoding="utf-8")})


def shrink(config: Any, depth: int = 0) -> Any:
    """Gives a configuration two layers, and so its parts."""
    if depth > 4:
        return config
    for name, value in GIVEN.items():  # what some configurations leave to their user
        if hasattr(config, name) and getattr(config, name) is None:
            setattr(config, name, value)
    for name, value in list(vars(config).items()):
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            shrink(value, depth + 1)
        elif LAYERS.search(name) and isinstance(value, int) and not isinstance(value, bool) and value > 2:
            setattr(config, name, 2)
            for other, given in list(vars(config).items()):
                if isinstance(given, list) and len(given) == value:
                    setattr(config, other, given[:2])
    return config


def model_classes(folder: str) -> list[type]:
    """The model classes of a folder, those without a head first."""
    from transformers import PreTrainedModel

    found = []
    package = Path(importlib.import_module(f"transformers.models.{folder}").__path__[0])
    for file in sorted(package.glob("modeling_*.py")):
        module = importlib.import_module(f"transformers.models.{folder}.{file.stem}")
        for cls in vars(module).values():
            ours = inspect.isclass(cls) and issubclass(cls, PreTrainedModel) and cls.__module__ == module.__name__
            if ours and not cls.__name__.endswith("PreTrainedModel") and getattr(cls, "config_class", None):
                found.append(cls)
    return sorted(found, key=lambda c: (not c.__name__.endswith("Model"), len(c.__name__)))


def build(cls: Any) -> nn.Module:
    """A small model, or a model of the default size where the small configuration does not fit together."""
    for change in (shrink, lambda config: config):
        try:
            with torch.device("meta"):
                return cls(change(cls.config_class()))
        except Exception as error:
            last = error
    raise last


def sites(model: nn.Module) -> Iterator[tuple[str, str, str, nn.Module]]:
    """(kind, name, what, module) of each site: a normalisation or a GELU."""
    for name, module in model.named_modules():
        cls = type(module)
        if isinstance(module, nn.LayerNorm | nn.RMSNorm) or (NORM.search(cls.__name__) and not module._modules):
            yield "norm", name, cls.__name__, module
        elif isinstance(module, nn.GELU) or (GELU.search(cls.__name__) and not list(module.children())):
            yield "gelu", name, cls.__name__, module
        else:
            for attribute, value in vars(module).items():
                function = isinstance(value, FunctionType) or "gelu" in getattr(value, "__name__", "")
                if function and own_gelu(value) is not None:
                    yield "gelu", name, f"self.{attribute}", module
            for method, function in vars(cls).items():
                inner = inspect.unwrap(function) if isinstance(function, FunctionType) else None
                for called in () if inner is None or method.startswith("__") else functions_of(inner):
                    yield "gelu" if "gelu" in called else "norm", name, f"{called} in {method}", module


def functions_of(function: FunctionType) -> Iterator[str]:
    """The functions for GELU and normalisations that a method calls, its module's own and PyTorch's."""
    if not any("gelu" in name or name in ("layer_norm", "rms_norm") for name in function.__code__.co_names):
        return
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        own = called in function.__globals__ and "gelu" in called
        if own or re.fullmatch(r"(F|(torch\.)?nn\.functional)\.(gelu|layer_norm|rms_norm)", called):
            yield called


def look(folder: str) -> dict[str, Any]:
    """Returns the findings of optimize() in the largest model of a folder."""
    largest: nn.Module | None = None
    errors = []
    for cls in model_classes(folder)[:MOST_CLASSES]:
        try:
            model = build(cls)
        except Exception as error:
            words = next((line for line in str(error).splitlines() if line.strip()), "")
            errors.append(f"{cls.__name__}: {type(error).__name__}: {words.strip()[:120]}")
            continue
        if largest is None or len(list(model.modules())) > len(list(largest.modules())):
            largest = model
    if largest is None:
        return {"error": errors[0] if errors else "no model class"}
    found = list(sites(largest))
    report = optimize(largest)
    changed = set(report._classes)
    reasons = {site.name: site.reason for site in report.skipped}
    left: Counter[str] = Counter()
    counts = {"norm": [0, 0], "gelu": [0, 0]}
    for kind, name, what, module in found:
        matched = module in changed
        counts[kind][0] += matched
        counts[kind][1] += 1
        if not matched:
            left[f"{what} at {re.sub(r'[0-9]+', '*', name)}: {reasons.get(name, 'no reason given')}"] += 1
    calls = Counter(site.operator for site in report.replaced)
    report.undo()
    return {"model": type(largest).__name__, **counts, "calls": dict(sorted(calls.items())), "left": dict(left)}


def apart(folder: str) -> dict[str, Any]:
    """look() in a process of its own, with a time limit."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        signal.alarm(LIMIT)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        try:
            result = look(folder)
        except BaseException as error:
            result = {"error": f"{type(error).__name__}: {error}"[:200]}
        with os.fdopen(writer, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"no result within {LIMIT} s"}


def summary(models: dict[str, Any]) -> dict[str, Any]:
    """The counts over all models that were built."""
    built = {name: m for name, m in models.items() if "error" not in m}
    counts = {k: [sum(m[k][i] for m in built.values()) for i in (0, 1)] for k in ("norm", "gelu")}
    matched, total = (sum(c[i] for c in counts.values()) for i in (0, 1))
    return {"folders": len(models), "built": len(built), **counts, "share": round(matched / max(total, 1), 4)}


def written(found: dict[str, Any]) -> str:
    """The results as JSON, a folder a line."""
    models = (f"  {json.dumps(name)}: {json.dumps(m, ensure_ascii=False)}" for name, m in found["models"].items())
    head = (f" {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items() if k != "models")
    return ",\n".join(["{\n" + next(head), *head, ' "models": {\n' + ",\n".join(models)]) + "\n }\n}\n"


def main() -> None:
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="*", help="only these, printed and not recorded")
    parser.add_argument("--record", action="store_true", help="record these folders beside the others")
    arguments = parser.parse_args()
    chosen = arguments.folder
    torch.set_num_threads(1)
    models = {}
    for folder in chosen or folders():
        models[folder] = apart(folder)
        print(folder, json.dumps(models[folder], indent=1 if chosen else None), flush=True)
    if chosen and arguments.record:
        models = dict(sorted((json.loads(RESULT.read_text(encoding="utf-8"))["models"] | models).items()))
    found = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "summary": summary(models),
        "models": models,
    }
    print(json.dumps(found["summary"]))
    if not chosen or arguments.record:
        RESULT.write_text(written(found), encoding="utf-8")


if __name__ == "__main__":
    main()
