"""The device and precision chosen, with real child processes; the trap itself is set up again with real oneDNN state."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vitreous.core import device as machine
from vitreous.core.device import Precision, Trial, choose_device, choose_precision
from vitreous.core.errors import VitreousError

needs_fork = pytest.mark.skipif(not machine._can_fork(), reason="no fork here")
needs_onednn = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available(),
    reason="oneDNN's limit is a matter of x86 processors",
)


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(machine.VARIABLE, raising=False)
    trial = machine.try_bfloat16
    trial.cache_clear()
    yield
    trial.cache_clear()
    os.environ.pop(machine.VARIABLE, None)


@pytest.fixture
def processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A machine whose processor announces these instructions."""

    def announces(flags: str) -> None:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu sse2 {flags}\n")
        monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")

    return announces


def child(monkeypatch: pytest.MonkeyPatch, measure: Callable[[], float]) -> list[str | None]:
    """Every trial does this in its child; the limit at the time of each is returned."""
    limits: list[str | None] = []
    forked = machine._try_in_fork

    def noted(_: Callable[[], float]) -> Trial:
        limits.append(os.environ.get(machine.VARIABLE))
        return forked(measure)

    monkeypatch.setattr(machine, "_try_in_fork", noted)
    monkeypatch.setattr(machine, "_can_fork", lambda: True)
    return limits


def dies(number: signal.Signals = signal.SIGILL) -> float:
    os.kill(os.getpid(), number)
    time.sleep(30)
    return 0.0


def dies_without_limit() -> float:
    return dies() if os.environ.get(machine.VARIABLE) != machine.LIMIT else 0.5


# What is chosen --------------------------------------------------------------------------------------------------------


def test_float32_needs_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "try_bfloat16", lambda: pytest.fail("a trial was run"))
    assert choose_precision("float32", "cpu") == Precision("float32", None)


