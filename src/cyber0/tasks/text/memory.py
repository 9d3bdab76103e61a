"""How much memory a model needs, against how much there is."""

import os
from pathlib import Path
from typing import Any

import torch

from cyber0.errors import InvalidModel

__all__ = ["available", "check", "readable"]


def available(device: torch.device | str = "cpu") -> int | None:
    """How many bytes are free on a device; None where the system does not tell.

    >>> available("cpu") > 2**20
    True
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    lines = Path("/proc/meminfo")
    if lines.exists():
        found = dict(line.split(":", 1) for line in lines.read_text().splitlines())
        return int(found["MemAvailable"].split()[0]) * 1024
    names: Any = getattr(os, "sysconf_names", {})
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in names else None


def check(parameters: int, copies: int, device: torch.device | str = "cpu") -> None:
    """Refuse a model of which so many float32 copies do not fit: 1 to load it, 3 for a client (w, w + mu z, w - mu z).

    >>> check(parameters=10**15, copies=3)
    Traceback (most recent call last):
    cyber0.errors.InvalidModel: 3 float32 copies of 1,000,000,000,000,000 parameters need 11,175,870.9 GiB, and ... \
GiB are free on cpu: use a smaller model, an adapter as in sst2(adapter='lora'), or another machine
    """
    need, free = 4 * parameters * copies, available(device)
    if free is not None and need > free:
        raise InvalidModel(
            f"{copies} float32 copies of {parameters:,} parameters need {readable(need)}, and {readable(free)} are "
            f"free on {device}: use a smaller model, an adapter as in sst2(adapter='lora'), or another machine"
        )


def readable(size: float) -> str:
    """Bytes in GiB.

    >>> readable(3 * 2**29)
    '1.5 GiB'
    """
    return f"{size / 2**30:,.1f} GiB"
