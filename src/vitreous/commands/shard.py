from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.commands.types import BadImages
from vitreous.core.files import user_path

if TYPE_CHECKING:
    from vitreous.data.shards.writer import ShardReport

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def shard(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    shard_size: str = "256MB",
    seed: int = 0,
    bad_images: BadImages = "stop",
    full_check: bool = False,
) -> ShardReport:
    """Write a data set as tar shards, to stream from disk or from S3.

    In the webdataset layout. The images' bytes are copied unchanged, in a shuffled order: a stream can only be shuffled
    a little when it is read. The same data and seed give the same bytes. OUT is written whole or not at all.

    Example: vitreous shard photos/ shards/ --shard-size 100MB

    Args:
        data: a folder, a manifest, shards, builtin:NAME or the name of a known set.
        out: the folder to write, which must be new or empty.
        shard_size: how large a shard may become, as 256MB or 1GB.
        seed: random seed of the order.
        full_check: decode every image to its last pixel, not only its header; slower, and finds truncated images.
    """
    from vitreous.data.shards.writer import shard_data

    return shard_data(
        data, user_path(out), shard_bytes=_bytes(shard_size), seed=seed, bad_images=bad_images, full_check=full_check
    )


def _bytes(text: str) -> int:
    import re

    from vitreous.core.errors import VitreousError

    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS or (size := round(float(match[1]) * _UNITS[match[2].upper()])) < 1:
        raise VitreousError(f"--shard-size {text}: not a size; write 256MB or 1GB")
    return size
