"""The response of `POST /attention`: attention of every token in every layer and head, and how similar tokens are at the end,
so that a page asks once an image.

The model runs once on fused attention; beside it one layer's probabilities are in memory at a time, and what is kept of
them is bytes. Each row is scaled by its own largest value, so a byte is off by at most a 510th of that value, however
thin the row is spread: with one scale for all, a head that looks everywhere alike would vanish.
"""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.core.errors import VitreousError
from vitreous.data.transforms.denormalise import denormalise
from vitreous.inference.outputs import normalised_tokens
from vitreous.inspection.attention_rollout import add_layer, probe_attention, select_head_rows
from vitreous.inspection.distance import compute_distance
from vitreous.inspection.entropy import compute_entropy
from vitreous.inspection.eval_mode import eval_mode
from vitreous.inspection.gradient_weights import compute_gradient_rollout
from vitreous.inspection.patches import component_colours, compute_patch_components, cosine_similarity
from vitreous.models.attention_maps import attention_layers, require_attention, watch_attention
from vitreous.models.config import Size
from vitreous.models.vit import ViT
from vitreous.reports.images import TINY, encode_image
from vitreous.serving.served_model import ServedModel, pack_cosines

MOST = 64 * 2**20  # bytes of attention; more, and a browser would stutter over the text that carries them
TOP = 5


@dataclass
class _Kept:
    """What one pass leaves behind, layer by layer."""

    vit: ViT
    grid: Size
    averaged: bool
    probe_BN: Tensor | None
    attention: NDArray[np.uint8]  # (L, H, N, N)
    maximum: NDArray[np.float32]  # (L, H, N)
    distance: list[list[float]] = field(default_factory=list)
    entropy: list[list[float]] = field(default_factory=list)
    rollouts: list[NDArray[np.float32]] = field(default_factory=list)  # (patches,) of each layer
    joint_BNN: Tensor | None = None

    def look(self, layer: int, attention_BHNN: Tensor) -> None:
        attention = attention_BHNN.float()
        self.distance.append(compute_distance(attention, self.grid, self.vit.config.step, self.vit.prefix_tokens)[0].tolist())
        self.entropy.append(compute_entropy(attention)[0].tolist())
        self.joint_BNN = add_layer(self.joint_BNN, attention)
        read = select_head_rows(self.vit, self.joint_BNN, self.probe_BN)
        self.rollouts.append(read[0, self.vit.prefix_tokens :].cpu().numpy())
        self.attention[layer], self.maximum[layer] = quantise(attention.mean(dim=1) if self.averaged else attention[0])


