"""Which images are meant: against what find, glob and pathlib say, and never read far ahead."""

from __future__ import annotations

import glob
import io
import os
from pathlib import Path

import pytest

from predicting import make_image
from vitreous.core.errors import VitreousError
from vitreous.inference.image_list import NamedImage, image_list, is_encoded_image


def paths(*words: str | Path, stdin: bytes | None = None) -> list[str]:
    return [named.path for named in image_list([str(word) for word in words], None if stdin is None else io.BytesIO(stdin))]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("b.jpg", "a.PNG", "notes.txt", "deep/z.webp", "deep/er/10.jpg", "deep/er/9.jpg", ".hidden/x.jpg", ".y.jpg"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path / "photos"


def test_a_folder_is_searched_in_the_order_of_names(photos: Path) -> None:
    expected = sorted(
        path
        for path in photos.rglob("*")
        if path.suffix.lower() in (".jpg", ".png", ".webp")
        and not any(p.startswith(".") for p in path.relative_to(photos).parts)
    )
    assert paths(photos) == [str(path) for path in expected]
    assert len(expected) == 5
    assert paths(f"{photos}/") == paths(photos)


def test_links_are_followed_but_not_in_circles(photos: Path) -> None:
    before = paths(photos)
    (photos / "deep" / "up").symlink_to(photos)
    assert paths(photos) == before
    (photos / "more").symlink_to(photos / "deep" / "er")
    assert paths(photos) == [*before, f"{photos}/more/10.jpg", f"{photos}/more/9.jpg"]


@pytest.mark.parametrize(
    "pattern", ["*.jpg", "**/*.jpg", "deep/**/*.jpg", "*/*/[0-9].jpg", "d*p/z.w?bp", "**/9.jpg", ".*/x.jpg", "**"]
)
def test_patterns_match_what_glob_does(photos: Path, pattern: str) -> None:
    expected = {path for path in glob.glob(str(photos / pattern), recursive=True) if Path(path).is_file()}  # noqa: PTH207
    found = paths(photos / pattern)
    assert set(found) == {path for path in expected if not path.endswith(".txt")}
    assert len(set(found)) == len(found) > 0


def test_a_relative_pattern_and_a_file_with_stars_in_its_name(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    assert paths("deep/*/*.jpg", "*.jpg") == ["deep/er/10.jpg", "deep/er/9.jpg", "b.jpg"]
    Path("c[1].jpg").write_bytes(b"x")
    assert paths("c[1].jpg") == ["c[1].jpg"]


@pytest.mark.parametrize(("words", "why"), [
    (["{0}/none*.jpg"], "no image matches"), (["{0}/empty"], "no images in this folder"), ([], "no images given"),
    (["-", "-"], "twice"), ([""], "empty word"), (["{0}/b.jpg", "{0}/*.gif"], "no image matches"),
])  # fmt: skip
def test_words_that_name_nothing(photos: Path, words: list[str], why: str) -> None:
    (photos / "empty").mkdir()
    with pytest.raises(VitreousError, match=why):
        image_list([word.format(photos) for word in words])  # at once, not when the first image is wanted


def test_a_missing_file_is_an_entry(tmp_path: Path) -> None:
    assert paths(tmp_path / "none.jpg") == [str(tmp_path / "none.jpg")]


def test_a_folder_that_may_not_be_looked_into_is_an_entry(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def guarded(folder: str) -> object:  # root, whom tests often run as, may read everything
        if str(folder).endswith("deep"):
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", guarded)
    for word in (str(photos), f"{photos}/**/*.webp", f"{photos}/deep/*"):
        found = [(named.path, named.error) for named in image_list([word]) if named.error]
        assert found == [(f"{photos}/deep", "the folder cannot be looked into (Permission denied)")], word


def test_names_on_standard_input() -> None:
    assert paths("-", stdin=b"a.jpg\nb c.jpg\r\n\nlast.jpg") == ["a.jpg", "b c.jpg", "last.jpg"]
    assert paths("-", stdin=b"new\nline.jpg\0" + b"x" * 70_000 + b".jpg\0b.jpg") == [
        "new\nline.jpg",
        "x" * 70_000 + ".jpg",
        "b.jpg",
    ]
    odd = b"\xe9t\xe9.jpg"
    assert os.fsencode(paths("-", stdin=odd + b"\n")[0]) == odd
    assert paths("x.jpg", "-", stdin=b"a.jpg\n") == ["x.jpg", "a.jpg"]
    for empty in (b"", b"\n\n"):
        with pytest.raises(VitreousError, match="standard input is empty"):
            paths("-", stdin=empty)
    with pytest.raises(VitreousError, match="by NUL"):
        paths("-", stdin=b"a.jpg\n" * 20_000 + b"b.jpg\0")
    with pytest.raises(VitreousError, match="neither a list"):
        paths("-", stdin=b"x" * 3_000_000)


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "webp", "bmp", "tif", "avif"])
def test_an_image_on_standard_input_is_distinguished_from_names(tmp_path: Path, suffix: str) -> None:
    content = make_image(tmp_path / f"a.{suffix}").read_bytes()
    assert list(image_list(["-"], io.BytesIO(content))) == [NamedImage("-", content)]


def test_no_list_of_names_is_taken_for_an_image() -> None:
    for text in (
        b"BM.jpg\nx.jpg\ny.jpg\nz.jpg",
        b"GIF89a.jpg\nb.jpg\n",
        b"RIFF.jpg\nWEBP.jpg\n",
        b"MM.jpg\0b.jpg\0",
        b"II*.jpg\0",
    ):
        assert not is_encoded_image(text)


def test_standard_input_is_read_as_it_is_wanted() -> None:
    class Slow(io.RawIOBase):
        given = 0

        def read1(self, size: int) -> bytes:
            self.given += 1
            return b"%d.jpg\n" % self.given

    slow = Slow()
    images = image_list(["-"], slow)  # type: ignore[arg-type]
    for number in range(1, 50):
        assert next(images).path == f"{number}.jpg"
        assert slow.given <= number + 1


def test_several_processes_read_one_file_and_refuse_a_pipe(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_bytes(b"".join(b"%d.jpg\n" % number for number in range(20_000)))
    with names.open("rb") as file:
        one, other = (image_list(["-"], file, shared=True) for _ in range(2))
        pairs = zip(one, other, strict=True)
        assert [(a.path, b.path) for a, b in pairs] == [(f"{n}.jpg", f"{n}.jpg") for n in range(20_000)]
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe, pytest.raises(VitreousError, match="< FILE"):
        next(image_list(["-"], pipe, shared=True))
