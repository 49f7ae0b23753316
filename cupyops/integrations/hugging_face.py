"""Hugging Face's ``kernels`` with the layers of this project: :func:`mapping`, and :func:`write_build`.

::

    with kernels.use_kernel_mapping(mapping()):
        model = kernels.kernelize(model, mode=kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE)

transformers takes the folder itself::

    model.set_use_kernels(True, KernelConfig({"RMSNorm": f"{PATH}:RMSNorm"}, use_local_kernel=True))
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernels import LocalLayerRepository

from cupyops.errors import expected

__all__ = ["LAYERS", "PATH", "mapping", "write_build"]

PATH = Path(__file__).parent / "hub"
"""The folder that ``kernels`` loads the layers from."""

LAYERS = {
    "LayerNorm": "LayerNorm",
    "RMSNorm": "RMSNorm",
    "RMSNormZeroCentered": "RMSNormZeroCentered",
    "GeLU": "GELU",
    "GeluTanh": "GELUTanh",
    "NewGELU": "GELUTanh",
    "FastGELU": "GELUTanh",
    "rotary_pos_emb": "RotaryEmbedding",
    "MLP": "GatedMLP",
}
"""The layer for each name by which transformers' modules ask for one. For ``"LayerNorm"`` and ``"MLP"``, a program registers the
modules itself: ``kernels.replace_kernel_forward_from_hub(nn.LayerNorm, "LayerNorm")``, and ``LlamaMLP`` for ``"MLP"``."""


def mapping(devices: Sequence[str] = ("cuda",)) -> dict[str, dict[str, Any]]:
    """Returns the mapping for ``register_kernel_mapping`` and ``use_kernel_mapping`` of ``kernels``, for every mode.

    Raises:
        TypeError: ``devices`` is a single name.
    """
    if isinstance(devices, str):
        raise TypeError(expected("mapping", "devices", "be a list of device types", repr(devices)))
    return {
        name: {device: LocalLayerRepository(PATH, layer_name=layer) for device in devices}
        for name, layer in LAYERS.items()
    }


def write_build(folder: Path) -> Path:
    """Writes the layers as a noarch build, as a repository of kernels has it, with a digest; returns its folder.

    The build is ``FOLDER/build/torch-cuda``. It imports cupyops, which the machine that loads it must have: ``kernels`` knows
    no dependency on packages outside of its own list. A signature is the publisher's to add.

    Raises:
        FileExistsError: there is such a build.
    """
    from kernels._rust import Digest, DigestAlgorithm

    build = folder / "build" / "torch-cuda"
    shutil.copytree(PATH, build, ignore=shutil.ignore_patterns("__pycache__"))
    path = build / "metadata.json"
    metadata = json.loads(path.read_text(encoding="utf-8"))
    files = Digest.hash_variant(DigestAlgorithm.SHA256, build).files
    metadata["digest"] = {"algorithm": "sha256", "files": files}
    path.write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
    return build
