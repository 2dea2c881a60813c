"""What is released: wheel and source archive, the versions they state, and the remedy where an extra is not installed."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source archive, and the wheel that is built from it: as pip does on a machine that has only the archive."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    build = "import sys; from hatchling import build; print(getattr(build, sys.argv[1])(sys.argv[2]))"

    def run(what: str, where: Path) -> Path:
        command = [sys.executable, "-c", build, what, str(folder)]
        return folder / subprocess.run(command, cwd=where, capture_output=True, text=True, check=True).stdout.split()[-1]

    sdist = run("build_sdist", ROOT)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    return sdist, run("build_wheel", next((folder / "unpacked").iterdir()))


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(released: tuple[Path, Path]) -> None:
    tracked = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    with zipfile.ZipFile(released[1]) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
        metadata = message_from_string(wheel.read(next(n for n in wheel.namelist() if n.endswith("METADATA"))).decode())
    assert held == {name.removeprefix("src/") for name in tracked}
    assert metadata["Version"] == PROJECT["version"]
    core = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert sorted(re.split(r"[<>=]", line)[0] for line in core) == sorted(
        re.split(r"[<>=]", line)[0] for line in PROJECT["dependencies"]
    )


def test_one_version_everywhere() -> None:
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert cited[1] == PROJECT["version"]


def test_every_dependency_is_pinned_for_the_readme_commands() -> None:
    pins = {line.partition("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines()}
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    names = {re.split(r"[\[<>=~ ;]", line)[0].lower() for line in [*PROJECT["dependencies"], *extras]}
    assert names - pins <= {"wandb"}  # which no test installs


# For each extra, a command that needs it, and a module whose absence it meets.
@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        (["serve", "nothing"], "uvicorn", "serve"),
        (["pretrain", "hf:someone/something", "--out", "run"], "datasets", "hub"),
        (["pretrain", "builtin:digits", "--out", "run"], "sklearn", "demo"),
        (["convert", "nothing", "x.onnx"], "onnx", "export"),
        (["pretrain", "builtin:letters", "--track", "tensorboard", "--out", "run"], "tensorboard", "track"),
    ],
)
def test_a_missing_extra_is_met_with_the_line_to_type(words: list[str], missing: str, extra: str, tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules[{missing!r}] = None
from vitreous.cli import main
sys.exit(main({words!r}))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"vitreous[{extra}]" in done.stderr
    assert "Traceback" not in done.stderr
