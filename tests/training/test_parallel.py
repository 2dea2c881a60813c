"""Several processes on this machine, by gloo: the same losses as one, the same bytes after a kill, one result for all."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import TINY, child, digest, finished, metrics, pretrain, states, together, wait_for
from safetensors.torch import load_file

TWENTY: dict[str, Any] = dict(steps=20, eval_every=10, set=("average=0.9", "clip=1"))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that one process makes of it."""
    out = tmp_path_factory.mktemp("one") / "run"
    pretrain(out, **TWENTY)
    return out


@pytest.mark.parametrize(
    ("processes", "how", "shard_group"),
    [(2, "ddp", None), (2, "fsdp", None), (2, "hybrid", None), (4, "hybrid", 2)],  # the last: two groups, each with a copy
)
def test_several_processes_see_the_losses_of_one(
    one: Path, tmp_path: Path, processes: int, how: str, shard_group: int | None
) -> None:
    options = {**TWENTY, "parallel": how, "shard_group": shard_group, "micro_batch": "4"}  # accumulation too: 16 or 8 each
    finished(together(tmp_path / "two", processes, **options))
    alone, both = (metrics(run, "train") for run in (one, tmp_path / "two"))
    assert [record["step"] for record in both] == list(range(1, 21))
    for its, two in zip(alone, both, strict=True):
        assert two["loss"] == pytest.approx(its["loss"], rel=1e-6)
        assert two["images"] == its["images"]
    for its, two in zip(metrics(one, "validation"), metrics(tmp_path / "two", "validation"), strict=True):
        assert two["n"] == its["n"] == 200  # every image once, though 200 is no multiple of two batches of 16
        assert two["loss"] == pytest.approx(its["loss"], rel=1e-5)
        assert two["top1"] == pytest.approx(its["top1"], abs=0.01)
    for name in ("", "raw/"):
        weights = [load_file(run / "checkpoint" / name / "model.safetensors") for run in (one, tmp_path / "two")]
        assert weights[0].keys() == weights[1].keys()
        alone_, both_ = (torch.cat([weights_[key].flatten() for key in weights[0]]) for weights_ in weights)
        # Adam makes much of gradients that are rounding alone, as of key biases.
        assert (both_ - alone_).norm() < 1e-4 * alone_.norm()


@pytest.mark.parametrize(("how", "dropout"), [("ddp", 0.1), ("fsdp", 0.0)])
def test_a_state_of_two_resumes_on_two_and_on_one(tmp_path: Path, how: str, dropout: float) -> None:
    options: dict[str, Any] = dict(steps=12, save_every=2, eval_every=6, parallel=how)
    options["set"] = (f"dropout={dropout}", "average=0.9")
    finished(together(tmp_path / "whole", **options))
    children = together(tmp_path / "on-two", **options)
    assert wait_for(lambda: max(states(tmp_path / "on-two"), default=0) >= 4, children[0])
    for process in children:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    shutil.copytree(tmp_path / "on-two", tmp_path / "on-one")
    finished(together(tmp_path / "on-two", **options))
    assert digest(tmp_path / "on-two") == digest(tmp_path / "whole")
    pretrain(tmp_path / "on-one", **options)
    log = (tmp_path / "on-one" / "log.txt").read_text()
    assert "resuming from the state of step" in log
    equal = "dropout will be drawn otherwise" if dropout else "equal up to rounding"
    assert f"world_size: 2 at first, 1 now; {equal}" in log
    pairs = list(zip(metrics(tmp_path / "whole", "train"), metrics(tmp_path / "on-one", "train"), strict=True))
    assert pairs[-1][1]["step"] == 12
    for whole, resumed in pairs if not dropout else ():
        assert resumed["loss"] == pytest.approx(whole["loss"], rel=1e-5)


def test_three_copies_resume_to_the_bit(tmp_path: Path) -> None:
    """Two numbers have one sum in whichever order; three show whether a new process adds up as an old one would have."""
    options: dict[str, Any] = dict(steps=8, save_every=2, eval_every=0, batch_size=36, micro_batch="6")
    options["objective"] = "masked-patch"  # whose masks each process draws
    finished(together(tmp_path / "whole", 3, **options))
    children = together(tmp_path / "run", 3, **options)
    assert wait_for(lambda: max(states(tmp_path / "run"), default=0) >= 2, children[0])
    for process in children:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert max(states(tmp_path / "run")) < 8
    finished(together(tmp_path / "run", 3, **options))
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_a_state_of_one_resumes_on_two(tmp_path: Path) -> None:
    options: dict[str, Any] = dict(steps=12, save_every=2, eval_every=6, parallel="fsdp")
    pretrain(tmp_path / "whole", **options)
    process = child(tmp_path / "run", **options)
    assert wait_for(lambda: max(states(tmp_path / "run"), default=0) >= 4, process)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    finished(together(tmp_path / "run", **options))
    pairs = zip(metrics(tmp_path / "whole", "train"), metrics(tmp_path / "run", "train"), strict=True)
    for whole, resumed in pairs:
        assert resumed["loss"] == pytest.approx(whole["loss"], rel=1e-5)


def test_a_signal_at_one_process_ends_all_of_them_unfinished(tmp_path: Path) -> None:
    out = tmp_path / "run"
    children = together(out, steps=3000, eval_every=0)
    assert wait_for(lambda: len(metrics(out)) > 2, children[0])
    os.kill(children[1].pid, signal.SIGTERM)  # the second one alone
    for process in children:
        process.join(60)
        assert process.exitcode == 130
    assert len(states(out)) == 1
    assert not (out / "state" / "done.json").exists()
    assert not (out / "checkpoint").exists()


def test_one_process_killed_ends_the_job_and_it_resumes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [
        *("pretrain", "builtin:digits", "--model", "ViT-Ti/2", "--set", ",".join(TINY), "--steps", "60"),
        *("--batch-size", "32", "--workers", "0", "--eval-every", "0", "--subset", "200", "--save-every", "5"),
        *("--precision", "float32", "--out", str(out)),
    ]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "vitreous"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    job = subprocess.Popen([*launcher, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until = time.monotonic() + 120
    while not states(out) and time.monotonic() < until and job.poll() is None:
        time.sleep(0.01)
    assert states(out), job.communicate()[0]
    workers = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(out).encode() in _command(entry) and b"torch.distributed.run" not in _command(entry)
    ]
    assert len(workers) == 2
    os.kill(max(workers), signal.SIGKILL)
    assert job.wait(60) != 0  # it does not hang
    assert not (out / "checkpoint" / "model.safetensors").exists()
    finished(together(out, words=words))
    said = [(tmp_path / f"run.said-{rank}").read_text() for rank in range(2)]
    assert [text.count("report.html") for text in said] == [1, 0]  # the first process alone reports
    assert "resuming from the state of step" in (out / "log.txt").read_text()


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""
