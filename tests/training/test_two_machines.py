"""torchrun on two machines: two network namespaces joined by a virtual wire, each with addresses of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import TINY, digest, metrics, states, wait_for

PORT = "29417"


class Machine:
    """A network namespace with one end of the wire."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address

    def start(self, out: Path, master: str) -> Process:
        """One node of a job of two, as its user would type it on this machine."""
        settings = [f"--set={line}" for line in (*TINY, "average=0.9")]
        command = [
            "ip", "netns", "exec", self.name, sys.executable, "-m", "torch.distributed.run",
            "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "job",
            "--rdzv-endpoint", f"{master}:{PORT}", "--local-addr", self.address,
            # A namespace shares the host's name, by which torchrun would otherwise know on which machine it is.
            "--rdzv-conf", f"is_host={int(self.address == master)}", "-m", "vitreous",
            "pretrain", "builtin:digits", "--model", "ViT-Ti/2", "--out", str(out), "--steps", "60", "--batch-size", "32",
            "--subset", "200", "--save-every", "2", "--eval-every", "30", "--workers", "0", "--device", "cpu",
            "--precision", "float32", *settings,
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "wire"}
        return Process(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def lose_power(self) -> None:
        """Everything on the machine ends at once: the launcher and its worker."""
        pids = subprocess.run(["ip", "netns", "pids", self.name], check=True, capture_output=True, text=True).stdout
        for pid in pids.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


class Process(subprocess.Popen[bytes]):
    def is_alive(self) -> bool:
        return self.poll() is None


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Machine, Machine]]:
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    pair = (Machine(f"vitreous-a-{os.getpid()}", "10.213.7.1"), Machine(f"vitreous-b-{os.getpid()}", "10.213.7.2"))

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    with contextlib.ExitStack() as stack:
        try:
            for machine in pair:
                ip("netns", "add", machine.name)
                stack.callback(ip, "netns", "delete", machine.name)
            # Both ends are created inside: the names cannot collide with anything on the host.
            ip("link", "add", "wire", "netns", pair[0].name, "type", "veth", "peer", "name", "wire", "netns", pair[1].name)
            for machine in pair:
                ip("-n", machine.name, "address", "add", f"{machine.address}/24", "dev", "wire")
                for device in ("lo", "wire"):
                    ip("-n", machine.name, "link", "set", device, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        yield pair


def start_both(machines: tuple[Machine, Machine], out: Path) -> tuple[Process, Process]:
    first, second = machines
    return first.start(out, first.address), second.start(out, first.address)


def assert_done(process: Process) -> None:
    _, said = process.communicate(timeout=180)
    assert process.returncode == 0, said.decode()[-2000:]


def test_a_machine_that_is_lost_and_restarted_changes_no_byte(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    for process in start_both(machines, tmp_path / "undisturbed"):
        assert_done(process)
    out = tmp_path / "disturbed"
    first, second = start_both(machines, out)
    assert wait_for(lambda: max(states(out), default=0) >= 4, first, 120)
    machines[1].lose_power()
    second.communicate()
    first.communicate(timeout=120)
    assert first.returncode != 0  # it does not hang, and does not call the run finished
    assert not (out / "checkpoint" / "model.safetensors").exists()
    for process in start_both(machines, out):
        assert_done(process)
    assert "resuming from the state of step" in (out / "log.txt").read_text()
    assert digest(out) == digest(tmp_path / "undisturbed")
    assert [record["step"] for record in metrics(out, "train")] == list(range(1, 61))
