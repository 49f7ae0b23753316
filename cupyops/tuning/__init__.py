"""Choosing the fastest of several launches, and keeping what was chosen."""

from .records import load, save

__all__ = ["load", "save"]
