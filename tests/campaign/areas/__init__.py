"""The areas of the campaign, and the backends on which this machine can run them."""

import torch

from cupyops.simulator import host

from ..engine import Area
from .exports import export
from .files import damaged_bundle, damaged_cache
from .operators import call, derivative, wrong_call
from .processes import fork, kill
from .programs import offset, program
from .running import lanes, streams, threads
from .texts import declaration, mutated_text
from .traits import trait

__all__ = ["AREAS", "present"]

ON_CPU, WITH_KERNELS, ALL = ("reference",), ("simulator", "cuda"), ("reference", "simulator", "cuda")

AREAS = (
    Area("declarations", declaration, 400, ON_CPU),
    Area("mutated texts", mutated_text, 200, ON_CPU),
    Area("operators", call, 60, ALL),
    Area("errors", wrong_call, 100, ALL),
    Area("derivatives", derivative, 30, ALL),
    Area("threads", threads, 10, WITH_KERNELS),
    Area("streams", streams, 20, ("cuda",)),
    Area("traits", trait, 12, ("simulator",)),
    Area("programs", program, 8, WITH_KERNELS),
    Area("offsets", offset, 60, ALL),
    Area("exports", export, 20, ON_CPU),
    Area("lanes", lanes, 8, ("simulator",)),
    Area("forks", fork, 2, ("simulator",)),
    Area("kills", kill, 2, ("simulator",)),
    Area("damaged caches", damaged_cache, 200, ON_CPU),
    Area("damaged bundles", damaged_bundle, 200, ON_CPU),
)


def present() -> tuple[str, ...]:
    """The backends of this machine."""
    found = ["reference"]
    if not host.missing():
        found.append("simulator")
    if torch.cuda.is_available():
        found.append("cuda")
    return tuple(found)
