"""Amount of memory in the machine."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Literal

INFO = Path("/proc/meminfo")


def resident_memory() -> int:
    """Bytes of memory that this process takes up now; 0 where the system doesn't say."""
    try:
        pages = int(Path("/proc/self/statm").read_text("utf-8").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_memory() -> int:
    """Bytes of memory that this process has taken up at most until now."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def system_memory(field: Literal["MemTotal", "MemAvailable"]) -> int:
    """Bytes, as Linux counts them; other systems tell only what they have in total."""
    try:
        lines = INFO.read_text("utf-8").splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    values = dict(line.split(":", 1) for line in lines)
    return 1024 * int(values[field].split()[0])