def quantise(attention_HNN: Tensor) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Rows as bytes and the largest value of each: a value is its byte / 255 * that."""
    maximum = attention_HNN.amax(dim=-1)
    scaled = attention_HNN * (255 / maximum.clamp(min=torch.finfo(maximum.dtype).tiny))[..., None]
    return scaled.round_().to(torch.uint8).cpu().numpy(), maximum.cpu().numpy()


def build_attention_payload(loaded: ServedModel, tensor: Tensor, most: int = MOST) -> dict[str, Any]:
    """The response of `POST /attention` to one prepared image (1, C, H, W).

    Where all heads would take more than `most` bytes their mean is given instead, and `averaged_heads` says so; `distance`
    and `entropy` are of every head all the same.
    """
    began = time.perf_counter()
    vit = require_attention(loaded.clf.model)
    with torch.inference_mode(False):
        images = tensor.to(next(vit.parameters())).clone()  # of inference mode, it would have no gradient
        with loaded.lock, eval_mode(vit):
            kept, logits, tokens_ND = _looked(loaded.name, vit, images, most)
            gradient = compute_gradient_rollout(vit, images)[0].detach().float().cpu().numpy().reshape(-1)
    classes, probabilities = _top_classes(loaded, logits)
    layers, heads = kept.attention.shape[:2]
    rollouts = np.stack(kept.rollouts)
    if not all(np.isfinite(part).all() for part in (kept.maximum, rollouts, gradient, tokens_ND, np.asarray(probabilities))):
        raise VitreousError(f"{loaded.name}: gives values for this image that are no numbers; check the weights")
    patches = tokens_ND[vit.prefix_tokens :].reshape(1, *kept.grid, -1)
    peaks = rollouts.max(axis=1)
    scaled = np.round(rollouts * (255 / np.where(peaks > 0, peaks, 1))[:, None]).astype(np.uint8)
    return {
        "model": loaded.name,
        "image_size": [images.shape[-2], images.shape[-1]],
        "grid": list(kept.grid),
        "prefix_tokens": vit.prefix_tokens,
        "layers": layers,
        "heads": heads,
        "averaged_heads": kept.averaged,
        "picture": image_uri(denormalise(loaded.clf.preprocess, images[0])),
        "attention": _packed(kept.attention),
        "maximum": _packed(kept.maximum),
        "distance": kept.distance,
        "entropy": kept.entropy,
        "rollout": {"values": rollouts[-1].tolist()},
        "rollout_by_layer": {**_packed(scaled.reshape(layers, *kept.grid)), "maximum": peaks.tolist()},
        "gradient_rollout": {"values": gradient.tolist()},
        "similarity": pack_cosines(cosine_similarity(tokens_ND)),
        "patch_colours": _packed(component_colours(compute_patch_components(patches)[0])[0]),
        "classes": classes,
        "probabilities": probabilities,
        "seconds": time.perf_counter() - began,
    }


@torch.no_grad()
def _looked(name: str, vit: ViT, images: Tensor, most: int) -> tuple[_Kept, Tensor, NDArray[np.float32]]:
    """What is kept of the attention, logits, and tokens after the final norm, (N, D)."""
    grid = vit.config.grid_of((images.shape[-2], images.shape[-1]))
    layers, tokens = len(list(attention_layers(vit))), vit.prefix_tokens + grid[0] * grid[1]
    averaged = layers * vit.config.heads * tokens**2 > most
    if layers * tokens**2 > most:
        raise VitreousError(
            f"{name}: {tokens:,} tokens in {layers} layers are more attention than a page can hold; "
            f"serve it with a smaller --image-size"
        )
    heads = 1 if averaged else vit.config.heads
    kept = _Kept(
        vit,
        grid,
        averaged,
        _probe(vit, images),
        np.empty((layers, heads, tokens, tokens), np.uint8),
        np.empty((layers, heads, tokens), np.float32),
    )
    with watch_attention(vit, grid, kept.look):
        z_BND = vit.tokens(images)
    return kept, vit.logits_of(z_BND).float().cpu(), normalised_tokens(vit, z_BND)[0].float().cpu().numpy()


def _probe(vit: ViT, images: Tensor) -> Tensor | None:
    """Where the probe of an attention pooling looks, (B, N): known only at the end of a pass, needed from its first layer."""
    if vit.pool is None:
        return None
    z_BND = vit.tokens(images)
    return probe_attention(vit.pool, normalised_tokens(vit, z_BND)).float().mean(dim=1)


def _top_classes(loaded: ServedModel, logits: Tensor) -> tuple[list[str], list[float]]:
    if not loaded.clf.config.classes:
        return [], []
    (best,) = loaded.clf.top(logits, TOP)
    return list(best.classes), list(best.probabilities)


def image_uri(pixels: NDArray[np.uint8]) -> str:
    """An image (H, W, 3) as an address that holds it whole."""
    image = Image.fromarray(pixels)
    # JPEG would blur an image of a few pixels.
    return encode_image(image, "PNG") if max(image.size) <= TINY else encode_image(image, "JPEG", quality=90)


def _packed(array: NDArray[Any]) -> dict[str, Any]:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": base64.b64encode(little.data).decode()}
