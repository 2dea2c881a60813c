"""Token merging (ToMe, Bolya et al. 2023): similar patch tokens become one, so that later layers have less to compute.

In every layer but the last, between attention and MLP, r pairs of tokens are merged. Patches are dealt into two sets by
turns; each token of the first set proposes the token of the second whose key is most similar to its own (cosine of the
keys, averaged over heads), and the r best proposals are carried out: one bipartite matching, without a loop. A merged
token is the mean of the s patches that it stands for, and attention counts it s times,

    A = softmax(q k^T / sqrt(K) + log s),

so that merging equal tokens changes nothing: s terms e^x in numerator and denominator are one term e^(x + log s).

At the end each patch receives the token that stands for it. Pooling over patches thus weighs every token by its size, and
a caller that asks for patch tokens finds one at each place. Leading tokens are never merged.

Shapes: B images, N tokens of which P are leading ones, D width, H heads, K head width; A and M are the two sets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.core.errors import VitreousError
from vitreous.models.config import ViTConfig

if TYPE_CHECKING:
    from vitreous.models.vit import ViT


class Matching(NamedTuple):
    """Which tokens are merged with which, as rows of all images' tokens one after another (B * N)."""

    kept: Tensor  # (B, N - r): leading tokens, those of the first set that stay, then the second set
    merged: Tensor  # (B, r): tokens of the first set that go ...
    target: Tensor  # (B, r): ... into this place among the N - r of their image
    places: Tensor  # (B, N): in which place each token of before is found afterwards


def match_tokens(keys_BND: Tensor, leading: int, count: int) -> Matching:
    """Bipartite soft matching: the `count` most similar pairs, at most as many as the first set has tokens."""
    b, n, _ = keys_BND.shape
    keys_BND = F.normalize(keys_BND[:, leading:].float(), dim=-1)
    first, second = keys_BND[:, 0::2], keys_BND[:, 1::2]
    r = min(count, second.shape[1])
    best_BA, chosen_BA = (first @ second.transpose(1, 2)).max(dim=-1)
    order_BA = best_BA.argsort(dim=-1, descending=True, stable=True)
    going, staying = order_BA[:, :r], order_BA[:, r:].sort(dim=-1).values
    target = n - r - second.shape[1] + chosen_BA.gather(1, going)

    # Token numbers within an image: the first set stands at leading + 0, 2, 4 ..., the second at leading + 1, 3, 5 ...
    fixed = torch.arange(n, device=keys_BND.device).expand(b, n)
    kept = torch.cat([fixed[:, :leading], leading + 2 * staying, fixed[:, leading + 1 :: 2]], dim=1)
    merged = leading + 2 * going
    places = torch.empty_like(fixed).scatter_(1, kept, fixed[:, : n - r]).scatter_(1, merged, target)
    return Matching(kept, merged, target, places)


def merge_matched(tokens_BND: Tensor, sizes_BN: Tensor, matching: Matching) -> tuple[Tensor, Tensor]:
    """Tokens and their sizes afterwards; a merged token is the mean over all patches that it stands for."""
    weighted_BND = tokens_BND * sizes_BN[..., None]
    out_BND, out_BN = _rows(weighted_BND, matching.kept), sizes_BN.gather(1, matching.kept)
    b, n, d = out_BND.shape
    targets = (matching.target + n * torch.arange(b, device=out_BND.device)[:, None]).flatten()
    out_BND.view(b * n, d).index_add_(0, targets, _rows(weighted_BND, matching.merged).flatten(0, 1))
    out_BN = out_BN.scatter_add(1, matching.target, sizes_BN.gather(1, matching.merged))
    return out_BND / out_BN[..., None], out_BN


def _rows(x_BND: Tensor, index: Tensor) -> Tensor:
    """x[b, index[b, i]]: whole rows are copied, where `gather` would look up every number."""
    b, n, d = x_BND.shape
    flat = index + n * torch.arange(b, device=x_BND.device)[:, None]
    return x_BND.reshape(b * n, d).index_select(0, flat.flatten()).view(b, -1, d)


def encode_merging(model: ViT, z_BND: Tensor, leading: int | None = None) -> Tensor:
    """`ViT.encode` with `model.merge_tokens` tokens fewer after every layer, and each patch's token put back at the end."""
    sizes_BN = z_BND.new_ones(z_BND.shape[:2])
    places_BN: Tensor | None = None
    for layer, block in enumerate(model.blocks):
        last = layer == model.config.depth - 1
        attention, y_BND = block.attention, block.norm1(z_BND)  # type: ignore[operator]
        q, k, v = attention.project(y_BND)  # type: ignore[operator, union-attr]
        log_sizes = sizes_BN.log()[:, None, None].to(q.dtype) if places_BN is not None else None
        heads_BHNK = F.scaled_dot_product_attention(q[:, :, : leading if last else None], k, v, attn_mask=log_sizes)
        update_BND = block.scale1(attention.out(heads_BHNK.transpose(1, 2).flatten(2)))  # type: ignore[operator, union-attr]
        z_BND = z_BND[:, : update_BND.shape[1]] + update_BND
        if not last:
            matching = match_tokens(k.mean(dim=1), model.prefix_tokens, model.merge_tokens)
            z_BND, sizes_BN = merge_matched(z_BND, sizes_BN, matching)
            places_BN = matching.places if places_BN is None else matching.places.gather(1, places_BN)
        z_BND = z_BND + block.scale2(block.mlp(block.norm2(z_BND)))  # type: ignore[operator]
    return z_BND if leading is not None or places_BN is None else _rows(z_BND, places_BN)


def set_token_merging(model: nn.Module, count: int) -> None:
    """Merge `count` tokens after each layer of this model from now on; 0: none. Refuses models that it has no meaning for."""
    from vitreous.models.vit import ViT

    if count < 0:
        raise VitreousError(f"--merge-tokens {count}: must be 0, for none, or the number of tokens to merge in each layer")
    if count and not isinstance(model, ViT):
        raise VitreousError(f"--merge-tokens {count}: {type(model).__name__} has no tokens to merge; leave it out")
    if isinstance(model, ViT):
        if count:
            _check_mergeable(model.config, count)
        model.merge_tokens = count


def _check_mergeable(config: ViTConfig, count: int) -> None:
    """A merged token has no row, no column and no place of its own."""
    after_first = config.positions != "none" and config.position_placement != "stem"
    if config.attention == "axial" or after_first:
        kind = "axial attention" if config.attention == "axial" else f"{config.positions} positions in every layer"
        raise VitreousError(
            f"--merge-tokens {count}: {config.name} has {kind}, for which a token must keep its place; leave it out"
        )
