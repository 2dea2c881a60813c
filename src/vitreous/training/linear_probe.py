"""A linear probe: the head alone learns, from the closed form on, and from features that are computed once.

The backbone is frozen, so what enters the head for an image never changes where its preprocessing is fixed and nothing is
dropped: one pass over the images gives everything. The run is validated before its first step too, and its result is the best
of all evaluations: it does not end below the closed form.
"""

from __future__ import annotations

from vitreous.classifier import Classifier
from vitreous.data.source import Source
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.closed_form_head import ClosedFormHead, fit_head
from vitreous.evaluation.saved_head import format_l2
from vitreous.inference.features import Features, compute_features
from vitreous.training.config import RunConfig
from vitreous.training.ema import PolyakAverage
from vitreous.training.feature_loader import FeatureLoader
from vitreous.training.loop import Loop, put_weights
from vitreous.training.objectives.build import OBJECTIVES
from vitreous.weights.checkpoint import Checkpoint

_MOST_SCORES = 1 << 26  # of left-out images and classes, half a gigabyte: beyond, the closed form is fitted to fewer images


def is_linear_probe(config: RunConfig) -> bool:
    """The head alone learns, on the features of a checkpoint."""
    return config.recipe.train == "head" and config.begun is not None and OBJECTIVES[config.recipe.objective].classifies


def features_are_fixed(config: RunConfig, loop: Loop) -> bool:
    """Whether every step sees the same features of an image, which then need not be computed again.

    With several processes, a part of a model that is distributed over them cannot be run by itself.
    """
    recipe = config.recipe
    rates = (getattr(config.model, name, 0.0) for name in ("dropout", "attention_dropout", "stochastic_depth"))
    fixed = not Preprocess(recipe.preprocess).random and not recipe.mixup and not any(rates)
    sources = isinstance(config.train, Source) and isinstance(config.held_out, Source | None)
    return fixed and sources and loop.world.world_size == 1


def start_linear_probe(config: RunConfig, loop: Loop) -> str:
    """Give the loop features to learn from, where they are fixed, and before its first step the closed-form head.

    Returns what to say about it.
    """
    assert config.start is not None
    recipe = config.recipe
    clf = Classifier(Checkpoint(config.model, config.start, recipe.evaluation), copy=False)
    fixed = features_are_fixed(config, loop)

    def compute(data: Source, string: str) -> Features:
        return compute_features(
            clf,
            data,
            preprocess=Preprocess(string, config.model.channels),
            workers=config.options.workers,
            precision=config.precision,
            world=loop.world,
            bad_images=config.options.bad_images,
        )

    said = []
    train = compute(config.train, recipe.preprocess if fixed else recipe.evaluation)  # type: ignore[arg-type]  # or a stream
    if fixed:
        loop.loader = FeatureLoader(loop.loader, train)
        if loop.held_out is not None:
            loop.held_out = FeatureLoader(loop.held_out, compute(config.held_out, recipe.evaluation))  # type: ignore[arg-type]
        said.append("preprocessing is fixed, so the features of each image are computed once")
    if loop.progress.step == 0:
        head = _fit(train, sigmoid=recipe.loss == "sigmoid")
        put_weights(loop.objective.model.get_submodule("head"), {"weight": head.weight, "bias": head.bias})
        if loop.average is not None:
            loop.average = PolyakAverage(loop.objective, loop.average.keep)
        loop.progress.owed = loop.held_out is not None
        said.append(
            f"the head starts from the closed form: ridge, l2 = {format_l2(head.l2)}, {head.left_out:.1%} of the training "
            f"images right if each is left out of its fit"
        )
    return "; ".join(said)


def _fit(train: Features, *, sigmoid: bool) -> ClosedFormHead:
    labelled = [row for row, own in enumerate(train.labels) if own]
    every = -(-len(labelled) * len(train.classes) // _MOST_SCORES)
    return fit_head(train.some(labelled[:: max(1, every)]), sigmoid=sigmoid)


def describe_best(step: int, closed_form: bool) -> str:
    """Which evaluation the result is, and why."""
    if closed_form and step == 0:
        return "training did not improve on the closed-form head on held-out images, so that is the result"
    why = "because the head started from the closed form" if closed_form else "because patience is set"
    return f"the result is the best evaluation's, of step {step:,}, {why}"


def put_images_back(config: RunConfig, loop: Loop) -> None:
    """The held-out images themselves, for the last evaluation, which shows its mistakes."""
    if isinstance(loop.held_out, FeatureLoader):
        assert config.held_out is not None
        loop.held_out, loop.last = loop.evaluation_loader(config.held_out), None
