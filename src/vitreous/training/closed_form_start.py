"""A run whose head starts from the closed form: ridge regression on the frozen features of the checkpoint.

So a linear probe starts, and fine-tuning with `head_start=ridge`: the head is as good as it can be before the first step, and
what learns afterwards need not follow a head that knows nothing. The run is validated before its first step too, and its
result is the best of all evaluations: it does not end below the closed form. (A test split must not choose: where there is
nothing else to validate on, the result is the last step.)

The backbone of a linear probe is frozen, so what enters the head for an image never changes where its preprocessing is fixed
and nothing is dropped: one pass over the images gives everything.
"""

from __future__ import annotations

from vitreous.classifier import Classifier
from vitreous.data.source import Source, Stream
from vitreous.data.transforms.parse import Preprocess
from vitreous.evaluation.baseline import sample_images
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
_FEWEST = 2000  # images that fine-tuning fits its head to, if there are as many


def starts_from_closed_form(config: RunConfig) -> bool:
    """A classifier on the features of a checkpoint, whose head alone learns or is to start so."""
    recipe = config.recipe
    asked = recipe.train == "head" or recipe.head_start == "ridge"
    return asked and config.begun is not None and OBJECTIVES[recipe.objective].classifies


def keeps_best(config: RunConfig) -> bool:
    """Whether the result is the best evaluation's: if patience is set, and so that it is not below the closed form."""
    chosen_fairly = config.held_out is not None and config.held_out.split != "test"
    return config.recipe.patience is not None or (starts_from_closed_form(config) and chosen_fairly)


def features_are_fixed(config: RunConfig, loop: Loop) -> bool:
    """Whether every step sees the same features of an image, which then need not be computed again.

    With several processes, a part of a model that is distributed over them cannot be run by itself.
    """
    recipe = config.recipe
    rates = [getattr(config.model, name, 0.0) for name in ("dropout", "attention_dropout", "stochastic_depth")]
    varies = Preprocess(recipe.preprocess).random or recipe.mixup or recipe.cutmix or any(rates)
    fixed = recipe.train == "head" and not varies
    fixed = fixed and config.teacher is None  # who needs the images
    sources = isinstance(config.train, Source) and isinstance(config.held_out, Source | None)
    return fixed and sources and loop.world.world_size == 1


def start_from_closed_form(config: RunConfig, loop: Loop) -> str:
    """Give the loop features to learn from, where they are fixed, and before its first step the closed-form head.

    Returns what to say about it.
    """
    recipe, fixed, said = config.recipe, features_are_fixed(config, loop), []
    if fixed:
        train = _compute(config, loop, config.train, recipe.preprocess)
        loop.loader = FeatureLoader(loop.loader, train)
        if config.held_out is not None and loop.held_out is not None:
            loop.held_out = FeatureLoader(loop.held_out, _compute(config, loop, config.held_out, recipe.evaluation))
        said.append("preprocessing is fixed, so the features of each image are computed once")
    if loop.progress.step == 0:
        if not fixed:
            train = _compute(config, loop, _images_to_fit(config), recipe.evaluation)
        head = _fit(train, sigmoid=recipe.loss == "sigmoid")
        put_weights(loop.objective.model.get_submodule("head"), {"weight": head.weight, "bias": head.bias})
        if loop.average is not None:
            loop.average = PolyakAverage(loop.objective, loop.average.keep)
        loop.progress.owed = loop.held_out is not None
        said.append(
            f"the head starts from the closed form: ridge on {len(train):,} images, l2 = {format_l2(head.l2)}, "
            f"leave-one-out accuracy {head.left_out:.1%}"
        )
    return "; ".join(said)


def _images_to_fit(config: RunConfig) -> Source | Stream:
    few = count_images_to_fit(config, config.steps)
    if isinstance(config.train, Stream) or len(config.train) <= few:
        return config.train
    return sample_images(config.train, few, config.options.data_seed, every_class=True)


def count_images_to_fit(config: RunConfig, steps: int) -> int:
    """All; of more images than half of those that a run sees, so many: the fit is then at most a sixth of the run's work."""
    images = config.images or 0
    if config.recipe.train == "head" or isinstance(config.train, Stream):
        return images
    return min(images, max(_FEWEST, steps * config.recipe.batch_size // 2))


def _compute(config: RunConfig, loop: Loop, data: Source | Stream, string: str) -> Features:
    assert config.start is not None
    return compute_features(
        Classifier(Checkpoint(config.model, config.start, config.recipe.evaluation), copy=False),
        data,
        preprocess=Preprocess(string, config.model.channels),
        workers=config.options.workers,
        precision=config.precision,
        world=loop.world,
        bad_images=config.options.bad_images,
    )


def _fit(train: Features, *, sigmoid: bool) -> ClosedFormHead:
    labelled = [row for row, own in enumerate(train.labels) if own]
    every = -(-len(labelled) * len(train.classes) // _MOST_SCORES)
    return fit_head(train.some(labelled[:: max(1, every)]), sigmoid=sigmoid)


def describe_best(config: RunConfig, step: int) -> str:
    """Which evaluation the result is, and why."""
    closed_form = starts_from_closed_form(config)
    if closed_form and step == 0:
        return "training did not improve on the closed-form head on held-out images, so that is the result"
    why = "because the head started from the closed form" if closed_form else "because patience is set"
    return f"the result is the best evaluation's, of step {step:,}, {why}"


def put_images_back(config: RunConfig, loop: Loop) -> None:
    """The held-out images themselves, for the last evaluation, which shows its mistakes."""
    if isinstance(loop.held_out, FeatureLoader):
        assert config.held_out is not None
        loop.held_out, loop.last = loop.evaluation_loader(config.held_out), None
