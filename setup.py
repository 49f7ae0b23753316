"""What pyproject.toml cannot say: examples/ is in the wheel as cupyops.examples, and the long description has no
relative links, because a package index shows it without the files beside it."""

import re
from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup

ROOT = Path(__file__).parent


def without_relative_links(text: str) -> str:
    """Markdown without the list of pages, and without pictures of the project. Other links to its files are words."""
    text = re.sub(r"^## Documentation\n.*?(?=^## )", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^!\[[^]]*\]\((?!https?://)[^)]*\)\n\n?", "", text, flags=re.MULTILINE)
    return re.sub(r"(?<!!)\[([^]]+)\]\((?!https?://)[^)]*\)", r"\1", text)


# The file cupyops/examples/__init__.py is for the checkout, and is left out.
names = ["kernels_cu", "kernels_cu.*", "cupyops", "cupyops.*"]
library = find_namespace_packages(str(ROOT), include=names, exclude=["cupyops.examples*"])
setup(
    packages=[*library, *(f"cupyops.{name}" for name in find_packages(str(ROOT), include=["examples", "examples.*"]))],
    package_dir={"cupyops.examples": "examples"},
    long_description=without_relative_links((ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
