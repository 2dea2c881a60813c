"""From an image file to pixels: orientation honoured, every mode brought to the channels a model wants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vitreous.errors import VitreousError

ImageLike = str | Path | Image.Image | np.ndarray


def decode(image: ImageLike, channels: int = 3) -> Image.Image:
    """A picture with 3 (RGB) or 1 (grey) channels and 8 bits, upright."""
    if channels not in (1, 3):
        raise VitreousError(f"an image file gives 1 or 3 channels, not {channels}; pass a preprocessed tensor instead")
    if isinstance(image, np.ndarray):
        return _from_array(image, channels)
    if isinstance(image, Image.Image):
        return _to_channels(image, channels)
    if not isinstance(image, (str, Path)):
        raise VitreousError(f"expected an image or its path, not {type(image).__name__}")
    path = Path(image)
    if path.is_dir():
        raise VitreousError(f"{path}: is a folder, not an image")
    try:
        with Image.open(path) as opened:
            return _to_channels(ImageOps.exif_transpose(opened), channels)
    except FileNotFoundError as error:
        raise VitreousError(f"{path}: no such image") from error
    except UnidentifiedImageError as error:
        raise VitreousError(f"{path}: not an image that Pillow can read") from error
    except Image.DecompressionBombError as error:
        raise VitreousError(f"{path}: too many pixels to be safe ({error})") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise VitreousError(f"{path}: broken image ({error})") from error


def _to_channels(image: Image.Image, channels: int) -> Image.Image:
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        image = _eight_bits(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:  # see-through parts lie over white
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB" if channels == 3 else "L")


def _eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey, scaled; Pillow's own conversion clips, which turns such pictures white."""
    values = np.asarray(image, dtype=np.float64)
    top = 255.0 if values.max(initial=0.0) <= 255 else 65535.0
    return Image.fromarray(np.round(np.clip(values, 0, top) * (255.0 / top)).astype(np.uint8))


def _from_array(array: np.ndarray, channels: int) -> Image.Image:
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise VitreousError(
            f"array of {array.dtype} with shape {array.shape}: expected uint8, height x width x 3 (or grey, height x width)"
        )
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    return _to_channels(Image.fromarray(array), channels)
