"""The processor's name, and which of its instructions decide about speed."""

from __future__ import annotations

import os
from pathlib import Path

from vitreous.core.device import processor_name

_CPUINFO = Path("/proc/cpuinfo")
# Of the many flags of a processor, those that decide which kernels torch and its libraries choose.
_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "asimd", "bf16", "i8mm", "sve")


def describe_processor() -> tuple[str, str]:
    """Its name with the number of cores, and its features by their Linux names; "not known" where the system does not tell."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        lines = []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return f"{processor_name()}, {os.cpu_count()} cores", " ".join(
        feature for feature in _FEATURES if feature in flags
    ) or "not known"
