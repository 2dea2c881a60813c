"""Damaged and hostile checkpoints of every format: our own error or a model, in 5 seconds and 1 GB.

Bytes are changed at random; and, because most such files fail at the first check, also behind the checks: a leaf of a JSON
file or of a safetensors header, a member of an archive with its checksum made right again, weights whose new hash is put in
model.json.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitreous.classifier import Classifier, load
from vitreous.core.errors import VitreousError
from vitreous.weights.read import read_path

from conftest import Budget, mutate, random_checkpoint

IMAGE = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)
KINDS = ("vitreous", "timm", "huggingface", "dinov2", "hybrid", "official", "pth", "sharded")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The files of one small checkpoint of each kind, by name."""
    root = tmp_path_factory.mktemp("bases")
    tiny: dict[str, Any] = dict(width=8, depth=2, heads=2, mlp=16, image_size=16, patch=8, classes=3)
    plain = Classifier(random_checkpoint("ViT-B/16", names=("ant", "bee", "cat"), **tiny))
    plain.save(root / "vitreous")
    for name in ("timm", "huggingface"):
        Classifier(random_checkpoint("ViT-B/16", activation="gelu-erf", **tiny)).save(root / name, format=name)  # type: ignore[arg-type]
    dino = dict(activation="gelu-erf", layer_scale=1e-5, registers=2, mask_token=True, pool="token+mean")
    Classifier(random_checkpoint("ViT-B/16", **tiny, **dino)).save(root / "dinov2", format="huggingface")
    dinov3 = dict(positions="rope", layer_scale=1e-5, registers=2, key_bias=False, mlp_form="swiglu", norm_eps=1e-5)
    Classifier(random_checkpoint("ViT-B/16", **{**tiny, "classes": 0}, **dinov3)).save(root / "dinov3", format="huggingface")
    Classifier(random_checkpoint("ViT-B/16", **tiny, **dinov3)).save(root / "dinov3-timm", format="timm")
    for name, tower in (("clip", dict(embedding_norm=True)), ("siglip", dict(pool="map"))):
        Classifier(random_checkpoint("ViT-B/16", **{**tiny, "classes": 0}, **tower)).save(root / name, format="huggingface")
    hybrid = dict(tiny, patch=1, image_size=16, trunk_units=(1,), trunk_width=32)
    Classifier(random_checkpoint("R50+ViT-B/16", **hybrid)).save(root / "hybrid")
    (root / "official").mkdir()
    plain.save(root / "official" / "x.npz")
    arrays = load(root / "timm")  # timm's own names, as a training script saves them
    tensors = _safetensors(root / "timm" / "model.safetensors")
    assert arrays.config.classes == 3
    (root / "pth").mkdir()
    torch.save({"state_dict": tensors, "epoch": 3, "optimizer": {"state": {0: {"step": 1.0}}}}, root / "pth" / "x.pth")
    shutil.copy(root / "timm" / "config.json", root / "pth")
    (root / "sharded").mkdir()
    for name in ("config.json", "preprocessor_config.json"):
        shutil.copy(root / "huggingface" / name, root / "sharded")
    shutil.copy(root / "huggingface" / "model.safetensors", root / "sharded" / "part-1.safetensors")
    where = dict.fromkeys(_safetensors(root / "huggingface" / "model.safetensors"), "part-1.safetensors")
    (root / "sharded" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    made = {kind: {path.name: path.read_bytes() for path in (root / kind).iterdir()} for kind in KINDS}
    for kind in KINDS:  # what is damaged below was whole
        assert load(_target(root / kind)).config.classes == 3
        made[kind] = {name: data for name, data in made[kind].items() if not name.endswith(".md")}
    return made


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    import safetensors.torch

    return safetensors.torch.load_file(path)


def _target(folder: Path) -> Path:
    return next((path for path in folder.iterdir() if path.suffix in (".npz", ".pth")), folder)


# Changes that pass the first checks ------------------------------------------------------------------------------------

NONSENSE: tuple[Callable[[random.Random], Any], ...] = (
    lambda rng: rng.choice((0, -1, 1, 2, 3, 7, 10**6, 10**9, 2**63, 10**30, 10**400 % 10**18)),
    lambda rng: rng.choice((1e30, -1e300, 1e308, 0.0, -0.5, 1e-300, float("nan"), float("inf"))),
    lambda rng: rng.choice((None, True, False, "", "x", "\x1b[2J\n", "\ud800", "9" * 5000, "gelu", "token", "..", "/")),
    lambda rng: rng.choice(([], {}, [1] * 3, [[[[]]]], {"a": {"b": [None]}}, [0, -1], [10**9, 10**9], ["a"] * 2000)),
    lambda rng: "|".join(["resize(16)"] * rng.choice((2, 31, 100_000))),
    lambda rng: rng.choice(("resize(9999999999999)|range(-1,1)", "resize(60000)", "pad(65536)", "resize_small(2)", "flip")),
)


def _change_leaf(value: Any, rng: random.Random) -> Any:
    """A copy in which one thing, anywhere inside, is nonsense, missing or twice there."""
    if isinstance(value, (dict, list)) and value and rng.random() < 0.9:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        copy = value.copy()
        if rng.random() < 0.1:
            del copy[key]
        elif isinstance(copy, dict) and rng.random() < 0.05:
            copy[rng.choice(("", "x" * 2000, "depth", "\n"))] = copy.pop(key)
        else:
            copy[key] = _change_leaf(value[key], rng)
        return copy
    return rng.choice(NONSENSE)(rng)


def _change_json(data: bytes, rng: random.Random) -> bytes:
    fields = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        fields = _change_leaf(fields, rng)
    text = json.dumps(fields)
    if rng.random() < 0.03:
        text = text.replace("3", rng.choice(("[" * 5000, "1e400", "9" * 5000)), 1)
    return text.encode("utf-8", "surrogatepass")


def _change_header(data: bytes, rng: random.Random) -> bytes:
    length = struct.unpack("<Q", data[:8])[0]
    header = _change_json(data[8 : 8 + length], rng)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def _change_weights(data: bytes, rng: random.Random) -> bytes:
    """Numbers of a safetensors file: NaN, infinite, huge."""
    length = struct.unpack("<Q", data[:8])[0]
    numbers = np.frombuffer(data[8 + length :], np.float32).copy()
    numbers[rng.randrange(len(numbers)) :: rng.choice((1, 5, 1000))] = rng.choice((np.nan, np.inf, 3e38, 1e20))
    return data[: 8 + length] + numbers.tobytes()


def _change_member(data: bytes, rng: random.Random) -> bytes:
    """One member of an archive, most often the pickle, with checksums that are right."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        names = old.namelist()
        chosen = next((n for n in names if n.endswith(".pkl")), None) if rng.random() < 0.8 else None
        chosen = chosen or rng.choice(names)
        packed = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        for name in names:
            content = old.read(name)
            if name == chosen:
                # Of an array the header: what follows is numbers.
                content = mutate(content[:128], rng) + content[128:] if name.endswith(".npy") else mutate(content, rng)
            new.writestr(name, content, packed)
    return out.getvalue()


def _damaged(name: str, data: bytes, rng: random.Random) -> bytes:
    changes: list[Callable[[bytes, random.Random], bytes]] = [mutate]
    if name.endswith(".json"):
        changes += [_change_json] * 6
    elif name.endswith(".safetensors"):
        changes += [_change_header] * 2 + [_change_weights]
    else:
        changes += [_change_member] * 3
    return rng.choice(changes)(data, rng)


def _resigned(files: dict[str, bytes]) -> dict[str, bytes]:
    """model.json and an .npz's .json know the hash of the weights: an attacker writes the new one there."""
    for document, weights in (("model.json", "model.safetensors"), ("x.json", "x.npz")):
        try:
            fields = json.loads(files.get(document, b"null"))
            fields["weights"]["sha256"] = hashlib.sha256(files[weights]).hexdigest()
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        files[document] = json.dumps(fields).encode()
    return files


def test_damaged_checkpoints(bases: dict[str, dict[str, bytes]], rounds: Callable[[int, int], range], tmp_path: Path) -> None:
    loaded = 0
    for case in rounds(160, 10_000):
        rng = random.Random(case)
        kind = KINDS[case % len(KINDS)]
        files = dict(bases[kind])
        for name in rng.sample(sorted(files), rng.choice((1, 1, 1, 2)) if len(files) > 1 else 1):
            files[name] = _damaged(name, files[name], rng)
        folder = tmp_path / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, data in (_resigned(files) if rng.random() < 0.9 else files).items():
            (folder / name).write_bytes(data)
        try:
            with Budget():
                clf = load(_target(folder))
                loaded += 1
                if clf.config.classes and clf.config.tokens < 1000 and (clf.preprocess.size or (999, 1)) < (65, 0):
                    clf.predict(IMAGE)
        except VitreousError as error:
            assert "\n" not in str(error), f"case {case} of {kind}: {error}"
        except BaseException as error:
            raise AssertionError(f"case {case} of {kind}, {sorted(files)}") from error
    assert loaded > 0  # the rest was refused; if all were, nothing behind the checks was tried
    print(f"{case + 1} damaged checkpoints, {loaded} loaded all the same")


# Bombs: small files that ask for much ----------------------------------------------------------------------------------


def _program(body: bytes) -> bytes:
    return b"\x80\x02" + body + b"."


def _doubled_tuples(depth: int) -> bytes:
    """((t, t), (t, t)) ...: small in memory, endless to hash, to compare and to write out."""
    return b")" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(depth))


