"""A run that was killed, torn or starved goes on, and ends with the bytes of one that was not."""

from __future__ import annotations

import json
import multiprocessing
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
from runs import TINY, child, digest, metrics, pretrain, states, wait_for

import vitreous
from vitreous.cli import main
from vitreous.core.errors import VitreousError
from vitreous.training import loop

FILES = ("model.safetensors", "model.json")

# Everything that goes by chance or remembers: augmentation, dropout, stochastic depth, mixup, averaging, accumulation, and
# the moments of Muon (kernels of convolutions among them) and of Adam.
EVERYTHING = dict(
    set=(
        "model.stem=16:16",
        "optimizer=muon",
        "model.stochastic_depth=0.1",
        "dropout=0.1",
        "mixup=0.2",
        "cutmix=1",
        "average=0.9",
        "clip=1",
        "preprocess=resize(10)|random_crop(8)|flip|range(-1,1)",
    ),
    micro_batch="8",
    save_every=2,
    keep_every=3,
    fewshot="builtin:digits",
    steps=16,
    eval_every=5,
)


def test_a_run_killed_anywhere_ends_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "RECORDS", 3)  # a record for several steps, so that states are saved in the middle of one
    pretrain(tmp_path / "whole", **EVERYTHING, workers=2)
    parts = ("", "best/", "raw/", *(f"step-{step:06d}/" for step in (3, 6, 9, 12, 15)))
    wanted = [digest(tmp_path / "whole", f"checkpoint/{name}{file}") for name in parts for file in FILES]
    for number, kill_at in enumerate((2, 6, 10)):
        out = tmp_path / f"killed-{number}"
        process = child(out, **EVERYTHING, workers=1)
        assert wait_for(lambda out=out, at=kill_at: max(states(out), default=0) >= at, process)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert not (out / "checkpoint" / "model.safetensors").exists()
        pretrain(out, **EVERYTHING, workers=0)
        assert [digest(out, f"checkpoint/{name}{file}") for name in parts for file in FILES] == wanted
        assert not [*(out / "checkpoint").rglob("*.part")]
        assert _without_times(metrics(out)) == _without_times(metrics(tmp_path / "whole"))


def _without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in r.items() if key not in ("seconds", "images_per_second")} for r in records]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_it_saves_and_leaves_within_a_step(tmp_path: Path, number: int) -> None:
    out = tmp_path / "run"
    process = child(out, steps=400, eval_every=0)
    assert wait_for(lambda: len(metrics(out)) > 3, process)
    os.kill(process.pid, number)
    process.join(30)
    assert process.exitcode == 130
    assert len(states(out)) == 1
    assert 3 < states(out)[0] < 400
    last = metrics(out)[-1]["step"]
    assert states(out)[0] - last <= 1  # nothing was trained that was not saved


def test_a_damaged_state_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    pretrain(tmp_path / "whole", save_every=4)
    killed = tmp_path / "killed"
    process = child(killed, save_every=4, steps=12)
    assert wait_for(lambda: len(states(killed)) == 2, process)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    for number, damage in enumerate((_truncate, _flip_a_bit, _lose_document, _lose_shard, _another_step, _stopped)):
        out = tmp_path / f"damaged-{number}"
        shutil.copytree(killed, out)
        newest = sorted((out / "state").glob("step-*"))[-1]
        damage(newest)
        pretrain(out, save_every=4)
        assert digest(out) == digest(tmp_path / "whole")
        log = (out / "log.txt").read_text()
        assert f"{newest.name} is damaged" in log
        assert "resuming from the state of step" in log


def _shard(state: Path) -> Path:
    return next(state.glob("*.safetensors"))


