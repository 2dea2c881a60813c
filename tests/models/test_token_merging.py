"""Token merging: the maths against plain loops, and that equal tokens may be merged for nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import vitreous
from vitreous.core.errors import VitreousError
from vitreous.models.token_merging import match_tokens, merge_matched, set_token_merging

SHAPE = dict(width=24, depth=3, heads=2, mlp=48, patch=4, image_size=24, classes=5)


def random_vit(**more: object) -> vitreous.models.vit.ViT:  # type: ignore[name-defined]
    torch.manual_seed(0)
    model = vitreous.create("ViT-B/16", **{**SHAPE, **more}).eval()
    for parameter in model.parameters():  # also where the authors start with zeros
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def merge_with_loops(tokens: np.ndarray, keys: np.ndarray, sizes: np.ndarray, leading: int, count: int) -> dict:
    """One image, as the paper's text says it: tokens that are merged, by the set of patches that they stand for."""
    n = len(tokens)
    first, second = list(range(leading, n, 2)), list(range(leading + 1, n, 2))
    proposals = []
    for a in first:
        cosine = [keys[a] @ keys[b] / np.linalg.norm(keys[a]) / np.linalg.norm(keys[b]) for b in second]
        proposals.append((max(cosine), a, second[int(np.argmax(cosine))]))
    groups = {token: [token] for token in range(n)}
    for _, a, b in sorted(proposals, reverse=True)[:count]:
        groups[b].append(a)
        del groups[a]
    return {
        frozenset(members): (
            sum(tokens[i] * sizes[i] for i in members) / sum(sizes[i] for i in members),
            sum(sizes[i] for i in members),
        )
        for members in groups.values()
    }


@pytest.mark.parametrize(("n", "leading", "count"), [(10, 1, 3), (11, 2, 4), (9, 0, 2), (8, 1, 100)])
def test_one_step_equals_a_plain_loop(n: int, leading: int, count: int) -> None:
    rng = np.random.default_rng(n)
    tokens, keys = rng.normal(size=(2, 2, n, 6)).astype(np.float32)
    sizes = rng.integers(1, 4, (2, n)).astype(np.float32)
    matching = match_tokens(torch.from_numpy(keys), leading, count)
    merged, new_sizes = merge_matched(torch.from_numpy(tokens), torch.from_numpy(sizes), matching)
    for image in range(2):
        expected = merge_with_loops(tokens[image], keys[image], sizes[image], leading, min(count, (n - leading) // 2))
        places = matching.places[image].tolist()
        found = {frozenset(i for i in range(n) if places[i] == place) for place in range(merged.shape[1])}
        assert found == expected.keys()
        for members, (mean, size) in expected.items():
            place = places[min(members)]
            np.testing.assert_allclose(merged[image, place], mean, rtol=1e-5, atol=1e-6)
            assert new_sizes[image, place] == size
        assert places[:leading] == list(range(leading))  # leading tokens stay where they are


@pytest.mark.parametrize("pool", ["token", "gap", "map", "token+mean"])
def test_merging_equal_tokens_changes_nothing(pool: str) -> None:
    """One colour and no positions: all patches of an image are equal in every layer, so that any merge is exact."""
    own = dict(class_token=pool.startswith("token"), position_prefix=0, positions="none", pool=pool)
    model = random_vit(**own).double()
    images = torch.randn(2, 3, 1, 1, dtype=torch.float64).expand(2, 3, 24, 24)
    with torch.no_grad():
        plain, tokens = model(images), model.tokens(images)
        set_token_merging(model, 7)
        torch.testing.assert_close(model(images), plain, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(model.tokens(images), tokens, rtol=1e-9, atol=1e-9)


def test_without_proportional_attention_it_would_not_be_exact() -> None:
    """The sizes are what makes it so: the same with each token counted once is another result."""
    model = random_vit(class_token=True, position_prefix=0, positions="none").double()
    images = torch.randn(2, 3, 1, 1, dtype=torch.float64).expand(2, 3, 24, 24)
    with torch.no_grad():
        z, _ = model.embed(images)
        fewer = model.encode(z[:, :20], (1, 19))
        assert (model.encode(z, (6, 6))[:, 0] - fewer[:, 0]).abs().max() > 1e-6


def test_none_merged_is_the_plain_model_to_the_bit() -> None:
    model, images = random_vit(), torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        plain = model(images)
        set_token_merging(model, 5)
        assert not torch.equal(model(images), plain)
        set_token_merging(model, 0)
        assert torch.equal(model(images), plain)


def test_computing_only_the_class_token_of_the_last_layer_gives_the_same() -> None:
    model, images = random_vit(registers=2), torch.randn(2, 3, 24, 24)
    set_token_merging(model, 5)
    with torch.no_grad():
        whole = model(images)
        model.lean = True
        torch.testing.assert_close(model(images), whole, rtol=1e-5, atol=1e-5)


def test_training_merges_nothing() -> None:
    model, images = random_vit(), torch.randn(2, 3, 24, 24)
    plain = model.train()(images)
    set_token_merging(model, 5)
    assert torch.equal(model(images), plain)


def test_attention_maps_are_those_of_all_tokens() -> None:
    from vitreous.models.attention_maps import attention_maps

    model, images = random_vit(), torch.randn(1, 3, 24, 24)
    plain = attention_maps(model, images)
    set_token_merging(model, 5)
    assert torch.equal(attention_maps(model, images), plain)
    assert model.merge_tokens == 5


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("ViT-B/16", dict(SHAPE, attention="axial"), "axial attention"),
        ("ViT-B/16", dict(SHAPE, positions="relative", position_placement="shared", position_prefix=0), "relative positions"),
        ("ViT-B/16", dict(SHAPE, positions="rope", position_placement="shared", position_prefix=0), "rope positions"),
        ("R50x1", dict(image_size=32), "has no tokens"),
    ],
)
def test_models_whose_tokens_must_keep_their_place_are_refused(name: str, more: dict, words: str) -> None:
    with torch.device("meta"):
        model = vitreous.create(name, **more)
    with pytest.raises(VitreousError, match=f"--merge-tokens 3: .*{words}"):
        set_token_merging(model, 3)
