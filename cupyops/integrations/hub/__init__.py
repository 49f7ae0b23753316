"""A kernel as Hugging Face's ``kernels`` loads one: this folder, with its ``layers`` and ``metadata.json``."""

from . import layers

__all__ = ["layers"]
