"""Data sets fetched from a server on this machine, with everything that goes wrong on the way."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import originals
import pytest

from http_server import Server, ok, status
from vitreous.cli import main
from vitreous.core import download
from vitreous.core.errors import VitreousError
from vitreous.data.datasets import registry as named
from vitreous.data.datasets.known import SETS
from vitreous.data.datasets.registry import open_named
from vitreous.data.source import Source


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(download, "DELAYS", (0.0, 0.0, 0.0))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("VITREOUS_TIMEOUT", "5")
    monkeypatch.delenv("VITREOUS_DATA", raising=False)
    made = Server()
    monkeypatch.setenv("VITREOUS_DATA_MIRROR", f"{made.url}/")
    yield made
    made.close()


def serve(server: Server, monkeypatch: pytest.MonkeyPatch, name: str, folder: Path) -> dict[str, bytes]:
    """The tiny files of a set, which count as the originals by their checksums."""
    (originals.IMAGE_SETS.get(name) or originals.ARRAY_SETS[name])(folder)
    known = named.find_dataset(name)
    files = []
    contents = {}
    for file in known.files:
        content = contents[file.name] = (folder / file.name).read_bytes()
        server.scripts[f"/{name}/{file.name}"] = [ok(content)]
        kind = "sha256" if file.sha256 else "md5"
        files.append(dataclasses.replace(file, **{kind: hashlib.new(kind, content).hexdigest()}))
    changed = dataclasses.replace(known, files=tuple(files), installed=())
    monkeypatch.setattr(named, "SETS", tuple(changed if each.name == name else each for each in SETS))
    return contents


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file()) if folder.exists() else []


@pytest.mark.parametrize("name", [known.name for known in SETS if known.files])
def test_every_set_is_fetched_once_and_then_works_offline(
    name: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = serve(server, monkeypatch, name, tmp_path / "files")
    data = open_named(name)
    said = capsys.readouterr().err
    assert sorted(path for path, _ in server.requests) == sorted(f"/{name}/{file}" for file in contents)
    for file, content in contents.items():
        assert f"downloading {name} {file}" in said
        assert (tmp_path / "cache" / "data" / name / file).read_bytes() == content
    assert any("downloaded from 127.0.0.1" in note and named.find_dataset(name).terms in note for note in data.notes)
    server.close()
    again = open_named(name)
    assert again.where == name
    assert not any("downloaded from" in note for note in again.notes)
    for split, source in data.splits.items():
        other = again.source(split)
        assert isinstance(source, Source)
        assert isinstance(other, Source)
        assert source.fingerprint() == other.fingerprint()
        assert len(other) > 0


def test_a_cut_download_resumes_where_it_stopped(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = serve(server, monkeypatch, "cifar10", tmp_path / "files")["cifar-10-binary.tar.gz"]
    half = len(content) // 2
    server.scripts["/cifar10/cifar-10-binary.tar.gz"] = [ok(content, sent=half), ok(content)]
    assert len(open_named("cifar10").splits) == 2
    assert [headers.get("Range") for _, headers in server.requests] == [None, f"bytes={half}-"]


def test_a_later_run_resumes_too(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = serve(server, monkeypatch, "pets", tmp_path / "files")
    annotations = server.scripts["/pets/annotations.tar.gz"]
    server.scripts["/pets/annotations.tar.gz"] = [ok(contents["annotations.tar.gz"], sent=100)] + [status(503)] * 4
    with pytest.raises(VitreousError, match=r"503.*what came is kept, and trying again resumes there"):
        open_named("pets")
    server.scripts["/pets/annotations.tar.gz"] = annotations
    del server.requests[:]
    assert len(open_named("pets").splits) == 2
    assert [(path, headers.get("Range")) for path, headers in server.requests] == [("/pets/annotations.tar.gz", "bytes=100-")]


@pytest.mark.parametrize("name", ["cifar100", "fashion-mnist", "eurosat"])  # by sha256, and by md5
def test_a_wrong_checksum_leaves_nothing(name: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(server, monkeypatch, name, tmp_path / "files")
    monkeypatch.setattr(named, "SETS", [dataclasses.replace(known, installed=()) for known in SETS])  # the true checksums
    with pytest.raises(VitreousError, match=r"what came is damaged or another file: (sha256|md5)") as caught:
        open_named(name)
    file = named.find_dataset(name).files[0]
    assert f"{server.url}/{name}/{file.name}" in str(caught.value)
    assert (file.sha256 or file.md5 or "?") in str(caught.value)
    assert files_in(tmp_path / "cache") == []


def test_a_file_that_the_server_does_not_have(server: Server, tmp_path: Path) -> None:
    with pytest.raises(
        VitreousError, match=r"there is no such file \(404\); see https://.*put 102flowers\.tgz, imagelabels"
    ) as caught:
        open_named("flowers102")
    assert str(tmp_path / "cache" / "data" / "flowers102") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert files_in(tmp_path / "cache") == []


def test_without_a_network_the_line_says_what_to_put_where(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.close()
    with pytest.raises(VitreousError) as caught:
        open_named("svhn")
    message = str(caught.value)
    folder = tmp_path / "cache" / "data" / "svhn"
    assert f"cannot fetch {server.url}/svhn/train_32x32.mat" in message
    assert f"put train_32x32.mat, test_32x32.mat into {folder}" in message
    assert "VITREOUS_DATA" in message
    assert "\n" not in message
    originals.svhn(folder)  # as told
    assert len(open_named("svhn").splits) == 2
    monkeypatch.setenv("VITREOUS_DATA", str(tmp_path / "sets"))
    originals.mnist(tmp_path / "sets" / "mnist")  # the other thing that it says
    assert len(open_named("mnist").splits) == 2


def test_what_is_there_already_is_not_fetched(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(server, monkeypatch, "mnist", tmp_path / "files")
    folder = tmp_path / "cache" / "data" / "mnist"
    folder.mkdir(parents=True)
    (tmp_path / "files" / "train-images-idx3-ubyte.gz").rename(folder / "train-images-idx3-ubyte.gz")
    open_named("mnist")
    assert len(server.requests) == 3


def test_a_directory_that_is_given_is_never_fetched_into(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(VitreousError, match="it should hold"):
        open_named("cifar10", tmp_path / "mine")
    assert server.requests == []
    assert files_in(tmp_path / "mine") == []


def test_a_mirror_that_is_no_address_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITREOUS_DATA_MIRROR", "http://[::1")
    with pytest.raises(VitreousError, match=r"only http.*VITREOUS_DATA_MIRROR"):
        open_named("pets")


def test_the_authors_servers_are_asked_without_a_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VITREOUS_DATA_MIRROR", raising=False)
    asked: list[str] = []

    def refuse(url: str, *_: object, **__: object) -> None:
        asked.append(url)
        raise VitreousError("no")

    monkeypatch.setattr(named, "fetch", refuse)
    for name in ("cifar10", "pets"):
        with pytest.raises(VitreousError):
            open_named(name)
    assert asked == [
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "https://www.robots.ox.ac.uk/~vgg/data/pets/data/images.tar.gz",
    ]


def test_checksums_agree_with_torchvision() -> None:
    """Where it has them. sha256 and md5 of one file cannot be compared without it, so these are the md5 ones."""
    from torchvision import datasets

    ours = {file.name: file.md5 for known in SETS for file in known.files if known.name == "fashion-mnist"}
    assert ours == dict(datasets.FashionMNIST.resources)
    source = Path(datasets.eurosat.__file__).read_text() + Path(datasets.caltech.__file__).read_text()
    for name in ("eurosat", "caltech101"):
        for file in named.find_dataset(name).files:
            assert f'"{file.url}"' in source
            assert f'"{file.md5}"' in source


def test_list_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["list", "data", "--json"]) == 0
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert set(named.dataset_names()) <= set(rows)
    assert rows["cifar10"] == {
        "name": "cifar10",
        "kind": "real",
        "classes": 10,
        "images": {"train": 50_000, "test": 10_000},
        "obtained": "downloaded (170 MB)",
        "terms": "no licence stated; cite Krizhevsky 2009",
    }
    assert rows["imagenet"]["obtained"].startswith("by hand: https://image-net.org")
    assert rows["builtin:digits"]["kind"] == "real"
    assert {row["kind"] for name, row in rows.items() if name.startswith("builtin:") and name != "builtin:digits"} == {
        "rendered"
    }
    assert main(["list", "data"]) == 0
    said = capsys.readouterr()
    assert "train 50,000, test 10,000" in said.out
    assert str(tmp_path / "cache" / "data") in said.err
