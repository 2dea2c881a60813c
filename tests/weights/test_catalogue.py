"""The table of known checkpoints, and how a name leads to one or to a helpful error."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from vitreous.classifier import read_checkpoint
from vitreous.core.errors import VitreousError
from vitreous.core.files import cache_dir
from vitreous.data.transforms.parse import Preprocess
from vitreous.models import names
from vitreous.models.build import create
from vitreous.weights import catalogue
from vitreous.weights.catalogue import ENTRIES
from vitreous.weights.checkpoint import Checkpoint
from vitreous.weights.locate import locate
from vitreous.weights.write import save_checkpoint

OFFICIAL = [entry for entry in ENTRIES.values() if not entry.on_hub]


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server is one that refuses at once."""
    for name in ("VITREOUS_MIRROR", "HF_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


# The table ------------------------------------------------------------------------------------------------------------------


def test_every_entry_has_its_own_name_and_address() -> None:
    assert len(ENTRIES) == len({entry.url for entry in ENTRIES.values()}) == 146
    assert all(ENTRIES[entry.name] is entry for entry in ENTRIES.values())


@pytest.mark.parametrize("entry", OFFICIAL, ids=lambda entry: str(entry.name))
def test_official_entries_are_named_after_a_model_that_fits_them(entry: catalogue.Entry) -> None:
    model, tag = entry.name.split("@")
    assert model == entry.model
    assert model in names.KNOWN
    assert re.fullmatch(r"[a-z0-9+-]+", tag)
    assert entry.location.endswith(".npz")
    assert names.parse_name(model, image_size=entry.image_size or 224, classes=entry.classes).classes == entry.classes


def test_every_recommended_file_that_timm_loads_is_here_under_the_same_address() -> None:
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.origin is None:
        pytest.skip("timm is not installed")
    sources = Path(spec.origin).parent.joinpath("models").glob("vision_transformer*.py")
    theirs = {
        url for path in sources for url in re.findall(r"https://storage\.googleapis\.com/vit_models/[^'\"]+", path.read_text())
    }
    ours = {entry.url for entry in OFFICIAL if "/augreg/" in entry.url or "/sam/" in entry.url}
    assert ours == theirs


def test_the_size_of_a_recommended_file_is_the_one_in_its_address() -> None:
    sized = [(entry, re.search(r"res_(\d+)", entry.url)) for entry in OFFICIAL]
    found = {entry.name: (entry.image_size, int(match[1])) for entry, match in sized if match}
    assert len(found) == 25
    assert all(ours == theirs for ours, theirs in found.values())


@pytest.mark.parametrize(
    ("name", "url"),
    [  # as written in the authors' READMEs and issues
        ("ViT-B/16@imagenet21k", "https://storage.googleapis.com/vit_models/imagenet21k/ViT-B_16.npz"),
        ("R50+ViT-B/16@imagenet21k", "https://storage.googleapis.com/vit_models/imagenet21k/R50%2BViT-B_16.npz"),
        (
            "ViT-L/16@imagenet21k+imagenet2012-224",
            "https://storage.googleapis.com/vit_models/imagenet21k%2Bimagenet2012/ViT-L_16-224.npz",
        ),
        ("R50x1@bit-m", "https://storage.googleapis.com/bit_models/BiT-M-R50x1.npz"),
        ("R50x1@bit-m-imagenet2012", "https://storage.googleapis.com/bit_models/BiT-M-R50x1-ILSVRC2012.npz"),
        ("R101x1@bit-s", "https://storage.googleapis.com/bit_models/BiT-S-R101x1.npz"),
        ("hf:google/vit-huge-patch14-224-in21k", "https://huggingface.co/google/vit-huge-patch14-224-in21k"),
    ],
)
def test_addresses_are_the_published_ones(name: str, url: str) -> None:
    entry = ENTRIES.get(name)
    assert entry is not None
    assert entry.url == url


def test_no_fine_tuned_huge_model_is_promised() -> None:
    """The authors released ViT-H/14 for ImageNet-21k only; MAE's has no head."""
    assert [entry.name for entry in ENTRIES.values() if entry.model == "ViT-H/14"] == [
        "ViT-H/14@imagenet21k",
        "hf:google/vit-huge-patch14-224-in21k",
        "hf:facebook/vit-mae-huge",
    ]


def test_the_zeroed_heads_are_reported() -> None:
    told = {entry.name for entry in ENTRIES.values() if "all zeros" in entry.note}
    models = ("ViT-B/32", "ViT-B/16", "ViT-L/32", "ViT-L/16", "ViT-H/14", "R50+ViT-B/16")
    assert told == {f"{model}@imagenet21k" for model in models}


def test_every_licence_is_given_and_every_override_is_valid() -> None:
    for entry in ENTRIES.values():
        licences = {"dinov3": "DINOv3 License", "clip": "MIT"}
        expected = next((licence for word, licence in licences.items() if word in entry.name), "Apache-2.0")
        assert entry.licence == entry.known["licence"] == expected
        assert set(entry.known) <= {"licence", "outputs", "preprocess", "classes"}
        if entry.preprocess:
            assert str(Preprocess(entry.preprocess)) == entry.preprocess


def test_what_only_the_catalogue_knows_reaches_the_checkpoint(tmp_path: Path) -> None:
    """BiT's fine-tuned files were made at 480 pixels, which a ResNet's arrays cannot say."""
    model = create("R50x1", classes=5, units=(1, 1), width=32)
    checkpoint = Checkpoint(model.config, model.state_dict(), "resize(64)|range(-1,1)")
    save_checkpoint(checkpoint, tmp_path / "small.npz", "official")
    for name in ("BiT-M-R50x1.npz", "BiT-M-R50x1-ILSVRC2012.npz"):
        target = tmp_path / "cache" / "bit_models" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((tmp_path / "small.npz").read_bytes())
    tuned = read_checkpoint("R50x1@bit-m-imagenet2012")
    assert tuned.preprocess == "resize(480,bilinear-plain)|range(-1,1)"
    assert tuned.licence == "Apache-2.0"
    assert read_checkpoint("R50x1@bit-m").preprocess == "resize(224,bilinear-plain)|range(-1,1)"
    assert torch.equal(tuned.tensors["head.weight"], model.state_dict()["head.weight"])
    assert tuned.classes is None  # a file placed by hand with another head keeps no names that do not fit
    full = create("R50x1", classes=1000, units=(1, 1), width=32)
    save_checkpoint(Checkpoint(full.config, full.state_dict(), "range(-1,1)"), tmp_path / "full.npz", "official")
    (tmp_path / "cache" / "bit_models" / "BiT-M-R50x1-ILSVRC2012.npz").write_bytes((tmp_path / "full.npz").read_bytes())
    named = read_checkpoint("R50x1@bit-m-imagenet2012").classes
    assert named is not None
    assert (named[0], named[281]) == ("tench", "tabby")


# Finding --------------------------------------------------------------------------------------------------------------------


def test_the_cache_is_where_the_variables_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("VITREOUS_CACHE")
    assert cache_dir() == tmp_path / "xdg" / "vitreous"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home" / ".cache" / "vitreous"


def test_a_path_that_exists_is_taken_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ViT-B").mkdir()
    (tmp_path / "ViT-B" / "16@imagenet21k").write_bytes(b"")
    assert locate("ViT-B/16@imagenet21k").path == Path("ViT-B/16@imagenet21k")
    assert locate(Path("no such")).path == Path("no such")


def test_a_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "w.npz").write_bytes(b"")
    assert locate("~/w.npz").path == tmp_path / "w.npz"


