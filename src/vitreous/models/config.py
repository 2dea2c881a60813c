"""The config of a model: frozen dataclasses, one for each family, that are stored with every checkpoint.

Everything that changes an output is here, numerics included, so that a checkpoint says by itself how it
must be run: the official weights want the tanh form of GELU and an epsilon of 1e-6, timm's want erf and
1e-6, Hugging Face's erf and 1e-12.
"""

from __future__ import annotations

import dataclasses
import operator
import reprlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from vitreous.core.errors import VitreousError
from vitreous.core.fields import Between, check_fields, check_names
from vitreous.core.fields import from_json as fields_from_json

Size: TypeAlias = tuple[int, int]
"""Height and width: always both, because a grid of patches need not be square."""

Activation = Literal["gelu-tanh", "gelu-erf", "gelu-quick", "relu", "silu"]
Pool = Literal["token", "gap", "map", "token+mean"]
PositionKind = Literal["none", "1d", "2d", "relative", "sincos", "rope"]
PositionPlacement = Literal["stem", "every", "shared"]
PositionResize = Literal[
    "bilinear-aligned", "bilinear", "bilinear-antialias", "bicubic", "bicubic-aligned", "bicubic-antialias", "nearest", "none"
]
Rate = Annotated[float, Between(0, 0.999)]  # of what is dropped: never all of it
Form = Literal["pre", "post"]
Standardise = Literal["std+eps", "sqrt(var+eps)"]
RootPadding = Literal["zero", "-inf"]

# Far beyond any model that was ever trained. A config may come from a file, and building it must end.
_MOST_PIXELS = 65_536  # along a side
_MOST_TOKENS = 1 << 20
_MOST_COMPUTED = 1 << 26
_MOST_UNITS, _MOST_STAGES = 1_000, 8
STEM_GROUP = 16  # channels that a convolutional stem normalises together


@dataclass(frozen=True)
class ResNetConfig:
    """A ResNet with group norm and standardised convolutions (BiT), or the trunk of a hybrid.

    `form="pre"` is the BiT paper's pre-activation network; `form="post"` the post-activation one that the
    released hybrids use. The two differ in padding and epsilons too: see resnet.py.
    """

    name: str = "ResNet"
    units: tuple[int, ...] = (3, 4, 6, 3)
    width: Annotated[int, Between(1, 65_536)] = 64
    form: Form = "pre"
    image_size: Annotated[Size, Between(1, _MOST_PIXELS)] = (224, 224)
    channels: Annotated[int, Between(1, 4_096)] = 3
    classes: Annotated[int, Between(0, 1 << 24)] = 1000
    head_bias: float = 0.0
    norm_eps: Annotated[float, Between(1e-30)] = 1e-5
    standardise: Standardise = "sqrt(var+eps)"
    standardise_eps: Annotated[float, Between(1e-30)] = 1e-10
    root_padding: RootPadding = "zero"  # what the pre-activation form pads with before its max pool

    def __post_init__(self) -> None:
        check_fields(self, lambda name, value: f"{name}={value}:")
        if self.width % 32:
            near = max(32, round(self.width / 32) * 32)
            raise VitreousError(f"width {self.width} does not divide into the 32 groups of group norm; try width={near}")
        if len(self.units) > _MOST_STAGES or sum(self.units) > _MOST_UNITS:
            raise VitreousError(f"units {reprlib.repr(self.units)}: at most {_MOST_STAGES} stages and {_MOST_UNITS:,} units")
        if any(units < 1 for units in self.units):
            raise VitreousError(f"units {self.units}: every stage needs at least one unit")

    @property
    def out_channels(self) -> int:
        """Channels after the last stage; the root alone keeps `width`."""
        return self.width * 4 * 2 ** (len(self.units) - 1) if self.units else self.width

    @property
    def stride(self) -> int:
        """How many input pixels one output position stands for: the root takes 4, each later stage doubles it."""
        return 4 * 2 ** max(0, len(self.units) - 1)

    @property
    def feature_width(self) -> int:
        return self.out_channels


@dataclass(frozen=True)
class AxialResNetConfig(ResNetConfig):
    """A post-activation ResNet with axial attention instead of 3x3 convolutions (appendix D.6).

    Heads and epsilons are those of the authors' later code (scenic).
    """

    form: Literal["post"] = "post"
    heads: Annotated[int, Between(1, 4_096)] = 8
    norm_eps: Annotated[float, Between(1e-30)] = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads):
            fits = max(heads for heads in range(1, self.heads) if self.width % (2 * heads) == 0)
            raise VitreousError(
                f"width {self.width} does not divide into {self.heads} heads with queries half as wide as values; "
                f"try heads={fits}"
            )


