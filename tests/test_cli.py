"""The command line: generated from the verbs, so that options, help and functions cannot drift apart."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
import tyro
from PIL import Image

import vitreous
from vitreous.classifier import Classifier, load
from vitreous.cli import _SYNONYMS, COMMANDS, SHELLS, _parse, load_command, main, parameter_types
from vitreous.commands import environment

from conftest import Reference, random_checkpoint

NAMES = ("ant", "bee", "cat")


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    Classifier(random_checkpoint("ViT-B/16", width=24, depth=1, heads=3, mlp=24, image_size=32, classes=3, names=NAMES)).save(
        tmp_path / "c"
    )
    return str(tmp_path / "c")


def make_image(path: Path, seed: int = 0, size: tuple[int, int] = (40, 50), mode: str = "RGB") -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_function_with_help_and_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert getattr(vitreous, name) is load_command(name)
    with pytest.raises(SystemExit) as leave:
        main([name, "--help"])
    assert leave.value.code == 0
    text = capsys.readouterr().out
    assert f"Example: vitreous {name}" in text
    assert "--json" in text
    usage, flags = text.splitlines()[0], set(re.findall(r"--[a-z0-9-]+", text))
    hints = parameter_types(load_command(name))
    if "options" in hints:  # those that every verb that trains has
        hints |= get_type_hints(get_args(hints.pop("options"))[0], include_extras=True)
    for option, hint in hints.items():
        if option == "return":
            continue
        words = [extra.metavar for extra in getattr(hint, "__metadata__", ()) if getattr(extra, "metavar", None)]
        if tyro.conf.Positional in getattr(hint, "__metadata__", ()):
            assert words[0] in usage, option
        else:
            name_of = option.rstrip("_").replace("_", "-")
            assert f"--{name_of}" in flags or f"--no-{name_of}" in flags, option


def test_the_overview_fits_one_screen_and_names_every_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 24 <= len(lines) <= 40
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line.startswith("  ") and line[2:12].strip() in COMMANDS] == [*COMMANDS]
    assert all(re.search(rf"\b{code}\b", lines[-3] + lines[-2]) for code in (0, 1, 2, 130, 143))


def test_version_and_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vitreous {vitreous.__version__}\n"
    monkeypatch.setattr(environment, "_OPTIONAL", {"no-such-package": "track"})
    monkeypatch.setenv("VITREOUS_CACHE", str(Path.home() / "somewhere"))
    assert main(["--version", "--verbose"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["torch"] == torch.__version__
    assert rows["numpy"] == np.__version__
    assert rows["no-such-package"] == "missing: pip install 'vitreous[track]'"
    assert rows["cache"] == "~/somewhere"
    assert main(["--version", "--bananas"]) == 2


def test_optional_packages_of_a_bug_report_are_those_of_the_extras() -> None:
    extras = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for package, extra in environment._OPTIONAL.items():
        assert any(re.match(rf"{package}\b", each) for each in extras[extra]), package


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fin", {"finetune"}),
        ("predict x --prec", {"--precision"}),
        ("convert a b --format ", {"vitreous", "official", "timm", "huggingface", "onnx", "openvino"}),
    ],
)
def test_completion_in_bash(words: str, expected: set[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--completion", "bash"]) == 0
    script = capsys.readouterr().out
    typed = ["vitreous", *words.split(" ")]
    words_of_bash = " ".join(f"'{word}'" for word in typed)
    ask = f'COMP_WORDS=({words_of_bash}); COMP_CWORD={len(typed) - 1}; _tyro_vitreous; printf "%s\\n" "${{COMPREPLY[@]}}"'
    (tmp_path / "completion.sh").write_text(f"{script}\n{ask}\n")
    done = subprocess.run(["bash", tmp_path / "completion.sh"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert {*done.stdout.split()} == expected, done.stderr


def test_completion_names_every_command_for_each_shell(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in SHELLS:
        assert main([f"--completion={shell}"]) == 0
        script = capsys.readouterr().out
        assert all(name in script for name in COMMANDS)
    assert main(["--completion", "ksh"]) == 2
    assert "must be one of bash, zsh, fish" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals here")
@pytest.mark.parametrize(("setting", "coloured"), [("", True), ("1", False)])
def test_help_on_a_terminal_has_colours_unless_no_color_is_set(setting: str, coloured: bool) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "vitreous", "list", "--help"]
    environ = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": setting}
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environ):
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # how Linux says that the other end is closed
            while more := os.read(ours, 4096):
                text += more
    os.close(ours)
    assert b"Example: vitreous list models" in text.replace(b"\r\n", b" ")
    assert (b"\x1b[" in text) == coloured


ALL = f"the commands are {', '.join(COMMANDS)}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("convret a b", "unknown command 'convret'; did you mean 'convert'?"),
        ("export a b", "unknown command 'export'; use 'convert'"),
        ("train", "unknown command 'train'; use 'finetune' or 'pretrain'"),
        ("Test", "unknown command 'Test'; use 'evaluate'"),
        ("knn", "unknown command 'knn'; use 'fewshot'"),
        ("explain", "unknown command 'explain'; use 'inspect'"),
        ("bananas", f"unknown command 'bananas'; {ALL}"),
        ("--json predict", "--json: the command comes first"),
        (
            "convert a b --fromat timm",
            "unknown option '--fromat'; did you mean '--format'? `vitreous convert --help`",
        ),
        ("convert a b --format=x", "--format 'x': must be one of huggingface, official, onnx, openvino, timm, vitreous"),
        ("convert a", "TO missing; for example: vitreous convert "),
        ("evaluate", "CHECKPOINT and DATA missing; for example: vitreous evaluate "),
        ("vtab x", "--out missing; for example: vitreous vtab "),
        ("list bananas", "'bananas': must be one of data, models, recipes, studies, weights"),
        ("evaluate a b --bananas 3", "unknown option '--bananas'; `vitreous evaluate --help` lists the options"),
        ("evaluate a b c", "unexpected argument 'c'; "),
        ("evaluate a b --seed x", "--seed 'x': must be a whole number"),
        ("evaluate a b --batch-size 1.5", "--batch-size '1.5': must be a whole number"),
        ("pretrain a --epochs many", "--epochs 'many': must be a number"),
        ("pretrain a --stpes 3", "unknown option '--stpes'; did you mean '--steps'? "),
        ("finetune a --lr 1e-3", "unknown option '--lr'; write it as --set lr=VALUE; "),
        ("pretrain a --drop-path 0.1", "unknown option '--drop-path'; write it as --set stochastic_depth=VALUE; "),
        ("predict a --lr 1", "unknown option '--lr'; `vitreous predict --help` lists the options"),
        ("doctor a --out b --near", "unknown option '--near'; did you mean '--no-near'? "),
        ("pretrain a --set lr=1 warmup=5", "unexpected argument 'warmup=5'; write several changes as --set a=1,b=2 or "),
        ("evaluate a b --seed", "--seed: its value is missing"),
        ("evaluate a b --image-size 1x2x3", "--image-size: '1x2x3' is neither one number, as 384, nor height,width"),
        ("pretrain builtin:digits --model bananas --out x", "unknown model 'bananas'; names are ViT-SIZE/PATCH "),
        ("evaluate bananas builtin:digits", "'bananas': no such file or folder, and no known weights; `vitreous list weights`"),
        ("predict cat.jpg model.npz", "cat.jpg: is an image, where a checkpoint is expected; the checkpoint comes first"),
        ("inspect cat.jpg model.npz --out x", "cat.jpg: is an image, where a checkpoint is expected"),
        ("study xyzzy --out x", "unknown study 'xyzzy'; valid: axial, compute, "),
        ("pretrain builtin:digits --config nowhere --out x", "nowhere: no such file; --config takes a run's folder or its "),
        ("predict nowhere/x.npz cat.jpg", "nowhere/x.npz: no such file or folder; check the path; `vitreous list weights`"),
        ("predict nowhere.onnx cat.jpg", "nowhere.onnx: no such file; `vitreous convert CHECKPOINT NAME.onnx` makes one"),
        ("shard xyzzy out", "'xyzzy': no such file or folder, and no known data set; `vitreous list data` shows them"),
        ("shard digit out", "'digit': no such file or folder, and no known data set; did you mean 'builtin:digits'? "),
    ],
)
def test_a_mistake_is_one_line_that_names_it_and_a_near_remedy(
    words: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "50")  # the parser wraps its words there
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"vitreous: {said}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    ["photos/ --set=lr=1 --set=warmup=5", "--set lr=1 photos/ --set warmup=5", "--set lr=1 --set warmup=5 photos/"],
)
def test_set_is_repeatable_and_never_swallows_data(words: str) -> None:
    call, _, _ = _parse("pretrain", words.split())
    assert isinstance(call, functools.partial)
    assert (call.keywords["data"], call.keywords["set"]) == ("photos/", ("lr=1", "warmup=5"))


def test_synonyms_are_of_commands_that_exist_and_are_none_themselves() -> None:
    assert set(_SYNONYMS) <= set(COMMANDS)
    assert not set(" ".join(_SYNONYMS.values()).split()) & set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_tells_defaults_in_words(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is done without an option, not None, True or False, which nobody can type."""
    with pytest.raises(SystemExit):
        main(["help", name])
    text = " ".join(line.strip("│ ") for line in capsys.readouterr().out.splitlines())
    assert not re.search(r"default: *'?(None|True|False|as it is|\))", text)
    assert "{[STR" not in text
    flags = [part for part in re.split(r" (?=--)", text) if re.match(r"--[a-z-]+ +[a-z]", part)]
    parameters = inspect.signature(load_command(name)).parameters.values()
    assert len(flags) >= 2 + sum(each.annotation in ("bool", bool) for each in parameters)  # --json and --quiet are of each
    for negative in (each for each in parameters if each.default is True):
        said = text.partition(f"--no-{negative.name}")[2].partition("--")[0]
        assert re.search(r"\(default: [a-z]+ [a-z ]+\)", said), said