@pytest.mark.parametrize(
    "source", ["weights.npz", "./run", "../run", "/no/such/place", "~/run", "here/run7", "a/b/model.safetensors"]
)
def test_what_looks_like_a_path_gets_the_error_of_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(VitreousError, match="no such file or folder") as caught:
        read_checkpoint(source)
    assert "known weights" not in str(caught.value)


def test_a_wrong_tag_gets_the_nearest_one_and_where_to_find_the_others() -> None:
    with pytest.raises(VitreousError) as caught:
        locate("ViT-B/16@imagenet22k")
    message = str(caught.value)
    assert "did you mean 'ViT-B/16@imagenet21k'?" in message
    assert "`vitreous list weights` shows all" in message
    assert "\n" not in message


def test_a_wrong_model_gets_the_nearest_one_and_its_tags() -> None:
    with pytest.raises(VitreousError) as caught:
        locate("vit-l16@imagenet21k")
    assert "'vit-l16'" in str(caught.value)
    assert "did you mean 'ViT-L/16@imagenet21k'?" in str(caught.value)
    assert "ViT-L/16@augreg-i21k" in str(caught.value)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a folder called ViT-B"])
def test_an_architecture_is_not_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool) -> None:
    monkeypatch.chdir(tmp_path)
    if beside:
        (tmp_path / "ViT-B").mkdir()
    with pytest.raises(VitreousError, match="'ViT-B/16' is an architecture, not weights") as caught:
        locate("ViT-B/16")
    assert "ViT-B/16@augreg-i21k" in str(caught.value)
    assert "hf:facebook/deit-base-patch16-224" in str(caught.value)


@pytest.mark.parametrize("source", ["ViT-G/14", "ViT-G/14@imagenet21k"])
def test_an_architecture_without_weights_says_so(source: str) -> None:
    with pytest.raises(VitreousError, match="no weights are known for ViT-G/14"):
        locate(source)


def test_a_repository_without_its_prefix_is_recognised() -> None:
    with pytest.raises(VitreousError, match=r"did you mean 'hf:google/vit-base-patch16-224'\?.*hf:OWNER/REPO"):
        locate("google/vit-base-patch16-224")


@pytest.mark.parametrize(
    "source",
    [
        *(
            "hf:",
            "hf:google",
            "hf:/etc",
            "hf:../..",
            "hf:google/..",
            "hf:../vit",
            "hf:a/b/c",
            "hf:a/.b",
            "hf:a/b..c",
            "hf:a\\b/c",
        ),
        *("timm:../x", "timm:", "timm:a/b", "hf:a/b@../../c", "hf:a/b@..", "hf:a/b@/x", "hf:a/b@x//y", "hf:a/b c"),
    ],
)
def test_names_that_could_lead_out_of_the_cache_are_refused(source: str, tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match="not the name of a"):
        locate(source)
    assert not (tmp_path / "cache").exists()


def test_every_entry_lies_within_the_cache(tmp_path: Path) -> None:
    for entry in OFFICIAL:
        with pytest.raises(VitreousError) as caught:
            locate(entry.name)
        found = re.search(r"put the file at (.+?), or set", str(caught.value))
        assert found is not None
        assert Path(found[1]).resolve().is_relative_to(tmp_path / "cache")


def test_imagenet_checkpoints_of_google_have_class_names() -> None:
    """Compared with timm's own list of synsets and their words."""
    from timm.data import ImageNetInfo

    from vitreous.weights.catalogue import imagenet_names

    names, info = imagenet_names(), ImageNetInfo("imagenet-1k")
    assert len(set(names)) == 1000
    for index, name in enumerate(names):
        lemmas = info.index_to_description(index).casefold()
        assert name.split(" (")[0].casefold() in lemmas, (index, name, lemmas)
    for entry in ENTRIES.values():
        assert ("classes" in entry.known) == (entry.classes == 1000 and not entry.on_hub)
