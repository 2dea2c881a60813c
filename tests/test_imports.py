"""Imports go one way, and the command line stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_direction_of_imports() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "words", [["--help"], ["convert", "--help"], ["predict", "--help"], ["verify", "--help"], ["list", "--help"]]
)
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    """What makes help answer at once: no torch, numpy, matplotlib or Pillow before it is needed."""
    program = f"""
import sys
from vitreous.cli import main
try:
    main({words!r})
except SystemExit as leave:
    assert leave.code == 0
heavy = {{"torch", "numpy", "matplotlib", "PIL", "safetensors"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Example" in done.stdout


def test_importing_the_package_is_light_and_every_public_name_resolves() -> None:
    program = """
import sys, vitreous
assert "torch" not in sys.modules
for name in vitreous.__all__:
    assert getattr(vitreous, name) is not None
assert set(vitreous.__all__) <= set(dir(vitreous))
import vitreous.inspection
for name in vitreous.inspection.__all__:
    assert callable(getattr(vitreous.inspection, name)), name
"""
    subprocess.run([sys.executable, "-c", program], check=True)