def test_predict(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = make_image(tmp_path / "photos" / "a.png")
    make_image(tmp_path / "photos" / "deep" / "b.jpg", 1, mode="L")
    make_image(tmp_path / "photos" / ".hidden" / "c.jpg")
    (tmp_path / "photos" / "d.png").write_bytes(first.read_bytes()[:60])
    assert main(["predict", checkpoint, str(tmp_path / "photos"), str(tmp_path / "none.png"), "--json", "--top", "2"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(row["path"]).name for row in rows] == ["a.png", "d.png", "b.jpg", "none.png"]
    assert [sorted(row) for row in rows] == [["classes", "path", "preprocess", "probabilities"], ["error", "path"]] * 2
    assert len(rows[0]["classes"]) == 2
    assert set(rows[0]["classes"]) <= set(NAMES)
    expected = load(checkpoint).predict(first)
    assert rows[0]["probabilities"] == pytest.approx(expected.probabilities[:2])
    assert main(["predict", checkpoint, str(first)]) == 0
    assert "a.png" in (text := capsys.readouterr().out)
    assert expected.classes[0] in text
    assert main(["predict", checkpoint, str(first), "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_predict_with_nothing_to_do(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["predict", checkpoint, str(tmp_path / "empty")]) == 2
    assert "no images" in capsys.readouterr().err
    assert main(["predict", checkpoint, str(tmp_path / "none.png")]) == 2
    assert main(["predict", checkpoint, "x.png", "--top", "0"]) == 2


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("predict {}/run/pets x.jpg", "runs/pets"),
        ("predict {}/runs/pest/checkpoint x.jpg", "runs/pets/checkpoint"),
        ("evaluate {}/runs/pest builtin:digits", "runs/pets"),
        ("evaluate {}/pets.onnxx {}/runs/pest", "runs/pets"),
        ("predict {}/pests.onnx x.jpg", "pets.onnx"),
        ("pretrain builtin:digits --config {}/runs/pest/config.json --out x", "runs/pets/config.json"),
    ],
)
def test_a_misspelt_path_gets_the_nearest_one(
    words: str, meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs" / "pets" / "checkpoint").mkdir(parents=True)
    for name in ("runs/pets/config.json", "pets.onnx"):
        (tmp_path / name).touch()
    assert main([word.format(tmp_path) for word in words.split()]) == 2
    assert f"did you mean '{tmp_path / meant}'?" in capsys.readouterr().err


def test_a_misspelt_split_and_a_checkpoint_in_the_place_of_data(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_image(tmp_path / "photos" / "train" / "ant" / "a.png")
    assert main(["evaluate", checkpoint, f"{tmp_path}/photos:tset"]) == 2
    assert "photos:tset: no split is called 'tset'; did you mean 'test'? splits are" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "photos"), checkpoint]) == 2
    assert f"{checkpoint}: is a checkpoint, where images are expected; the checkpoint comes first" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_usage_puts_what_may_be_left_out_in_brackets(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["help", name])
    usage, function = capsys.readouterr().out.splitlines()[0].partition("]")[2], load_command(name)
    for option, hint in parameter_types(function).items():
        if tyro.conf.Positional in getattr(hint, "__metadata__", ()):
            word = next(extra.metavar for extra in hint.__metadata__ if getattr(extra, "metavar", None))
            needed = inspect.signature(function).parameters[option].default is inspect.Parameter.empty
            assert word in usage
            assert word.startswith("[") != needed, word


def test_convert_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Reference("vt_representation").path
    assert main(["convert", str(source), str(tmp_path / "ours"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["format"] == "vitreous"
    assert main(["convert", str(tmp_path / "ours"), str(tmp_path / "back.npz")]) == 0
    assert "official" in capsys.readouterr().out
    one, other = load(source).checkpoint.tensors, load(tmp_path / "back.npz").checkpoint.tensors
    assert all(torch.equal(other[key], tensor) for key, tensor in one.items())


def test_convert_for_transfer_says_what_it_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(Reference("vt_representation").path)
    options = ["--classes", "4", "--image-size", "40,48", "--format", "timm"]
    assert main(["convert", source, str(tmp_path / "t"), *options]) == 0
    said = capsys.readouterr().err
    assert "note: representation layer dropped" in said
    assert "3x3 to 5x6" in said
    assert main(["convert", source, str(tmp_path / "t"), *options, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert load(tmp_path / "t").config.image_size == (40, 48)


@pytest.mark.parametrize(
    ("target", "options", "word"),
    [
        ("x.pth", [], ".pth"),
        ("x.onxx", [], "cannot write .onxx; did you mean '.onnx'? files end in .npz, .onnx, .xml"),
        ("x.NPZ", [], "did you mean '.npz'?"),
        ("x.safetensor", [], "cannot write .safetensor"),
        ("x.npz", ["--format", "timm"], "folder"),
        ("x", ["--format", "official"], ".npz"),
        ("x", ["--image-size", "41"], "40 or 48"),
        ("x", ["--image-size", "1x2x3"], "neither one number"),
    ],
)
def test_convert_refuses(
    target: str, options: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["convert", str(Reference("vt_representation").path), str(tmp_path / target), *options]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert word in said
    assert "PrimitiveConstructorSpec" not in said
    assert not (tmp_path / target).exists()


@pytest.mark.parametrize(
    ("target", "options"), [("v1.2", []), ("dinov2.pets", []), ("vit.s", []), ("x.onxx", ["--format", "vitreous"])]
)
def test_convert_writes_folders_with_dots_in_their_names(target: str, options: list[str], tmp_path: Path) -> None:
    assert main(["convert", str(Reference("vt_representation").path), str(tmp_path / target), *options, "--quiet"]) == 0
    assert (tmp_path / target / "model.safetensors").is_file()


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "models", "--json"]) == 0
    models = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert models["ViT-B/16"]["parameters"] == 86_567_656
    assert main(["list", "weights"]) == 0
    text = capsys.readouterr().out
    assert "ViT-B/16@imagenet21k" in text
    assert "google/vit-base-patch16-224" in text


def test_convert_onto_itself_is_refused(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path(checkpoint, "model.safetensors").read_bytes()
    assert main(["convert", checkpoint, checkpoint, "--classes", "7"]) == 2
    assert "another place" in capsys.readouterr().err
    assert Path(checkpoint, "model.safetensors").read_bytes() == before


def test_the_cells_of_a_column_are_aligned() -> None:
    from vitreous.core.table import table

    drawn = table(("similarity", "heads", "rate"), [(1.0, 12, 0.0008), (0.9271, None, 0.48), (0.91749, 3, 0.0)])
    assert [line.split() for line in drawn.splitlines()[3:6]] == [
        ["1.000", "12", "0.0008"],
        ["0.927", "-", "0.48"],
        ["0.917", "3", "0"],
    ]
    assert len({len(line) for line in drawn.splitlines()[3:6]}) == 1


def test_names_that_are_no_unicode_and_names_with_brackets(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    from vitreous.core.table import table

    assert "a[/b].jpg" in table(("path",), [("a[/b].jpg",)])
    long = "/data/photographs/of/last/summer/[and]/this/IMG_2041.jpg"  # on one line, to be copied
    assert table(("n",), [(1,)], title=long).splitlines()[0] == long
    (tmp_path / "photos" / "a").mkdir(parents=True)
    for number in range(2):
        (tmp_path / "photos" / "a" / os.fsdecode(b"\xff%d.jpg" % number)).write_bytes(b"")
    for options in ([], ["--json"]):
        assert main(["doctor", str(tmp_path / "photos"), "--out", str(tmp_path / "out"), "--workers", "0", *options]) == 1
        out = capsysbinary.readouterr().out
        assert b"empty-file" in out
        assert b"udcff" in out or b"\\xff" in out or b"xff" in out
    json.loads(out.splitlines()[0])
