"""What pyproject.toml cannot say: examples/ is in the wheel as cupyops.examples, and the long description has no
relative links, because a package index shows it without the files beside it.

The public address of the repository is a matter of who publishes: ``CUPYOPS_PROJECT_URL=https://HOST/OWNER/cupyops`` at
the build gives the package its project URLs, and makes links and pictures absolute. Without it the links are words.
"""

import os
import re
from pathlib import Path

from setuptools import find_namespace_packages, find_packages, setup

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^]]*)\]\((?!https?://|#)([^)]*)\)")


def project_urls(home: str) -> dict[str, str]:
    """The links beside a package: the repository's pages at the hosts of git repositories have these paths."""
    pages = {"Documentation": "/blob/main/docs/index.md", "Changelog": "/blob/main/CHANGELOG.md", "Issues": "/issues"}
    return {"Homepage": home, "Source": home} | {name: home + path for name, path in pages.items()} if home else {}


def with_absolute_links(text: str, home: str) -> str:
    """Markdown whose links to files and pictures of the project lead into the repository at an address."""
    return LINK.sub(lambda m: f"{m[1]}[{m[2]}]({home}/{'raw' if m[1] else 'blob'}/main/{m[3]})", text)


def without_relative_links(text: str) -> str:
    """Markdown without the list of pages, and without pictures of the project. Other links to its files are words."""
    text = re.sub(r"^## Documentation\n.*?(?=^## )", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^!\[[^]]*\]\((?!https?://)[^)]*\)\n\n?", "", text, flags=re.MULTILINE)
    return LINK.sub(lambda m: m[2], text)


home = os.environ.get("CUPYOPS_PROJECT_URL", "").rstrip("/")
if home and not home.startswith("https://"):
    raise SystemExit(f"CUPYOPS_PROJECT_URL must begin with https://, got {home!r}")
readme = (ROOT / "README.md").read_text(encoding="utf-8")
# The file cupyops/examples/__init__.py is for the checkout, and is left out.
names = ["kernels_cu", "kernels_cu.*", "cupyops", "cupyops.*"]
library = find_namespace_packages(str(ROOT), include=names, exclude=["cupyops.examples*"])
setup(
    packages=[*library, *(f"cupyops.{name}" for name in find_packages(str(ROOT), include=["examples", "examples.*"]))],
    package_dir={"cupyops.examples": "examples"},
    long_description=with_absolute_links(readme, home) if home else without_relative_links(readme),
    long_description_content_type="text/markdown",
    project_urls=project_urls(home),
)
