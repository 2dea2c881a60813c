"""Runs the commands and code blocks of a Markdown page, in order, in a folder like its reader's.

`photos/` is generated, named weights are tiny ones in a local cache, a bucket is a folder. Of the blocks, ```bash has commands;
one without a language is a session, in which `$ ` begins a command and the rest is output; ```python is run; others are not.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous.cli import _parse, main
from vitreous.data.open import open_data
from vitreous.data.source import Source
from vitreous.weights.write import save_checkpoint

from conftest import random_checkpoint

ROOT = Path(__file__).parent.parent
BUCKET = "s3://my-bucket/photos/"
LONG = {"demo": "make demo runs it", "study": "takes hours; tests/studies run small ones"}  # only parsed


def make_reader_folder(folder: Path) -> None:
    """photos/, cat.jpg and checkpoints, as the pages' reader has them."""
    source = open_data("builtin:shapes?size=64&count=2000").source("train")
    assert isinstance(source, Source)
    for label in range(3):
        for number, index in enumerate(np.flatnonzero(source.targets() == label)[:24].tolist()):
            path = folder / "photos" / ("train" if number < 16 else "test") / source.classes[label] / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(source.read(index))).save(path)
    shutil.copy(path, folder / "cat.jpg")
    tiny = random_checkpoint("ViT-B/16", width=24, depth=1, heads=3, mlp=24, image_size=32, classes=3)
    save_checkpoint(tiny, folder / "cache" / "vit_models" / "imagenet21k" / "ViT-B_16.npz", "official")
    save_checkpoint(tiny, folder / "dinov2-s14", "huggingface")


def code_blocks(text: str) -> list[tuple[str, str]]:
    return [(language, body) for language, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)]


def commands_of(language: str, body: str) -> list[str]:
    lines = re.sub(r"\\\n\s*", "", body).splitlines()
    if language == "":
        return [line[2:] for line in lines if line.startswith("$ ")]
    return [line.partition("  #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def run_page(text: str, folder: Path) -> int:
    """How many blocks were run. The current folder must be `folder`."""
    count, names = 0, {}  # type: ignore[var-annotated]
    with ExitStack() as stack:
        servers: list[str] = []
        for language, body in code_blocks(text):
            if language == "python":
                exec(compile(body, "page", "exec"), names)
            elif language in ("", "bash"):
                for command in commands_of(language, body):
                    run_command(command, folder, stack, servers)
            else:
                continue
            count += 1
    return count


def run_command(command: str, folder: Path, stack: ExitStack, servers: list[str]) -> None:
    """One command, as it stands."""
    if BUCKET in command:  # a bucket of the reader's own: here a folder, behind fsspec all the same
        command = command.replace(BUCKET, f"file://{folder}/shards/")
    program, *words = shlex.split(command)
    if "&&" in words:
        for part in command.split(" && "):
            run_command(part, folder, stack, servers)
    elif program == "vitreous" and words[0] == "serve":
        call, *_ = _parse("serve", [*words[1:], "--port", "0"])  # of several servers on one machine, each has its own
        servers.append(stack.enter_context(call()).url)  # type: ignore[arg-type, attr-defined]
    elif program == "vitreous" and words[0] in LONG and "--paper" not in words:
        _parse(words[0], words[1:])
    elif program == "vitreous":
        code = main(words)
        assert code == 0 or (code == 1 and words[0] == "doctor"), f"{command}: exit code {code}"
    elif program == "torchrun":
        subprocess.run([sys.executable, "-m", "torch.distributed.run", *words], check=True, timeout=300)
    elif program == "curl":
        words = [re.sub(r"http://[\w.:]+", servers[-1], word) for word in words]
        found = subprocess.run([program, "--silent", "--fail", *words], capture_output=True, check=True, timeout=60)
        assert b"classes" in found.stdout
    elif program == "pip":
        check_install(words)
    elif program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), command
    else:
        raise AssertionError(f"{command}: how is it run?")


def check_install(words: list[str]) -> None:
    """Nothing is installed; extras and files that are named must exist."""
    extras: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        for extra in re.findall(r"\[(.*)\]", word):
            assert set(extra.split(",")) <= set(extras), word
        assert not word.endswith(".txt") or (ROOT / word).is_file()
