"""`vitreous bench`: what is compared has the same outputs, rows have the documented keys, and wrong words get one line."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import torch

from vitreous.bench import bench_run, models, serving_load
from vitreous.bench.bench_result import make_rows
from vitreous.bench.photographs import draw_photographs
from vitreous.bench.race import Turns, Work, race
from vitreous.cli import main
from vitreous.weights.checkpoint import write_checkpoint

from conftest import random_checkpoint

KEYS = {"what", "engine", "precision", "batch", "images_per_second", "ratio_to_best_peer", "share_of_peak", "peak_memory"}
TINY = dict(width=24, depth=2, heads=3, mlp=48, image_size=32, classes=10, activation="gelu-erf")


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    write_checkpoint(random_checkpoint("ViT-B/16", **TINY), tmp_path / "tiny")
    return tmp_path / "tiny"


def test_ours_and_a_peer_side_by_side(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    words = ["bench", str(tiny), "--against", "timm", "--what", "inference,training", "--quick", "--json", "--out", str(page)]
    assert main(words) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["what"], row["engine"]) for row in rows] == [
        ("inference", "vitreous"), ("inference", "timm"), ("training", "vitreous"), ("training", "timm")
    ]  # fmt: skip
    for row in rows:
        assert set(row) >= KEYS
        assert (row["precision"], row["batch"]) == ("float32", 8)
        assert row["difference"] < 1e-5
        assert 50e6 < row["peak_memory"] < 5e9
        assert 0 < row["share_of_peak"] < 1
        assert row["engine"] == "vitreous" or row["ratio_to_best_peer"] == 1
    assert "vitreous bench" in page.read_text()
    assert page.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_a_peer_with_other_outputs_is_not_timed(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write_other(checkpoint: object, libraries: tuple[str, ...], folder: Path) -> dict[str, str]:
        faults = models.write_weights(checkpoint, libraries, folder)  # type: ignore[arg-type]
        about = torch.load(folder / "torchvision.pt", weights_only=True)
        about["state"]["encoder.ln.bias"] += 0.1
        torch.save(about, folder / "torchvision.pt")
        return faults

    monkeypatch.setattr(bench_run, "write_weights", write_other)
    assert main(["bench", str(tiny), "--against", "torchvision", "--what", "latency", "--quick", "--json"]) == 1
    printed = capsys.readouterr()
    assert [json.loads(line)["engine"] for line in printed.out.splitlines()] == ["vitreous"]
    assert "torchvision, float32, latency: its logits differ from ours" in printed.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "torchvision"], "--against torchvision: it is not installed; pip install torchvision"),
        (["--against", "jax"], "--against jax: must be one of timm"),
        (["--what", "infernce"], "did you mean 'inference'"),
        (["--precision", "float16"], "unknown precision 'float16'"),
        (["--clock", "processor"], "--clock processor: not for loader and serving"),
        (["--batch-size", "0"], "--batch-size 0: must be at least 1"),
        (["--merge-tokens", "-1"], "--merge-tokens -1: must be at least 0"),
        (["--out", "page.html"], "--out page.html: must end in .md"),
        (["ViT-Q/16"], "ViT-Q/16"),
        (["model.onnx"], "bench needs the checkpoint"),
    ],
)
def test_wrong_words_get_one_line(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models.importlib.util, "find_spec", lambda name: None if name == "torchvision" else name)
    assert main(["bench", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_the_ratio_is_the_median_over_rounds_to_the_best_peer() -> None:
    def turns(engine: str, *seconds: float) -> Turns:
        return Turns(Work("inference", engine, "float32", 4, ""), seconds, 1)

    # The third round was slow for all; a peer that is only sometimes faster is not the best one.
    rows = make_rows(
        [turns("vitreous", 1, 1, 10), turns("timm", 2, 2, 15), turns("torchvision", 1, 4, 40)], "m", 100.0, 1000.0, {}
    )
    assert [row.ratio_to_best_peer for row in rows] == [2, 1, 0.5]
    assert [row.images_per_second for row in rows] == [4, 2, 1]
    assert rows[0].share_of_peak == 0.4
    assert rows[0].spread == (2.2, 4)


def test_the_ratio_to_torch_is_to_the_best_float32_peer_in_torch() -> None:
    def turns(engine: str, precision: str, seconds: float, what: str = "latency") -> Turns:
        return Turns(Work(what, engine, precision, 1, ""), (seconds,), 1)

    works = [
        turns("vitreous", "float32", 5), turns("vitreous onnx", "int8", 1), turns("timm", "float32", 6),
        turns("torchvision compile", "float32", 4), turns("timm", "bfloat16", 2), turns("onnxruntime", "float32", 3),
    ]  # fmt: skip
    rows = make_rows(works, "m", None, None, {})
    assert [row.ratio_to_best_torch for row in rows] == [4 / 5, 4, 4 / 6, 1, 2, 4 / 3]
    assert [row.ratio_to_best_peer for row in rows] == [3 / 5, None, 3 / 6, 3 / 4, 1, 1]
    loaders = [turns("vitreous", "float32", 1, "loader"), turns("timm", "float32", 2, "loader")]
    ours = make_rows(loaders, "m", None, None, {})[0]
    assert (ours.ratio_to_best_peer, ours.ratio_to_best_torch) == (2, None)


def test_exported_models_are_compared_and_merged_tokens_are_timed_though_they_differ(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--against", "onnxruntime", "--precision", "float32,int8", "--merge-tokens", "1", "--what", "latency", "--quick"]
    assert main(["bench", str(tiny), *words, "--json"]) == 0
    printed = capsys.readouterr()
    rows = list(map(json.loads, printed.out.splitlines()))
    assert [(row["engine"], row["precision"]) for row in rows] == [
        ("vitreous", "float32"), ("vitreous merged 1", "float32"), ("vitreous onnx", "float32"), ("vitreous onnx", "int8"),
        ("onnxruntime", "float32"), ("onnxruntime", "int8"),
    ]  # fmt: skip
    merged = rows.pop(1)
    assert merged["difference"] > bench_run.TOLERANCE["float32"]
    assert "vitreous merged 1, latency: computes less than the others" in printed.err
    for row in rows:
        low, high = (0, 1e-5) if row["precision"] == "float32" else (1e-4, 0.1)  # nearer would not be eight bits
        assert low <= row["difference"] < high


def test_a_file_that_cannot_be_exported_is_named(tmp_path: Path) -> None:
    torch.save(torch.zeros(1, 3, 32, 32), tmp_path / models.IMAGES)
    headless = random_checkpoint("ViT-B/16", **{**TINY, "classes": 0})
    write_checkpoint(headless, tmp_path / models.CHECKPOINT)
    work = Work("latency", "vitreous onnx", "int8", 1, str(tmp_path))
    (why,) = bench_run.export([work, Work("latency", "vitreous", "float32", 1, str(tmp_path))]).values()
    assert why.startswith("not exported: --int8: is for ViTs with a head")


def test_clients_of_a_server_are_counted(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.rename(tmp_path / models.CHECKPOINT)
    draw_photographs(tmp_path / models.PHOTOGRAPHS, 1)
    monkeypatch.setattr(serving_load, "SECONDS", 0.5)
    with contextlib.ExitStack() as leaving:
        step = serving_load.serving_step(Work("serving", "vitreous", "float32", 2, str(tmp_path)), leaving)
        assert 0 < step() < 1  # seconds for two responses


def test_a_contender_that_fails_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    missing, matmul = Work("inference", "vitreous", "float32", 1, str(tmp_path)), Work("matmul", "matmul", "float32", 1, "")
    turns, failures = race([missing, matmul], 2, 0.01, lambda work: None, lambda more: None)
    assert [(each.work, len(each.seconds)) for each in turns] == [(matmul, 2)]
    assert "images.pt" in failures[missing]
