"""Reads the environment variables that turn something on or off."""

import os
from collections.abc import Sequence

__all__ = ["switched"]

_WORDS = {
    **dict.fromkeys(("1", "true", "yes", "on"), "on"),
    **dict.fromkeys(("0", "false", "no", "off"), "off"),
}


def switched(name: str, default: str = "off", others: Sequence[str] = ()) -> str:
    """Returns ``on``, ``off`` or one of `others`, as an environment variable says; the case of letters does not matter.

    Args:
        name: the variable.
        default: what holds if the variable is not set, or is empty.
        others: further values that the variable may have.

    Raises:
        ValueError: the variable has another value; the message lists the values.
    """
    given = os.environ.get(name, "").strip()
    word = given.lower()
    if not word:
        return default
    if word in _WORDS:
        return _WORDS[word]
    if word in others:
        return word
    raise ValueError(f"the environment variable {name} must be one of {', '.join([*_WORDS, *others])}, got {given!r}")
