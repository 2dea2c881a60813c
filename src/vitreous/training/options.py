"""The options of `pretrain` and `finetune`, each in one place: its type, range, default and help text.

The command line, Python and `config.json` all build a `TrainOptions` (`build_options`); `resolve` makes a `RunConfig` of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from vitreous.core.fields import Between, field_types
from vitreous.data.option_types import BadImages, Changes, ImageSize

Command = Literal["pretrain", "finetune"]
Engine = Literal["torch", "eager", "compile"]  # eager is another word for torch
Parallel = Literal["ddp", "fsdp", "hybrid"]
Train = Literal["all", "head", "lora"]
ObjectiveName = Literal["classification", "masked-patch"]


class Only(NamedTuple):
    """Marks an option that one of the two commands has."""

    command: Command


def _help(text: str, **others: Any) -> object:
    return tyro.conf.arg(help=text, help_behavior_hint="", **others)


@dataclass(frozen=True)
class TrainOptions:
    # A field with a help text is an option of the command line.
    command: Command
    data: str = ""

    from_: Annotated[
        str | None,
        _help("a run, a checkpoint, or a name of `vitreous list weights`; or `scratch`, with --model.", name="from"),
        Only("finetune"),
    ] = None
    model: Annotated[
        str | None,
        _help(
            "train from scratch: a name of `vitreous list models`, in their grammar, or auto: for the images and the budget. "
            "finetune: with --from scratch. Default of pretrain: auto."
        ),
    ] = None
    objective: Annotated[
        ObjectiveName,
        _help("what is learnt: the images' classes, or the colours of hidden patches. Default: classification."),
        Only("pretrain"),
    ] = "classification"
    train: Annotated[
        Train | None,
        _help(
            "all; head: a linear probe; or lora: factors of low rank beside the frozen matrices, and the head. Default: as "
            "the recipe has it; without --recipe lora below 20,000 images for models of width 192 or more, else all."
        ),
        Only("finetune"),
    ] = None
    teacher: Annotated[
        str | None,
        _help(
            "distillation: a checkpoint whose predictions are learnt beside the labels, classes matched by name; see "
            "teacher_weight and teacher_temperature of --set."
        ),
    ] = None
    sweep: Annotated[
        bool,
        _help("try the recipe's learning rates on a held-out part of the training images first; then train on all of them."),
    ] = False

    out: Annotated[str, _help("the run's folder. Started again, a run is resumed. Required.")] = ""
    recipe: Annotated[
        str | None, _help("how to train: a name of `vitreous list recipes`. Default: one for the data, with reasons.")
    ] = None
    set: Annotated[
        Changes,
        _help(
            "change the recipe, as lr=3e-4,warmup=100, or the model, as model.width=96. Repeatable; "
            "see docs/reference/recipes.md."
        ),
    ] = ()
    config: Annotated[str | None, _help("replay RUN/config.json; options given beside it override it.")] = None
    seed: Annotated[int, Between(0), _help("random seed of initialisation, order, augmentation and dropout. Default: 0.")] = 0
    data_seed: Annotated[
        int, Between(0), _help("random seed of splits and subsets, so that --seed keeps the test images. Default: 0.")
    ] = 0
    steps: Annotated[int | None, Between(1), _help("how many steps to take.")] = None
    epochs: Annotated[float | None, Between(1e-9, 1e9), _help("how often to see each image; instead of --steps.")] = None
    flops: Annotated[
        float | None,
        Between(1, 1e40),
        _help("how much to compute, as 2e13; instead of --steps. Becomes a number of steps, by `vitreous.cost`."),
    ] = None
    minutes: Annotated[
        float | None,
        Between(0.01, 1e6),
        _help(
            "how long to train, about; instead of --steps. Becomes a number of steps once, by timing a few before the first."
        ),
    ] = None
    batch_size: Annotated[int | None, Between(1), _help("images per step, over all ranks; learning rates follow.")] = None
    image_size: Annotated[
        ImageSize,
        _help("pixels, as 384 or 224,320. Default: small images' own, the checkpoint's, or 224; less if a budget needs it."),
    ] = None
    preprocess: Annotated[str | None, _help("for training, as 'inception_crop(224)|flip|range(-1,1)'.")] = None
    save_every: Annotated[
        int | None, Between(1), _help("steps between states to resume from. Default: every three minutes.")
    ] = None
    keep_every: Annotated[
        int | None, Between(1), _help("steps between checkpoints that stay, in OUT/checkpoint/step-N. Default: none stay.")
    ] = None
    eval_every: Annotated[
        int | None, Between(0), _help("steps between evaluations; 0: at the end only. Default: ten in a run.")
    ] = None
    fewshot: Annotated[
        str | None,
        _help("DATA for few-shot accuracy on frozen features, at each evaluation (figures 4 and 9 of the paper)."),
        Only("pretrain"),
    ] = None
    shots: Annotated[
        str | None, _help("labelled images of each class for --fewshot, as 5,10. Default: 5."), Only("pretrain")
    ] = None
    workers: Annotated[int | None, Between(0), _help("processes that read images. Default: one for each core.")] = None
    device: Annotated[str, _help("cpu, cuda, cuda:1, mps, xpu. Default: the best there is.")] = "auto"
    precision: Annotated[Literal["auto", "float32", "bfloat16"], _help("Default: auto, bfloat16 where it is faster here.")] = (
        "auto"
    )
    engine: Annotated[Engine, _help("compile: with torch.compile. Default: torch.")] = "torch"
    micro_batch: Annotated[
        str | None, _help("images per forward pass and rank; auto: measured. Default: as many as fit into memory.")
    ] = None
    parallel: Annotated[Parallel, _help("with torchrun: replicate the model (ddp) or shard it. Default: ddp.")] = "ddp"
    shard_group: Annotated[
        int | None, Between(1), _help("hybrid: how many ranks share one copy. Default: those of one machine.")
    ] = None
    activation_checkpointing: Annotated[bool, _help("compute activations again instead of keeping them: less memory.")] = False
    bad_images: BadImages = "stop"
    subset: Annotated[int | None, Between(1), _help("train on a fixed random subset of this many images.")] = None
    per_class: Annotated[int | None, Between(1), _help("train on at most this many images of each class.")] = None
    held_out: Annotated[
        float | None,
        Between(1e-9, 1 - 1e-9),
        _help("validate on this share of the training images instead of the data's own split."),
    ] = None
    test: Annotated[
        str | None, _help("a split of DATA to evaluate the result on, once, at the end, as `test`; it chooses nothing.")
    ] = None
    track: Annotated[str, _help("send metrics on: tensorboard, wandb, or tensorboard,wandb.")] = ""
    extend: Annotated[
        bool, _help("with a larger --steps, --epochs, --flops or --minutes: let the run in OUT become longer.")
    ] = False

    # Of a sweep's trial: validate on this share of what the run itself trains on.
    sweep_share: float | None = None

    def to_json(self) -> dict[str, Any]:
        """What differs from the defaults; replaying it gives the same options."""
        defaults = vars(TrainOptions(self.command))
        hidden = ("command", "config", "extend")
        return {name: value for name, value in vars(self).items() if value != defaults[name] and name not in hidden}


def option_name(field: str) -> str:
    """`batch_size` as it is typed: `--batch-size`."""
    return "--" + field.strip("_").replace("_", "-")


def command_line_options(command: str) -> dict[str, Any]:
    """The annotated types of the fields that are options of this command, by name."""
    found = {}
    for name, hint in field_types(TrainOptions).items():
        notes = getattr(hint, "__metadata__", ())
        others = [note for note in notes if isinstance(note, Only) and note.command != command]
        if name != "data" and not others and any(getattr(note, "help", None) for note in notes):
            found[name] = hint
    return found
