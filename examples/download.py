"""Fetching a file whose checksum is known, from the first mirror that has it."""

import hashlib
import http.client
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from examples.console import Progress, UserError
from examples.files import whole_file

__all__ = ["fetch"]

TIMEOUT_SECONDS = 30.0
CHUNK_BYTES = 1 << 18
# What a mirror can do wrong; ValueError is a malformed URL, or our own verdict on the body. Every other OSError is
# about this machine's disk, which the next mirror would not mend.
MIRROR_ERRORS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
    ValueError,
)


def fetch(name: str, folder: Path, md5: str, mirrors: Sequence[str], *, show_progress: bool = True) -> Path:
    """Download `name` into `folder` and return its path; what arrives must have the checksum `md5`.

    The mirrors are folder URLs, tried in order. The body goes to a temporary file and takes its name only once whole
    and verified; a failed attempt leaves nothing behind and nothing is resumed. If no mirror delivers, `UserError`
    says what each one did; an `OSError` means that `folder` cannot be written.
    """
    failures = []
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{name}"
        try:
            return _fetch_url(url, folder / name, md5, show_progress)
        except MIRROR_ERRORS as error:
            failures.append(f"{url}: {error}")
    raise UserError(f"could not download {name} ({'; '.join(failures) or 'no mirror was given'})")


def _fetch_url(url: str, target: Path, md5: str, show_progress: bool) -> Path:
    digest = hashlib.md5(usedforsecurity=False)
    with whole_file(target) as temporary:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response, temporary.open("wb") as file:
            announced = response.headers.get("Content-Length")
            size = int(announced) if announced else None
            with Progress(f"Downloading {target.name}", size, "B", enabled=show_progress) as progress:
                while chunk := response.read(CHUNK_BYTES):
                    digest.update(chunk)
                    file.write(chunk)
                    progress.advance(len(chunk))
        if size is not None and progress.done != size:
            raise ValueError(f"the connection ended after {progress.done:,} of {size:,} bytes")
        if digest.hexdigest() != md5:
            raise ValueError(f"expected MD5 {md5}, got {digest.hexdigest()}")
    return target