PAIRS = b"".join(b"M%bK\x02\x86" % struct.pack("<H", i) for i in range(5000))
COPY = b"ccollections\nOrderedDict\nh\x01\x85Ra"
BOMBS: dict[str, bytes] = {
    "hash": _program(b"}" + _doubled_tuples(60) + b"K\x01s"),
    "name": _program(_doubled_tuples(60) + b"q\xfeh\xfe\x93"),
    "copies": _program(
        b"](" + b"".join(b"M%bK\x02\x86" % struct.pack("<H", i) for i in range(5000)) + b"lq\x01a" + COPY * 5000
    ),
    "steps": _program(b"N" * 16_000_000 + b"}"),
    "names": _program(b"}q\x00" + (b"X" + struct.pack("<I", 9000) + b"a" * 9000 + b"}") * 1000 + b"s" * 1000),
    "nested": _program(b"]" * 100_000 + b"a" * 99_999),
}


def _torch_file(path: Path, program: bytes, members: dict[str, bytes] | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", program)
        for name, data in (members or {}).items():
            archive.writestr(f"x/{name}", data)
    return path


@pytest.mark.parametrize("bomb", sorted(BOMBS))
def test_a_pickle_that_would_run_for_ever(bomb: str, tmp_path: Path) -> None:
    path = _torch_file(tmp_path / "x.pth", BOMBS[bomb])
    with Budget(), pytest.raises(VitreousError):
        read_path(path)


def test_a_small_archive_of_large_members(tmp_path: Path) -> None:
    zeros = bytes(100 << 20)
    for name, members in (("x.pth", {"data/0": zeros}), ("x.npz", {"embedding/kernel.npy": zeros})):
        path = _torch_file(tmp_path / name, _program(b"}"), members)
        assert path.stat().st_size < 1 << 20
        with Budget(), pytest.raises(VitreousError, match="would unpack"):
            read_path(path)


def test_tensors_that_all_look_at_the_same_numbers(tmp_path: Path) -> None:
    """A thousand views of one storage: each would be copied whole."""
    whole = torch.zeros(1 << 18)
    torch.save({str(i): whole[i:] for i in range(1000)}, tmp_path / "x.pth")
    with Budget(), pytest.raises(VitreousError, match="far larger than the file"):
        read_path(tmp_path / "x.pth")


@pytest.mark.parametrize(
    ("field", "value"),
    [("depth", 10**6), ("width", 10**9), ("classes", 10**30), ("mlp", 10**12), ("heads", 10**9), ("image_size", [10**9, 8]),
     ("preprocess", "|".join(["resize(16)"] * 100_000)), ("preprocess", "resize(60000)|range(-1,1)"), ("registers", 10**12)],
)  # fmt: skip
def test_absurd_numbers_in_our_document(field: str, value: Any, bases: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    for name, data in bases["vitreous"].items():
        (tmp_path / name).write_bytes(data)
    fields = json.loads(bases["vitreous"]["model.json"])
    (fields if field == "preprocess" else fields["architecture"])[field] = value
    (tmp_path / "model.json").write_text(json.dumps(fields))
    with Budget(), pytest.raises(VitreousError, match=r"model\.json") as caught:
        read_path(tmp_path)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("kind", ["timm", "huggingface"])
@pytest.mark.parametrize("value", [10**6, 10**9, 1e30, 10**30, -1])
def test_absurd_numbers_in_config_json(kind: str, value: float, bases: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    """Each number of the file in turn: refused, or of no consequence for what is built."""
    files = bases[kind]
    fields = json.loads(files["config.json"])
    inner = fields["model_args"] if kind == "timm" else fields
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for key in [key for key, old in inner.items() if isinstance(old, (int, float)) and not isinstance(old, bool)]:
        old, inner[key] = inner[key], value
        (tmp_path / "config.json").write_text(json.dumps(fields))
        inner[key] = old
        with Budget():
            try:
                found = read_path(tmp_path)
                assert found.config.depth == 2
            except VitreousError as error:
                assert "\n" not in str(error)
