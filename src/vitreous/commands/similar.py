from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.commands.types import EngineOption, as_words
from vitreous.core.files import user_path

if TYPE_CHECKING:
    from vitreous.classifier import Classifier
    from vitreous.inference.similar_run import ImageClusters, SimilarImages


def similar(
    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    images: Annotated[Sequence[str], tyro.conf.Positional, tyro.conf.arg(metavar="[IMAGE...]", help_behavior_hint="")] = (),
    top: int = 10,
    clusters: Annotated[int | None, tyro.conf.arg(metavar="K")] = None,
    seed: int = 0,
    out: str | None = None,
    data: str | None = None,
    checkpoint: str | None = None,
    device: str = "auto",
    engine: EngineOption = "torch",
) -> SimilarImages | ImageClusters:
    """Find the nearest images of an embedded set, or cluster the set.

    Similarity is the cosine between features, compared exactly with every image of the file. With --clusters the whole set
    is clustered by k-means on normalised features, and the images nearest each centre represent it.

    Example: vitreous similar features.safetensors cat.jpg --top 5 --out similar.html

    Args:
        file: what `vitreous embed` has written.
        images: files, folders, patterns in quotes, - for standard input, or ids of images in the file.
        top: how many images to show of each query or cluster.
        clusters: how many clusters to make of the set.
        seed: random seed of the first centres.
        out: a page with thumbnails, .html.
        data: where the images of the file are now, for thumbnails. Default: where they were embedded.
        checkpoint: what embeds the images; it must have the same weights. Default: the one that the file names.
        device: cpu, cuda, mps; auto: the best there is.
        engine: torch; compile; onnx or openvino (pip install 'vitreous[export]'); auto measures once and takes the fastest.
    """
    from vitreous.inference.similar_run import SimilarOptions, run_similar

    options = SimilarOptions(
        file=user_path(file),
        images=as_words(images),
        top=top,
        clusters=clusters,
        seed=seed,
        out=None if out is None else user_path(out),
        data=data,
        checkpoint=checkpoint,
        device=device,
        engine=engine,
    )

    def load_model(name: str, image_size: tuple[int, int]) -> Classifier:
        from vitreous.classifier import load

        return load(name, image_size=image_size)

    return run_similar(options, load_model)
