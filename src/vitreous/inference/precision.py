"""One precision for all ranks."""

from __future__ import annotations

from vitreous.core.device import Precision, PrecisionOption, choose_precision
from vitreous.core.distributed import World, broadcast


def agreed_precision(requested: PrecisionOption, world: World) -> Precision:
    """What the first process found fast, for all: speeds differ from trial to trial, and rows of one table must not.

    Every process tries for itself all the same. On a processor that needs a limit for bfloat16, the limit holds for the
    process that found it out; another would be killed by its first product.
    """
    own = choose_precision(requested, str(world.device))
    name = broadcast(world, own.name)
    return own if name == own.name else choose_precision(name, str(world.device))
