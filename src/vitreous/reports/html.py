"""The frame of every page. Names of classes and files come from strangers' disks: all of them pass through `text`, which
escapes them, and a page lets nothing run but its own script, known by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
from collections.abc import Sequence
from importlib import resources

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitreous.core.printable import printable

SIDE = 160  # of a picture
TINY = 64  # pictures up to here are kept to the pixel and enlarged without blur


def text(value: object) -> str:
    return html.escape(printable(str(value)), quote=True)


def scrolled(name: str, inside: str) -> str:
    """Something wide that scrolls by itself on a narrow screen; by keyboard too."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{text(name)}">{inside}</div>'


def asset(name: str, package: str = "vitreous.reports") -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def page(title: str, body: str, *, styles: Sequence[str] = (), script: str = "") -> str:
    """A whole page. `styles` come after the look that all pages share."""
    script = f"\n{script}" if script else ""
    seal = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"; script-src 'sha256-{seal}'" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        f"style-src 'unsafe-inline'{allowed}\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>\n{asset('assets/base.css')}{''.join(styles)}</style>\n</head>\n"
        f"<body>\n{body}\n{f'<script>{script}</script>{chr(10)}' if script else ''}</body>\n</html>\n"
    )


def picture(pixels: NDArray[np.uint8], alternative: str, side: int = SIDE) -> str:
    """An image for the page: (height, width[, 1 or 3]), made small if it is large."""
    pixelated = ' class="pixels"' if max(pixels.shape[:2]) <= TINY else ""
    return f'<img{pixelated} loading="lazy" alt="{text(alternative)}" src="{data_uri(pixels, side)}">'


def data_uri(pixels: NDArray[np.uint8], side: int = SIDE) -> str:
    """An address that holds the image itself, made small if it is large; a tiny one is kept to the pixel."""
    image = Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)
    tiny = max(image.size) <= TINY
    image.thumbnail((side, side), Image.Resampling.BILINEAR)
    out = io.BytesIO()
    if tiny:
        image.save(out, "PNG")
    else:
        image.save(out, "JPEG", quality=80)
    return f"data:image/{'png' if tiny else 'jpeg'};base64,{base64.b64encode(out.getvalue()).decode()}"
