"""The processor's name, and which of its instructions decide about speed."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from vitreous.core.device import processor_name

_CPUINFO = Path("/proc/cpuinfo")
# Of the many flags of a processor, those that decide which kernels torch and its libraries choose.
_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "asimd", "bf16", "i8mm", "sve")


def describe_processor() -> tuple[str, str]:
    """Its name with the number of cores, and its features by their Linux names; "not known" where the system does not tell."""
    fields = _read_cpuinfo()
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return f"{processor_name()}, {os.cpu_count()} cores", " ".join(
        feature for feature in _FEATURES if feature in flags
    ) or "not known"


@functools.cache
def is_amd_with_avx512() -> bool:
    """False where the system does not tell."""
    fields = _read_cpuinfo()
    return fields.get("vendor_id") == "AuthenticAMD" and "avx512f" in fields.get("flags", "").split()


def _read_cpuinfo() -> dict[str, str]:
    """What Linux says of the last core; nothing elsewhere."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
