from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitreous.commands.types import BadImages, Checkpoint, EngineOption, ImageSize
from vitreous.core.errors import VitreousError
from vitreous.core.files import user_path

if TYPE_CHECKING:
    from vitreous.classifier import Classifier
    from vitreous.inference.embed_run import Embedding


def embed(
    checkpoint: Checkpoint,
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    out: str,
    pool: Literal["head", "token", "mean"] = "head",
    tokens: bool = False,
    format: Annotated[Literal["safetensors", "npy", "parquet", "csv"] | None, tyro.conf.arg(help_behavior_hint="")] = None,
    image_size: Annotated[ImageSize, tyro.conf.arg(help_behavior_hint="")] = None,
    bad_images: BadImages = "stop",
    batch_size: Annotated[int | None, tyro.conf.arg(help_behavior_hint="")] = None,
    workers: Annotated[int | None, tyro.conf.arg(help_behavior_hint="")] = None,
    device: str = "auto",
    precision: Literal["auto", "float32", "bfloat16"] = "float32",
    engine: EngineOption = "torch",
    merge_tokens: int = 0,
) -> Embedding:
    """Write the features of every image of a data set to one file.

    The file has features, ids, labels, and which checkpoint they come from. It is written while features are computed, in
    constant memory; killed, the same command resumes and ends with the same bytes. Several processes: torchrun.

    Example: vitreous embed ViT-B/16@imagenet21k photos/ --out features.safetensors

    Args:
        checkpoint: a run, a checkpoint, or a name of `vitreous list weights`.
        data: a folder, a manifest, shards, builtin:NAME or the name of a known set; DATA:test is one split.
        out: the file.
        pool: head: what enters the head; token: the class token; mean: the mean of the patch tokens.
        tokens: write all patch tokens of each image instead of one vector.
        format: npy and csv are for other tools, parquet too where pyarrow is installed. Default: by the ending of --out.
        image_size: pixels, as 384 or 224,320. Default: the checkpoint's.
        batch_size: images that the model takes at once. Default: by their size.
        workers: processes that read images. Default: one for each core.
        device: cpu, cuda, mps; auto: the best there is.
        precision: of the model; auto takes bfloat16, with fewer digits, where it is faster.
        engine: torch; compile; onnx or openvino (pip install 'vitreous[export]'); auto measures once and takes the fastest.
        merge_tokens: merge this many similar tokens in each layer: faster, a little less accurate; 0 merges none.
    """
    if tokens and pool != "head":
        raise VitreousError(f"--tokens writes patch tokens as they are, and --pool {pool} one vector; leave one out")
    from vitreous.inference.embed_run import EmbedOptions, run_embedding

    options = EmbedOptions(
        checkpoint=str(checkpoint),
        data=str(data),
        out=user_path(out),
        format=format,
        kind="patches" if tokens else pool,
        bad_images=bad_images,
        batch_size=batch_size,
        workers=workers,
        device=device,
        precision=precision,
        engine=engine,
        merge_tokens=merge_tokens,
    )

    def load_model() -> Classifier:
        from vitreous.classifier import load

        return load(checkpoint, image_size=image_size)

    return run_embedding(options, load_model)