def _truncate(state: Path) -> None:
    os.truncate(_shard(state), _shard(state).stat().st_size // 2)


def _flip_a_bit(state: Path) -> None:
    content = bytearray(_shard(state).read_bytes())
    content[-5] ^= 1
    _shard(state).write_bytes(content)


def _lose_document(state: Path) -> None:
    (state / "state.json").write_text('{"step": ')


def _another_step(state: Path) -> None:
    text = (state / "state.json").read_text()
    step = json.loads(text)["step"]
    (state / "state.json").write_text(text.replace(f'"step": {step}', f'"step": {step + 1}', 1))


def _stopped(state: Path) -> None:
    text = (state / "state.json").read_text()
    assert '"stopped": false' in text
    (state / "state.json").write_text(text.replace('"stopped": false', '"stopped": true'))


def _lose_shard(state: Path) -> None:
    _shard(state).unlink()


def test_with_every_state_damaged_it_begins_anew(tmp_path: Path) -> None:
    pretrain(tmp_path / "whole", save_every=4)
    out = tmp_path / "run"
    process = child(out, save_every=4)
    assert wait_for(lambda: len(states(out)) >= 1, process)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    for state in (out / "state").glob("step-*"):
        _truncate(state)
    pretrain(out, save_every=4)
    assert digest(out) == digest(tmp_path / "whole")
    assert "starts again" in (out / "log.txt").read_text()


def test_a_finished_run_says_so_and_changes_nothing(tmp_path: Path) -> None:
    pretrain(tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    again = pretrain(tmp_path / "run", workers=1, save_every=3)
    assert again.already
    assert again.exit_code == 0
    assert "finished" in again.notes[0]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_another_config_is_refused_with_the_difference(tmp_path: Path) -> None:
    pretrain(tmp_path / "run")
    before = digest(tmp_path / "run", "config.json")
    with pytest.raises(VitreousError, match=r"belongs to a run with other settings \(.*seed: 0 there, 1 now"):
        pretrain(tmp_path / "run", seed=1)
    with pytest.raises(VitreousError, match=r"recipe.lr: .* there, 0.5 now"):
        pretrain(tmp_path / "run", set=("lr=0.5",))
    with pytest.raises(VitreousError, match=r"data.train: 200 there, 150 now"):
        pretrain(tmp_path / "run", subset=150)
    assert digest(tmp_path / "run", "config.json") == before


def test_a_run_that_is_older_than_a_field_of_its_model(tmp_path: Path) -> None:
    pretrain(tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    assert config["model"].pop("registers") == 0
    path.write_text(json.dumps(config))
    assert pretrain(tmp_path / "run").already
    config["model"]["registers"] = 1
    path.write_text(json.dumps(config))
    with pytest.raises(VitreousError, match=r"model.registers: 1 there, 0 now"):
        pretrain(tmp_path / "run")


def test_a_longer_run_needs_extend_and_then_goes_on(tmp_path: Path) -> None:
    pretrain(tmp_path / "run", set=("schedule=constant", "warmup=0"))
    with pytest.raises(VitreousError, match="--extend makes it longer"):
        pretrain(tmp_path / "run", set=("schedule=constant", "warmup=0"), steps=20)
    with pytest.raises(VitreousError, match="only makes a run longer"):
        pretrain(tmp_path / "run", set=("schedule=constant", "warmup=0"), steps=5, extend=True)
    longer = pretrain(tmp_path / "run", set=("schedule=constant", "warmup=0"), steps=20, extend=True)
    assert longer.result["steps"] == 20
    pretrain(tmp_path / "at-once", set=("schedule=constant", "warmup=0"), steps=20)
    assert digest(tmp_path / "run") == digest(tmp_path / "at-once")


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(VitreousError, match="is not empty, and not a run"):
        pretrain(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{")
    with pytest.raises(VitreousError, match="cannot be read as a run's config"):
        pretrain(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.json"]


def test_a_full_disk_is_a_clear_error_and_the_last_state_is_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import vitreous.training.state as state

    pretrain(tmp_path / "whole", save_every=4)
    real, calls = state.async_save, []

    def full(*args: object, **kwargs: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            from concurrent.futures import Future

            future: Future[None] = Future()
            future.set_exception(OSError(28, "No space left on device"))
            return future
        return real(*args, **kwargs)

    monkeypatch.setattr(state, "async_save", full)
    with pytest.raises(VitreousError, match=r"No space left on device.*the state of step 4 is kept"):
        pretrain(tmp_path / "run", save_every=4)
    assert states(tmp_path / "run") == [4]
    monkeypatch.setattr(state, "async_save", real)
    pretrain(tmp_path / "run", save_every=4)
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_config_json_replays_a_run(tmp_path: Path) -> None:
    pretrain(tmp_path / "run", set=("lr=0.002",))
    import vitreous
    from vitreous.core.progress import silence

    with silence():
        vitreous.pretrain(config=str(tmp_path / "run" / "config.json"), out=str(tmp_path / "again"))
    assert digest(tmp_path / "run") == digest(tmp_path / "again")
    first, second = (json.loads((tmp_path / name / "config.json").read_text())["recipe"] for name in ("run", "again"))
    assert first == second


def test_the_polyak_average_is_the_result_and_is_what_chooses(tmp_path: Path) -> None:
    """Against an average taken outside of the run, from the raw weights of runs that end one step later each."""
    from safetensors.torch import load_file

    keep, steps = 0.5, 4
    raws = []
    for step in range(1, steps + 1):  # a constant rate: a shorter run is the beginning of a longer one
        out = tmp_path / f"steps-{step}"
        found = pretrain(out, set=(f"average={keep}", "schedule=constant", "warmup=0"), steps=step, eval_every=2)
        raws.append(load_file(out / "checkpoint" / "raw" / "model.safetensors"))
    weights = [keep ** (steps - 1 - step) for step in range(steps)]
    result = load_file(tmp_path / "steps-4" / "checkpoint" / "model.safetensors")
    for name, tensor in result.items():
        mean = sum(weight * raw[name].double() for weight, raw in zip(weights, raws, strict=True)) / sum(weights)
        torch.testing.assert_close(tensor.double(), mean, atol=1e-6, rtol=1e-4)
    assert any(not result[name].equal(raws[-1][name]) for name in result)

    measured = vitreous.evaluate(str(tmp_path / "steps-4"), "builtin:digits:validation", device="cpu", workers=0).numbers
    raw = vitreous.evaluate(
        str(tmp_path / "steps-4/checkpoint/raw"), "builtin:digits:validation", device="cpu", workers=0
    ).numbers
    last = metrics(tmp_path / "steps-4", "validation")[-1]
    assert found.result["top1"] == last["top1"] == pytest.approx(measured["top1"])
    assert found.result["loss"] == last["loss"]
    assert found.result["raw"]["top1"] == pytest.approx(raw["top1"])
    assert found.result["best"]["top1"] == max(record["top1"] for record in metrics(tmp_path / "steps-4", "validation"))


def test_a_run_with_an_average_resumes_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = dict(set=("average=0.9",), eval_every=4, save_every=3)
    pretrain(tmp_path / "whole", **options)
    _stop_at(tmp_path / "parts", monkeypatch, 7, **options)
    pretrain(tmp_path / "parts", **options)
    for name in ("checkpoint", "checkpoint/best", "checkpoint/raw"):
        weights = f"{name}/model.safetensors"
        assert digest(tmp_path / "whole", weights) == digest(tmp_path / "parts", weights)


def test_a_model_with_rotary_positions_is_trained_and_resumes_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = dict(set=("model.positions=rope", "model.key_bias=false"), save_every=3)
    pretrain(tmp_path / "whole", **options)
    _stop_at(tmp_path / "parts", monkeypatch, 7, **options)
    pretrain(tmp_path / "parts", **options)
    weights = "checkpoint/model.safetensors"
    assert digest(tmp_path / "whole", weights) == digest(tmp_path / "parts", weights)
    assert vitreous.load(tmp_path / "parts").config.positions == "rope"


def test_an_unfinished_run_can_be_used_and_says_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    _stop_at(run, monkeypatch, 3)
    with pytest.raises(VitreousError, match="run: unfinished, stopped at step 3, before its first evaluation; start the same"):
        vitreous.load(run)
    _stop_at(run, monkeypatch, 9)
    assert "unfinished: this is step 6 of 12" in (run / "report.html").read_text()
    expected = "unfinished, stopped at step 9: this is its best evaluation so far, of step 6, checkpoint/best"
    assert vitreous.load(run).notes == vitreous.load(run / "checkpoint").notes == (expected,)
    found = vitreous.evaluate(str(run), "builtin:digits:validation", device="cpu", workers=0)
    assert found.numbers["top1"] == metrics(run, "validation")[0]["top1"]
    assert expected in found.notes
    pretrain(run)
    assert not vitreous.load(run).notes
    assert "unfinished:" not in (run / "report.html").read_text()


def _stop_at(out: Path, monkeypatch: pytest.MonkeyPatch, step: int, **options: Any) -> None:
    """As if a signal had come in that step."""
    take = loop.Loop._step

    def stepped(self: loop.Loop, *parts: Any) -> Any:
        found = take(self, *parts)
        if self.progress.step + 2 == step:  # the step that is under way is finished first
            signal.raise_signal(signal.SIGINT)
        return found

    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(loop.Loop, "_step", stepped)
            with pytest.raises(KeyboardInterrupt):
                pretrain(out, **options)
    finally:
        signal.signal(signal.SIGINT, previous)


def test_extend_needs_no_other_option(tmp_path: Path) -> None:
    """What was fitted to the shorter run, as the warm-up and how often it is judged, does not count as another setting."""
    pretrain(tmp_path / "run", eval_every=None)
    with pytest.raises(VitreousError, match="--extend makes it longer"):
        pretrain(tmp_path / "run", eval_every=None, steps=40)
    longer = pretrain(tmp_path / "run", eval_every=None, steps=40, extend=True)
    assert longer.result["steps"] == 40
    assert pretrain(tmp_path / "run", eval_every=None, steps=40).already  # the longer run is the run now


def test_a_run_whose_states_are_gone_begins_anew_and_says_so(tmp_path: Path) -> None:
    pretrain(tmp_path / "run")
    before = digest(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "state")
    assert not pretrain(tmp_path / "run").already
    assert digest(tmp_path / "run") == before
    assert "there is no state of it; the run starts again" in (tmp_path / "run" / "log.txt").read_text()


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    process = child(tmp_path / "run", steps=400, eval_every=6)
    assert wait_for(lambda: (tmp_path / "run" / "checkpoint" / "best" / "model.safetensors").exists(), process)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    for place in (".config.json.x.part", "checkpoint/best/.model.safetensors.x.part"):
        (tmp_path / "run" / place).write_bytes(b"half")
    process = child(tmp_path / "run", steps=400, eval_every=6)
    assert wait_for(lambda: not list((tmp_path / "run").rglob("*.x.part")), process)
    process.kill()
    process.join()


def test_the_spelling_of_a_path_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    for name in ("cat", "dog"):
        for number in range(4):
            (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (60 * number, 0, 0)).save(tmp_path / "photos" / name / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    options: dict[str, Any] = dict(subset=None, batch_size=2, steps=2, eval_every=0)
    pretrain(tmp_path / "run", data="photos", **options)
    for spelling in ("photos/", str(tmp_path / "photos"), tmp_path / "photos"):
        assert pretrain(tmp_path / "run", data=spelling, **options).already


def test_a_state_counts_as_soon_as_it_is_written(tmp_path: Path) -> None:
    """Not only when the next one is begun or the run ends: killed in between, the run goes on from it."""
    out = tmp_path / "run"
    process = child(out, steps=480, save_every=250, eval_every=0)  # the next one would be that of the end
    assert wait_for(lambda: states(out) != [], process)
    assert metrics(out)[-1]["step"] < 480
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert states(out) == [250]


@pytest.mark.usefixtures("interruptible")
def test_a_signal_during_an_evaluation_leaves_it_owed(tmp_path: Path) -> None:
    from vitreous.evaluation import counts as judge

    pretrain(tmp_path / "whole")
    real, calls = judge.Counts.update, []

    def interrupted(self: Any, *args: Any) -> None:
        calls.append(1)
        if len(calls) == 2:  # in the middle of the first evaluation
            os.kill(os.getpid(), signal.SIGINT)
        real(self, *args)

    judge.Counts.update = interrupted  # type: ignore[method-assign]
    try:
        with pytest.raises(KeyboardInterrupt):
            pretrain(tmp_path / "run")
    finally:
        judge.Counts.update = real  # type: ignore[method-assign]
    assert states(tmp_path / "run") == [6]
    assert not metrics(tmp_path / "run", "validation")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:  # as if it had been made up for, and the run killed at once
        file.write('{"step": 6, "split": "validation", "loss": 9}\n')
    pretrain(tmp_path / "run")
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")
    assert _without_times(metrics(tmp_path / "run")) == _without_times(metrics(tmp_path / "whole"))


def test_a_replayed_config_can_be_changed_field_by_field(tmp_path: Path) -> None:
    import vitreous
    from vitreous.core.progress import silence

    pretrain(tmp_path / "run", set=("lr=0.002",))
    with silence():
        vitreous.pretrain(config=str(tmp_path / "run" / "config.json"), out=str(tmp_path / "again"), set=("lr=0.001",))
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["recipe"]["lr"] == 0.001
    assert config["model"]["width"] == 32  # which was set there


def test_a_replayed_config_keeps_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout goes by pass, so that another division of a batch, for want of memory, would be another run."""
    import vitreous
    from vitreous.core.progress import silence
    from vitreous.training import batch_fitting as passes

    pretrain(tmp_path / "run", set=("dropout=0.2",))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["micro_batch"] == 32
    monkeypatch.setattr(passes, "free_memory", lambda device: 1_500_000)
    with silence():
        vitreous.pretrain(config=str(tmp_path / "run"), out=str(tmp_path / "again"))
    assert digest(tmp_path / "run") == digest(tmp_path / "again")
    pretrain(tmp_path / "little", set=("dropout=0.2",))
    assert json.loads((tmp_path / "little" / "config.json").read_text())["micro_batch"] < 32


def test_an_option_takes_the_place_of_its_opposite_in_a_replayed_config(tmp_path: Path) -> None:
    import vitreous
    from vitreous.core.progress import silence

    pretrain(tmp_path / "run", steps=None, epochs=0.5)
    with silence():
        found = vitreous.pretrain(config=str(tmp_path / "run"), out=str(tmp_path / "again"), steps=3, per_class=4)
    assert found.result["steps"] == 3
    assert json.loads((tmp_path / "again" / "config.json").read_text())["data"]["train"] == 40  # --subset is gone


def test_two_first_starts_at_once_leave_the_config_of_the_one_that_trains(tmp_path: Path) -> None:
    """Both find an empty folder; the lock decides, and only its owner writes."""
    from vitreous.core.distributed import init_distributed
    from vitreous.training.run_folder import RunFolder, read_config

    pretrain(tmp_path / "made")
    config = read_config(tmp_path / "made" / "config.json").settings
    out = tmp_path / "run"
    with init_distributed("cpu") as world:
        first = RunFolder(out, world)
        assert first.claim({**config, "seed": 1}, extend=False) is False
        ended = multiprocessing.get_context("fork").Process(target=_claims, args=(out, {**config, "seed": 2}))
        ended.start()
        ended.join(60)
        assert ended.exitcode == 2
        assert read_config(out / "config.json").settings["seed"] == 1
        first.release()


def _claims(out: Path, config: dict[str, Any]) -> None:
    from vitreous.core.distributed import init_distributed
    from vitreous.training.run_folder import RunFolder

    look = RunFolder._check
    looks = []

    def looked(self: RunFolder, *args: Any) -> Any:
        looks.append(1)
        return None if len(looks) == 1 else look(self, *args)  # the first time, there was no config yet

    RunFolder._check = looked  # type: ignore[method-assign]
    with init_distributed("cpu") as world:
        try:
            RunFolder(out, world).claim(config, extend=False)
        except VitreousError as error:
            os._exit(2 if "another process is training" in str(error) else 3)
    os._exit(0)


def test_sigterm_ends_the_command_with_143_and_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [sys.executable, "-m", "vitreous", "pretrain", "builtin:digits", "--model", "ViT-Ti/2", "--quiet"]
    words += ["--set", ",".join(TINY)]
    words += ["--steps", "200", "--batch-size", "32", "--workers", "0", "--eval-every", "0", "--precision", "float32"]
    words += ["--out", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE)
    until = time.monotonic() + 120
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < until and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert len(states(tmp_path / "run")) == 1
    monkeypatch.setattr(sys, "argv", ["vitreous", *words[3:]])
    assert main() == 0
    assert metrics(tmp_path / "run")[-1]["step"] == 200


def test_a_run_is_not_started_beside_itself(tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = child(out, steps=100_000, eval_every=0)
    assert wait_for(lambda: len(metrics(out)) > 0, process)
    try:
        with pytest.raises(VitreousError, match="another process is training this run"):
            pretrain(out, steps=100_000, eval_every=0)
        assert process.is_alive()
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.join()


def test_a_disk_that_is_really_full_ends_with_one_line(tmp_path: Path) -> None:
    """A limit on the size of files is met by torch's own writer, in its own thread."""
    import resource

    pretrain(tmp_path / "whole", save_every=4, eval_every=0)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))  # a state is larger
    try:
        with pytest.raises(VitreousError, match=r"cannot save the state of step 4 \(File too large\).*no state was saved yet"):
            pretrain(tmp_path / "run", save_every=4, eval_every=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    pretrain(tmp_path / "run", save_every=4, eval_every=0)
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")
