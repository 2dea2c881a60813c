"""Shards in object storage: a real S3 API (moto) on the loopback address, read with s3fs, with faults between the two."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from runs import digest, pretrain

from vitreous.data.open import open_data
from vitreous.data.shards import byte_stream
from vitreous.data.shards.reader import Shards, open_shards
from vitreous.data.shards.writer import write_shards

pytest.importorskip("s3fs")
server = pytest.importorskip("moto.server")


class FaultyLine:
    """Forwards connections to a server; each of the next `cuts` responses with a shard is cut off after `limit` bytes."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target, self.cuts, self.limit, self.cut = target, 0, 0, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                upstream = socket.create_connection(self._target)
                pair = [False]  # whether a shard was asked for on this connection
                for source, sink, back in ((client, upstream, False), (upstream, client, True)):
                    threading.Thread(target=self._copy, args=(source, sink, back, pair), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, back: bool, pair: list[bool]) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                pair[0] = pair[0] or (not back and data.startswith(b"GET") and b".tar" in data)
                sent += len(data)
                if back and pair[0] and self.cuts and sent > self.limit:
                    self.cuts, self.cut = self.cuts - 1, self.cut + 1
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture(scope="module")
def line() -> Iterator[FaultyLine]:
    storage = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    storage.start()
    line = FaultyLine(storage.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", line.url)
        patch.setenv("AWS_MAX_ATTEMPTS", "1")  # so that faults reach this project's own retries
        yield line
    line.close()
    storage.stop()


@pytest.fixture(scope="module")
def photos(line: FaultyLine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of the digits in a folder, and copied to s3://bucket/photos."""
    folder = tmp_path_factory.mktemp("shards") / "photos"
    write_shards(open_data("builtin:digits"), folder, shard_bytes=200_000)
    files = fsspec.filesystem("s3")
    files.mkdir("bucket")
    files.put(str(folder), "bucket/photos", recursive=True)
    return folder


def read_train(address: str) -> list[tuple[str, tuple[int, ...], bytes]]:
    source = open_shards(address).splits["train"]
    assert isinstance(source, Shards)
    return [(item.id.rpartition("/")[2], item.labels, item.content) for item in source.items()]


def test_s3_has_the_images_of_the_folder(photos: Path) -> None:
    assert read_train("s3://bucket/photos/") == read_train(str(photos))


def test_connections_that_break_lose_and_repeat_nothing(
    line: FaultyLine, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_stream, "DELAY", 0.01)
    expected = read_train(str(photos))
    fsspec.filesystem("s3").invalidate_cache()
    line.cuts, line.limit, line.cut = 3, 30_000, 0
    assert read_train("s3://bucket/photos/") == expected
    assert line.cut == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_training_from_s3_gives_the_bytes_of_training_from_a_folder(photos: Path, tmp_path: Path, workers: int) -> None:
    shared = dict(subset=None, steps=4, eval_every=4, workers=workers)
    pretrain(tmp_path / "folder", data=str(photos), **shared)
    pretrain(tmp_path / "s3", data="s3://bucket/photos/", **shared)
    assert digest(tmp_path / "s3") == digest(tmp_path / "folder")