@dataclass(frozen=True)
class ViTConfig:
    """A Vision Transformer; a hybrid if it has a `trunk`, or a `stem` of a few convolutions (stem.py)."""

    name: str = "ViT"
    width: Annotated[int, Between(1, 65_536)] = 768  # D
    depth: Annotated[int, Between(1, 1_000)] = 12  # L
    heads: Annotated[int, Between(1, 4_096)] = 12  # k
    mlp: Annotated[int, Between(1, 1 << 20)] = 3072
    patch: Annotated[Size, Between(1, _MOST_PIXELS)] = (16, 16)  # of the trunk's or stem's output where there is one
    image_size: Annotated[Size, Between(1, _MOST_PIXELS)] = (224, 224)
    channels: Annotated[int, Between(1, 4_096)] = 3
    classes: Annotated[int, Between(0, 1 << 24)] = 1000
    trunk: ResNetConfig | None = None
    stem: Annotated[tuple[int, ...], Between(STEM_GROUP, 65_536)] = ()  # channels of 3x3 convolutions, one after another
    stem_residual: bool = False  # after each of them but the first, another one beside a skip connection

    # How the sequence becomes one vector, and that vector the logits.
    pool: Pool = "token"
    representation: Annotated[int | None, Between(1, 1 << 20)] = (
        None  # size of the tanh layer that pre-training puts before the head
    )
    head_bias: float = 0.0  # initial bias of the head; -10 for pre-training with the sigmoid loss

    # Tokens before the patches. `position_prefix` of them, counted from the first, own a row of the position table.
    class_token: bool = True
    distillation_token: bool = False  # DeiT
    distillation_head: bool = False  # DeiT: logits are the mean of the two heads
    registers: Annotated[int, Between(0, 4_096)] = 0  # DINOv2 with registers
    mask_token: bool = False  # stands in for hidden patches in masked-patch training
    position_prefix: int = 1

    # Positions: appendix D.4; and rotary ones ("rope", DINOv3).
    positions: PositionKind = "1d"
    position_placement: PositionPlacement = "stem"
    position_resize: PositionResize = "bilinear-aligned"
    rope_base: Annotated[float, Between(1, 1e9)] = 100.0  # longest period of rotary positions, in half image sides

    # Regularisation: appendix B.1 and AugReg.
    dropout: Rate = 0.0
    attention_dropout: Rate = 0.0
    stochastic_depth: Rate = 0.0  # of the last layer; grows linearly from 0 at the first

    # Variations of the block.
    attention: Literal["full", "axial"] = "full"  # axial: appendix D.6
    layer_scale: float | None = None  # initial value; DINOv2
    mlp_form: Literal["plain", "swiglu"] = "plain"
    qkv_bias: bool = True
    key_bias: bool = True  # where q and v have one; DINOv3 has none
    embedding_norm: bool = False  # CLIP: a norm of z_0, and E without a bias

    # Numerics.
    norm_eps: Annotated[float, Between(1e-30)] = 1e-6
    activation: Activation = "gelu-tanh"
    norm_after_pool: bool = False  # timm's `fc_norm`: pool first, then normalise

    def __post_init__(self) -> None:
        check_fields(self, lambda name, value: f"{name}={value}:")
        if self.width % self.heads:
            fits = min((h for h in range(1, self.width + 1) if self.width % h == 0), key=lambda h: abs(h - self.heads))
            raise VitreousError(
                f"width {self.width} does not divide into {self.heads} heads; the nearest that fits is heads={fits}"
            )
        axial, relative, rope = self.attention == "axial", self.positions == "relative", self.positions == "rope"
        for conflict, message in (
            (self.stem and self.trunk, "a model has a trunk or a stem, not both"),
            (len(self.stem) > _MOST_STAGES, f"stem {reprlib.repr(self.stem)}: at most {_MOST_STAGES} convolutions"),
            (
                self.stem_residual and len(self.stem) < 2,
                "a residual stem needs two convolutions or more: the first has no skip connection",
            ),
            (
                any(width % STEM_GROUP for width in self.stem),
                f"stem {self.stem}: channels are normalised in groups of {STEM_GROUP}; use multiples of {STEM_GROUP}",
            ),
            (
                self.pool in ("token", "token+mean") and not self.class_token,
                f"pool {self.pool!r} needs a class token: drop class_token=False, or use pool='gap'",
            ),
            (
                self.distillation_head and not self.distillation_token,
                "distillation_head needs distillation_token=True",
            ),
            (self.distillation_head and not self.classes, "distillation_head needs classes"),
            (
                axial and self.prefix_tokens,
                "axial attention runs along rows and columns of patches and has no place for a class token; use pool='gap'",
            ),
            (
                axial and (relative or rope),
                f"{self.positions} positions are defined for full attention; use positions='1d' with attention='axial'",
            ),
            (
                relative and self.position_placement == "stem",
                "relative positions act inside attention, in every layer: use position_placement='every' or 'shared'",
            ),
            (
                rope and self.position_placement != "shared",
                "rotary positions act inside attention, alike in every layer: use position_placement='shared'",
            ),
            (
                rope and self.width // self.heads % 4,
                f"rotary positions need heads whose width is divisible by 4, not {self.width // self.heads}",
            ),
            (
                self.positions == "sincos" and self.width % 4,
                f"sine-cosine positions need a width divisible by 4, not {self.width}",
            ),
            (self.positions == "2d" and self.width % 2, f"2-D positions need an even width, not {self.width}"),
            (
                self.positions != "1d" and self.position_prefix,
                f"{self.positions} positions have no rows for leading tokens: use position_prefix=0",
            ),
            (
                not 0 <= self.position_prefix <= self.prefix_tokens,
                f"position_prefix {self.position_prefix} is not between 0 and the {self.prefix_tokens} leading tokens",
            ),
        ):
            if conflict:
                raise VitreousError(message)
        rows, columns = self.grid_of(self.image_size)
        if rows * columns > _MOST_TOKENS:
            raise VitreousError(f"{rows:,} x {columns:,} patches: at most {_MOST_TOKENS:,} are possible; use a larger patch")
        # These tables are computed, so no array in a file bounds their size.
        computed = {"sincos": self.width, "rope": self.width // self.heads}.get(self.positions, 0)
        if rows * columns * computed > _MOST_COMPUTED:
            raise VitreousError(f"{self.positions} positions for {rows:,} x {columns:,} patches would not fit into memory")

    @property
    def prefix_tokens(self) -> int:
        """How many tokens stand before the patches: class, distillation and register tokens."""
        return int(self.class_token) + int(self.distillation_token) + self.registers

    @property
    def grid(self) -> Size:
        return self.grid_of(self.image_size)

    @property
    def tokens(self) -> int:
        return self.prefix_tokens + self.grid[0] * self.grid[1]

    @property
    def stride(self) -> int:
        """Of what stands before the patches: the trunk's, or the stem's, which halves from its second convolution on."""
        return self.trunk.stride if self.trunk else 2 ** max(0, len(self.stem) - 1)

    @property
    def step(self) -> Size:
        """Input pixels per token, down and across: the patch, times the stride of the trunk or stem."""
        return self.patch[0] * self.stride, self.patch[1] * self.stride

    @property
    def pooled_width(self) -> int:
        return self.width * (2 if self.pool == "token+mean" else 1)

    @property
    def feature_width(self) -> int:
        """Size of the vector that enters the head."""
        return self.representation or self.pooled_width

    def grid_of(self, image_size: Size) -> Size:
        """Patches down and across. Refuses a size that would drop pixels, and names the sizes that fit."""
        (height, width), stride = image_size, self.stride
        # Trunk and stem pad ("SAME"), so their output rounds up; patches must then cover that output exactly.
        rows, columns = -(-height // stride), -(-width // stride)
        for what, size, cells, patch in (("height", height, rows, self.patch[0]), ("width", width, columns, self.patch[1])):
            if size < 1 or cells % patch:
                step = patch * stride
                below, above = max(1, size // step) * step, (max(0, size) // step + 1) * step
                near = f"{below}" if below >= above else f"{below} or {above}"
                raise VitreousError(
                    f"image {what} {size} is not a multiple of {self.name}'s patch, {step} pixels; "
                    f"the nearest --image-size is {near}"
                )
        return rows // self.patch[0], columns // self.patch[1]


ModelConfig: TypeAlias = ViTConfig | ResNetConfig
_KINDS: dict[str, type[ModelConfig]] = {"vit": ViTConfig, "resnet": ResNetConfig, "axial-resnet": AxialResNetConfig}


def replace_config(config: ModelConfig, **changes: Any) -> Any:
    """`dataclasses.replace`, with an error that names the nearest option for one that does not exist."""
    check_names(changes, type(config), f"option of {config.name}")
    return dataclasses.replace(config, **changes)


def parse_size(size: int | tuple[int, int] | list[int]) -> Size:
    """`224` or `(224, 320)`, as (height, width)."""
    try:
        sides = (size, size) if not isinstance(size, (tuple, list)) else size
        height, width = (operator.index(side) for side in sides)
    except (TypeError, ValueError):
        raise VitreousError(f"size {size!r} is neither one whole number nor two (height, width)") from None
    return height, width


def config_to_json(config: ModelConfig) -> dict[str, Any]:
    kind = next(kind for kind, family in _KINDS.items() if family is type(config))
    return {"kind": kind, **dataclasses.asdict(config)}


def config_from_json(fields: dict[str, Any]) -> ModelConfig:
    """The inverse of `config_to_json`; a missing, unknown or ill-typed field is named."""
    fields = dict(fields)
    kind = fields.pop("kind", None)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise VitreousError(f"model kind {kind!r} is none of {', '.join(_KINDS)}")
    for key in ("patch", "image_size"):
        if key in fields:
            fields[key] = parse_size(fields[key])
    config: ModelConfig = fields_from_json(_KINDS[kind], fields, "model field")
    return config