def test_auto_on_a_processor_without_bfloat16_needs_no_trial(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    processor("avx2")
    monkeypatch.setattr(machine, "try_bfloat16", lambda: pytest.fail("a trial was run"))
    assert choose_precision("auto", "cpu") == Precision("float32", None)


@needs_fork
@pytest.mark.parametrize(("speed", "name"), [(0.5, "float32"), (1.19, "float32"), (1.2, "bfloat16"), (3.0, "bfloat16")])
def test_auto_takes_bfloat16_where_it_is_faster(
    processor: Any, monkeypatch: pytest.MonkeyPatch, speed: float, name: str
) -> None:
    processor("avx512_bf16 amx_bf16")
    limits = child(monkeypatch, lambda: speed)
    precision = choose_precision("auto", "cpu")
    assert precision.name == name
    assert precision.note is not None
    assert f"{speed:.2g} times" in precision.note
    assert limits == [None]
    assert machine.VARIABLE not in os.environ


@needs_fork
def test_a_trial_is_remembered(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    processor("avx512_bf16")
    limits = child(monkeypatch, lambda: 2.0)
    assert choose_precision("auto", "cpu").name == choose_precision("bfloat16", "cpu").name == "bfloat16"
    assert len(limits) == 1


@needs_fork
def test_slow_bfloat16_is_allowed_and_said(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    processor("avx2")
    child(monkeypatch, lambda: 0.05)
    name, note = choose_precision("bfloat16", "cpu")
    assert name == "bfloat16"
    assert note is not None
    assert "0.05 times" in note
    assert "memory only" in note


@needs_fork
@pytest.mark.parametrize(("wanted", "name"), [("auto", "float32"), ("bfloat16", "bfloat16")])
def test_the_trap_is_avoided_by_the_limit(
    processor: Any, monkeypatch: pytest.MonkeyPatch, wanted: machine.PrecisionOption, name: str
) -> None:
    processor("amx_bf16")
    limits = child(monkeypatch, dies_without_limit)
    precision = choose_precision(wanted, "cpu")
    assert limits == [None, machine.LIMIT]
    assert precision.name == name
    assert precision.note is not None
    assert machine.LIMIT in precision.note
    assert "\n" not in precision.note
    assert os.environ[machine.VARIABLE] == machine.LIMIT  # holds for what this process does later


@needs_fork
def test_a_limit_that_comes_too_late(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    processor("amx_bf16")
    monkeypatch.setenv(machine.VARIABLE, "ALL")
    limits = child(monkeypatch, dies)
    precision = choose_precision("auto", "cpu")
    assert precision.name == "float32"
    assert precision.note is not None
    assert "SIGILL" in precision.note
    with pytest.raises(VitreousError, match=r"--precision bfloat16: .*SIGILL.*float32, or set ONEDNN_MAX_CPU_ISA=") as error:
        choose_precision("bfloat16", "cpu")
    assert "\n" not in str(error.value)
    assert limits == ["ALL", machine.LIMIT]
    assert os.environ[machine.VARIABLE] == "ALL"  # a limit without effect is not left behind


@needs_fork
def test_other_deaths_are_not_cured_by_the_limit(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    processor("amx_bf16")
    limits = child(monkeypatch, lambda: dies(signal.SIGSEGV))
    with pytest.raises(VitreousError, match="SIGSEGV"):
        choose_precision("bfloat16", "cpu")
    assert limits == [None]


@needs_fork
def test_a_child_that_hangs_is_ended(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    processor("amx_bf16")
    monkeypatch.setattr(machine, "PATIENCE", 0.2)

    def hangs() -> float:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        return 1.0

    child(monkeypatch, hangs)
    precision = choose_precision("auto", "cpu")
    assert precision.name == "float32"
    assert "did not end" in (precision.note or "")
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)  # and it was waited for: none is left


@needs_fork
def test_a_child_that_fails_says_why(processor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    processor("avx512_bf16")

    def fails() -> float:
        raise RuntimeError("mm not implemented\nfor 'BFloat16'")

    child(monkeypatch, fails)
    with pytest.raises(VitreousError, match="mm not implemented for 'BFloat16'"):
        choose_precision("bfloat16", "cpu")


@needs_fork
def test_no_descriptors_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", none_left)
    assert "Too many open files" in (machine._try_in_fork(lambda: 1.0).fault or "")


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (0, "warning\n1.5\n", Trial(1.5)),
        (0xC000001D, "", Trial(fault=f"a trial of it ended with code {0xC000001D}")),
        (-4, "", Trial(fault="a trial of it died of SIGILL")),
    ],
)
def test_without_fork_a_new_interpreter_tries(monkeypatch: pytest.MonkeyPatch, code: int, output: str, expected: Trial) -> None:
    monkeypatch.setattr(machine, "_can_fork", lambda: False)
    monkeypatch.setattr(machine.subprocess, "run", lambda *a, **k: SimpleNamespace(returncode=code, stdout=output))
    assert machine.try_bfloat16() == expected
    assert machine.VARIABLE not in os.environ  # nobody could tell whether it came in time


def test_without_fork_a_new_interpreter_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PATIENCE", 0.05)
    assert "timed out" in (machine._try_in_new_process().fault or "")


def test_unknown_precision() -> None:
    with pytest.raises(VitreousError, match="auto, float32 or bfloat16"):
        choose_precision("float16", "cpu")  # type: ignore[arg-type]


# Accelerators, of which there is none here: torch's answers are given --------------------------------------------------


class _Accelerator:
    def __init__(self, bf16: bool) -> None:
        self.bf16 = bf16
        self.asked: list[str] = []

    def device(self, device: str) -> Any:
        self.asked.append(device)
        return torch.no_grad()  # any context

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return self.bf16 or including_emulation


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
@pytest.mark.parametrize(
    ("bf16", "wanted", "name", "noted"),
    [
        (True, "auto", "bfloat16", False),
        (True, "bfloat16", "bfloat16", False),
        (False, "auto", "float32", True),
        (False, "bfloat16", "bfloat16", True),
    ],
)
def test_accelerators(
    monkeypatch: pytest.MonkeyPatch, kind: str, bf16: bool, wanted: machine.PrecisionOption, name: str, noted: bool
) -> None:
    accelerator = _Accelerator(bf16)
    monkeypatch.setattr(torch, kind, accelerator)
    precision = choose_precision(wanted, f"{kind}:1")
    assert precision.name == name
    assert (precision.note is not None) == noted
    assert accelerator.asked == [f"{kind}:1"]


def test_mps() -> None:
    assert choose_precision("auto", "mps") == Precision("float32", None)
    assert choose_precision("bfloat16", "mps").name == "bfloat16"


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_count_devices", lambda: {"cuda": 2, "cpu": 1})
    assert choose_device("auto") == "cuda"
    assert choose_device("cuda:1") == "cuda:1"
    assert choose_device("cpu") == "cpu"
    for wrong in ("gpu", "mps", "cuda:2", "cuda:x"):
        with pytest.raises(
            VitreousError, match=rf"--device {wrong}: not on this machine.*cuda \(2 of them, cuda:0 to cuda:1\), cpu"
        ):
            choose_device(wrong)


def test_devices_are_those_that_compute() -> None:
    for kind in machine._count_devices():
        assert float(torch.ones(3, device=kind).sum()) == 3.0
    assert list(machine._count_devices())[-1] == "cpu"


# This machine, really --------------------------------------------------------------------------------------------------


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "2", **environment}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, timeout=120, check=False)


@needs_fork
def test_bfloat16_as_this_machine_does_it() -> None:
    """After a product in several threads, whose pool no forked child has; and a linear layer with autograd follows."""
    done = run(
        "import torch\n"
        "from vitreous.core.device import choose_precision, VitreousError\n"
        "a = torch.ones(512, 512, requires_grad=True)\n"
        "(a @ a).sum().backward()\n"
        "try:\n"
        "    print(choose_precision('bfloat16', 'cpu').name)\n"
        "except VitreousError:\n"
        "    print('refused')\n"
        "else:\n"
        "    b = a[:64, :64].bfloat16(); (b @ b).sum().backward()\n"
        "    print('done')\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.split() in (["bfloat16", "done"], ["refused"])


def really_trapped() -> bool:
    """Whether a bfloat16 product, in a child of its own, dies here."""
    return "amx" in (Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else "") and (
        run("import torch; a = torch.ones(64, 64).bfloat16(); a @ a", ONEDNN_MAX_CPU_ISA="DEFAULT").returncode == -signal.SIGILL
    )


@needs_fork
def test_the_trap_of_this_machine() -> None:
    if not really_trapped():
        pytest.skip("this machine has no trap: its processor announces no AMX, or AMX works")
    choose = "import torch\nfrom vitreous.core.device import choose_precision as choose\n"
    product = "a = torch.ones(64, 64).bfloat16(); a @ a\n"
    in_time = run(f"{choose}print(choose('bfloat16', 'cpu').note)\n{product}")
    assert in_time.returncode == 0, in_time.stderr
    assert machine.LIMIT in in_time.stdout
    late = run(f"{choose}a = torch.ones(64, 64); a @ a\nchoose('bfloat16', 'cpu')")
    assert "VitreousError: --precision bfloat16: it does not run in this process" in late.stderr


# The same trap on any x86 machine: oneDNN with the limit SSE41 takes other kernels, and a child that sees it take the
# kernels it would take without dies of SIGILL. So what is tested is when oneDNN really reads its limit. One process, in
# which nothing has run, is forked for each case: importing torch takes longer than all of them.
_TRAP = """
import contextlib, os, signal, tempfile, torch, vitreous
from vitreous.core import device as machine

machine.LIMIT = "SSE41"

def trapped():
    torch.set_num_threads(1)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
            torch.nn.functional.conv2d(torch.ones(1, 3, 8, 8), torch.ones(8, 3, 4, 4))
        file.seek(0)
        kernels = file.read()
    if b"sse41" not in kernels:
        os.kill(os.getpid(), signal.SIGILL)
    return 1.5

machine._measure_speedup = trapped
cases = {
    "nothing": lambda: None,
    "tensors": lambda: (torch.randn(64, 64) + 1).softmax(0).sum(),
    "model": lambda: vitreous.create("ViT-Ti/16", depth=2),
    "product": lambda: torch.ones(64, 64) @ torch.ones(64, 64),
    "gelu": lambda: torch.nn.functional.gelu(torch.ones(8, 8)),
    "forward": lambda: vitreous.create("ViT-Ti/16", depth=2)(torch.ones(1, 3, 224, 224)).sum().backward(),
}
for name, before in cases.items():
    if pid := os.fork():
        os.waitpid(pid, 0)
        continue
    before()
    try:
        said = machine.choose_precision("bfloat16", "cpu").note
    except machine.VitreousError as error:
        said = str(error)
    print(f"{name}: {said}", flush=True)
    os._exit(0)
"""


@needs_fork
@needs_onednn
def test_the_limit_takes_effect_until_the_first_product() -> None:
    done = run(_TRAP)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # the deaths leave no trace
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    in_time, late = ("nothing", "tensors", "model"), ("product", "gelu", "forward")
    assert list(said) == [*in_time, *late]
    for case in in_time:
        assert said[case].endswith("so oneDNN is limited to SSE41"), case
    for case in late:
        assert said[case].startswith("--precision bfloat16: it does not run in this process (a trial of it died of SIGILL)"), (
            case
        )


@pytest.mark.parametrize(("fault", "limit"), [("a trial of it died of SIGILL", machine.LIMIT), ("no memory", None)])
def test_the_amx_trap_is_avoided_for_other_libraries(
    fault: str, limit: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """AMX is claimed and its trial dies, even with the limit, because torch's oneDNN has read it: others' has not."""
    (tmp_path / "cpuinfo").write_text("flags : amx_tile amx_bf16")
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(machine, "try_bfloat16", lambda: machine.Trial(fault=fault))
    monkeypatch.setenv(machine.VARIABLE, "")
    monkeypatch.delenv(machine.VARIABLE)
    machine.avoid_amx_trap()
    assert os.environ.get(machine.VARIABLE) == limit
    monkeypatch.setattr(machine, "try_bfloat16", lambda: pytest.fail("the limit is set already"))
    if limit:
        machine.avoid_amx_trap()
