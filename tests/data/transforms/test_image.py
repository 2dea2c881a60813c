from __future__ import annotations

import warnings

import numpy as np
import pytest
from PIL import Image, ImageOps
from sample_images import encoded, photo

from vitreous.core.errors import VitreousError
from vitreous.data.transforms import image as images
from vitreous.data.transforms.decode import PIXELS, BadImage, decode
from vitreous.data.transforms.image import (
    JPEG,
    crop,
    flip,
    open_image_data,
    pad,
    resize,
    size_of,
    to_bytes,
    to_image,
    to_tensor,
)

DECODERS = ["simplejpeg", "Pillow"]


@pytest.fixture(params=DECODERS)
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the faster decoder and without it."""
    if request.param == "Pillow":
        monkeypatch.setattr(images, "simplejpeg", None)
    else:
        pytest.importorskip("simplejpeg")
    return str(request.param)


def quick(content: bytes) -> JPEG:
    image = open_image_data(content, 3, "x.jpg", quick=True)
    assert isinstance(image, JPEG)
    return image


def difference(ours: images.ImageData, theirs: Image.Image) -> np.ndarray:
    return np.abs(to_bytes(ours).astype(int) - np.asarray(theirs.convert("RGB")).astype(int))


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 30}])
def test_the_same_pixels_as_pillow(decoder: str, subsampling: int, options: dict[str, object]) -> None:
    content = encoded(photo(61, 83), subsampling=subsampling, **options)
    image = quick(content)
    assert size_of(image) == (61, 83)
    assert difference(crop(image, (0, 0, 61, 83)), decode(content)).max() <= 1
    part = crop(image, (5, 9, 40, 50))
    assert difference(part, decode(content).crop((9, 5, 59, 45))).max() <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_in_every_orientation(decoder: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encoded(photo(48, 80), exif=exif, quality=95)
    with Image.open(__import__("io").BytesIO(content)) as raw:
        expected = ImageOps.exif_transpose(raw).convert("RGB")
    image = quick(content)
    assert size_of(image) == (expected.height, expected.width)
    box = (4, 6, 30, 33)
    assert difference(crop(image, box), expected.crop((6, 4, 39, 34))).max() <= 1
    assert difference(resize(image, 20, 22, "bilinear", box), expected.crop((6, 4, 39, 34)).resize((22, 20), 2)).max() <= 2


def test_an_orientation_that_is_written_late(decoder: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(photo(48, 80), exif=exif)
    filler = b"\xff\xec\xff\xff" + bytes(65533)
    assert size_of(quick(content[:2] + 2 * filler + content[2:])) == (80, 48)


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(30, 40), (100, 120), (61, 83)])
def test_resize_within_a_level_of_pillow(decoder: str, how: str, size: tuple[int, int]) -> None:
    content = encoded(photo(61, 83))
    expected = decode(content).resize((size[1], size[0]), images.FILTERS[how])
    assert difference(resize(quick(content), *size, how), expected).max() <= 1


@pytest.mark.parametrize("how", ["lanczos", "nearest", "box"])
def test_other_filters_are_pillows_own(decoder: str, how: str) -> None:
    content = encoded(photo(61, 83))
    expected = decode(content).crop((3, 2, 70, 60)).resize((31, 29), images.FILTERS[how])
    assert difference(resize(quick(content), 29, 31, how, (2, 3, 58, 67)), expected).max() == 0


def test_scaled_decoding_is_close(decoder: str) -> None:
    image = photo(1600, 1200, seed=3)
    content = encoded(image, quality=90)
    for box in ((0, 0, 1600, 1200), (131, 77, 901, 703)):
        top, left, height, width = box
        exact = decode(content).crop((left, top, left + width, top + height)).resize((64, 64), Image.Resampling.BILINEAR)
        found = difference(resize(quick(content), 64, 64, "bilinear", box), exact)
        assert found.mean() < 0.5, "half a level of 255"


def test_scaled_decoding_happens_and_only_where_much_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    scales = []
    decoded = images._decode_jpeg

    def spy(content: bytes, height: int, width: int, scale: int, place: str) -> np.ndarray:
        scales.append(scale)
        return decoded(content, height, width, scale, place)

    monkeypatch.setattr(images, "_decode_jpeg", spy)
    content = encoded(photo(800, 640))
    for size in (320, 300, 160, 80, 40, 10):
        resize(quick(content), size, size, "bilinear")
    assert scales == [1, 1, 2, 4, 8, 8]


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_other_colour_spaces(decoder: str, mode: str) -> None:
    content = encoded(photo().convert(mode))
    image = open_image_data(content, 3, "x.jpg", quick=True)
    assert isinstance(image, JPEG) == (mode == "L")
    assert difference(resize(image, 60, 80, "bilinear"), decode(content)).max() <= 1


@pytest.mark.parametrize("share", [0.3, 0.7, 0.98])
def test_a_cut_file_is_named(decoder: str, share: float) -> None:
    content = encoded(photo(200, 300))
    cut = content[: int(share * len(content))]
    with pytest.raises(BadImage, match=r"photos/x\.jpg: broken image") as error:
        to_bytes(resize(open_image_data(cut, 3, "photos/x.jpg", quick=True), 32, 32, "bilinear"))
    assert error.value.kind == "unreadable"


def test_garbage_after_a_jpeg_header_is_named(decoder: str) -> None:
    for content in (b"\xff\xd8", b"\xff\xd8\xff" + bytes(200), encoded(photo())[:30]):
        with pytest.raises(BadImage, match=r"^x\.jpg: "):
            to_bytes(resize(open_image_data(content, 3, "x.jpg", quick=True), 32, 32, "bilinear"))


def test_a_bomb_is_refused_before_it_is_decoded(decoder: str) -> None:
    content = bytearray(encoded(photo(16, 16)))
    at = content.index(b"\xff\xc0") + 5
    content[at : at + 4] = (65000).to_bytes(2, "big") + (65000).to_bytes(2, "big")
    assert PIXELS < 65000**2
    with pytest.raises(BadImage, match="too many pixels") as error:
        open_image_data(bytes(content), 3, "bomb.jpg", quick=True)
    assert error.value.kind == "too-large"


def test_grey_models_and_other_formats_take_the_exact_way() -> None:
    assert isinstance(open_image_data(encoded(photo()), 1, None, quick=True), Image.Image)
    assert isinstance(open_image_data(encoded(photo(), "PNG"), 3, None, quick=True), Image.Image)
    assert isinstance(open_image_data(encoded(photo()), 3, None, quick=False), Image.Image)


def test_every_kind_of_image_does_the_same() -> None:
    image = photo(40, 50)
    array, tensor = np.asarray(image), to_tensor(image)
    box = (3, 5, 20, 30)
    for picture in (image, array, tensor):
        assert size_of(picture) == (40, 50)
        assert np.array_equal(to_bytes(crop(picture, box)), array[3:23, 5:35])
        assert np.array_equal(to_bytes(flip(picture)), array[:, ::-1])
        assert np.array_equal(np.asarray(to_image(picture)), array)
        assert np.array_equal(to_tensor(picture).numpy(), array.transpose(2, 0, 1))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(24, 20), (64, 72)])
def test_an_array_of_pixels_stays_one(channels: int, how: str, size: tuple[int, int]) -> None:
    """The quick way does not make an image of it and back; Pillow's result is within a level."""
    pixels = np.asarray(photo(32, 40) if channels == 3 else photo(32, 40).convert("L"))
    pixels.setflags(write=False)  # as a data set that is mapped from the disk
    image = open_image_data(pixels, channels, None, quick=True)
    assert isinstance(image, np.ndarray)
    assert image.shape == (32, 40, channels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = to_bytes(resize(image, *size, how))
    theirs = np.asarray(Image.fromarray(pixels).resize(size[::-1], images.FILTERS[how])).reshape(*size, channels)
    assert np.abs(ours.astype(int) - theirs.astype(int)).max() <= 1


@pytest.mark.parametrize(
    ("pixels", "channels"),
    [
        (np.zeros((8, 8, 4), np.uint8), 3),  # alpha is laid over white
        (np.zeros((8, 8), np.uint8), 3),
        (np.zeros((8, 8, 3), np.uint8), 1),
    ],
)
def test_an_array_of_other_channels_is_converted(pixels: np.ndarray, channels: int) -> None:
    image = open_image_data(pixels, channels, None, quick=True)
    assert isinstance(image, Image.Image)
    assert np.array_equal(to_bytes(image), to_bytes(open_image_data(pixels, channels, None, quick=False)))


def test_an_array_that_is_no_image_is_refused_either_way() -> None:
    for pixels in (np.zeros((8, 8, 3), np.float32), np.zeros((2, 8, 8, 3), np.uint8), np.zeros((8, 8, 2), np.uint8)):
        for quick_way in (True, False):
            with pytest.raises(VitreousError, match="expected uint8"):
                open_image_data(pixels, 3, None, quick=quick_way)
    for quick_way in (True, False):
        with pytest.raises(VitreousError, match="1 or 3 channels, not 2"):
            open_image_data(np.zeros((8, 8, 2), np.uint8), 2, None, quick=quick_way)


@pytest.mark.parametrize("margin", [1, 4])
def test_padding_is_numpys(margin: int) -> None:
    pixels = np.asarray(photo(9, 14))
    around = np.pad(pixels, ((margin, margin), (margin, margin), (0, 0)))
    assert np.array_equal(to_bytes(pad(pixels, margin)), around)
    assert np.array_equal(to_bytes(pad(Image.fromarray(pixels), margin)), around)
