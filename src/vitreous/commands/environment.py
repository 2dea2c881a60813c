"""What a bug report needs: versions, machine and settings, for `vitreous --version --verbose`."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from vitreous.core.processor import describe_processor

_CORE = ("torch", "numpy", "pillow", "safetensors", "tyro", "rich")
_OPTIONAL = {  # package: the extra that installs it
    "scikit-learn": "demo",
    "simplejpeg": "fast",
    "datasets": "hub",
    "starlette": "serve",
    "uvicorn": "serve",
    "python-multipart": "serve",
    "tensorboard": "track",
    "wandb": "track",
}
_SETTINGS = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "VITREOUS_DATA", "VITREOUS_MIRROR", "VITREOUS_TIMEOUT")


def describe_environment(version: str) -> str:
    rows = [("vitreous", version), ("python", f"{platform.python_implementation()} {platform.python_version()}")]
    rows += [("platform", platform.platform()), *zip(("processor", "features"), describe_processor(), strict=True)]
    rows += [(package, _version(package) or "missing") for package in _CORE if package != "torch"]
    rows += _describe_torch()
    rows += [(name, _version(name) or f"missing: pip install 'vitreous[{extra}]'") for name, extra in _OPTIONAL.items()]
    rows += [("cache", _describe_cache())]
    rows += [(name, os.environ[name]) for name in _SETTINGS if name in os.environ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _describe_torch() -> Iterator[tuple[str, str]]:
    """Its version is read from its files first: a torch that cannot be imported is what the report may be about."""
    try:
        import torch
    except Exception as error:
        yield "torch", f"{_version('torch') or 'missing'}; it cannot be imported: {type(error).__name__}: {error}"
        return
    yield "torch", str(torch.__version__)
    yield "kernels", f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    yield "accelerators", ", ".join(names) or ("mps" if torch.backends.mps.is_available() else "none")


def _describe_cache() -> str:
    """With `~` in the place of the home folder, whose name may be its owner's."""
    from vitreous.core.files import cache_dir

    place = cache_dir()
    home = Path.home()
    return f"~/{place.relative_to(home)}" if place.is_relative_to(home) else str(place)
