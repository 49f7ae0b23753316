"""The exception for C++ that has no translation."""

__all__ = ["NotTranslated"]


class NotTranslated(NotImplementedError):
    """A statement of host code has no translation. It is raised in place of the statement, before anything after it
    runs."""
