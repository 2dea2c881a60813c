"""Parameter counts to the digit: the tables of the paper's facts, sections 1.5, 2.1 and 2.2."""

from __future__ import annotations

from typing import Any

import pytest

from vitreous.models.build import build_on_meta
from vitreous.models.names import parse_name

PRETRAIN = dict(classes=21_843, representation=True)
# One row per model: 1000 classes; no head; 21,843 classes; 21,843 with representation; no head with representation;
# global average pooling with 1000 classes; 1000 classes at the fine-tuning size; tokens.
VITS = {
    "ViT-Ti/16": (5_717_416, 5_524_416, 9_740_115, 9_777_171, 5_561_472, 5_717_032, 5_790_376, 197),
    "ViT-S/32": (22_878_952, 22_493_952, 30_903_507, 31_051_347, 22_641_792, 22_878_184, 22_915_432, 50),
    "ViT-S/16": (22_050_664, 21_665_664, 30_075_219, 30_223_059, 21_813_504, 22_049_896, 22_196_584, 197),
    "ViT-B/32": (88_224_232, 87_455_232, 104_252_499, 104_843_091, 88_045_824, 88_222_696, 88_297_192, 50),
    "ViT-B/16": (86_567_656, 85_798_656, 102_595_923, 103_186_515, 86_389_248, 86_566_120, 86_859_496, 197),
    "ViT-B/8": (86_576_872, 85_807_872, 102_605_139, 103_195_731, 86_398_464, 86_575_336, 87_744_232, 785),
    "ViT-L/32": (306_535_400, 305_510_400, 327_899_475, 328_949_075, 306_560_000, 306_533_352, 306_632_680, 50),
    "ViT-L/16": (304_326_632, 303_301_632, 325_690_707, 326_740_307, 304_351_232, 304_324_584, 304_715_752, 197),
    "ViT-H/14": (632_045_800, 630_764_800, 658_745_683, 660_385_363, 632_404_480, 632_043_240, 633_470_440, 257),
}
COLUMNS: tuple[dict[str, Any], ...] = (
    dict(classes=1000),
    dict(classes=0),
    dict(classes=21_843),
    PRETRAIN,
    dict(classes=0, representation=True),
    dict(classes=1000, pool="gap"),
    dict(classes=1000, image_size=384),
)
# 1000 classes; no head; 21,843 with representation.
HYBRIDS = {
    "R+ViT-Ti/16": (6_337_704, 6_144_704, 10_397_459),
    "R26+ViT-S/32": (36_431_912, 36_046_912, 44_604_307),
    "R26+ViT-B/32": (101_383_976, 100_614_976, 118_002_835),
    "R50+ViT-B/16": (98_659_112, 97_890_112, 115_277_971),
    "R50+ViT-B/32": (110_945_832, 110_176_832, 127_564_691),
    "R50+ViT-L/32": (328_994_856, 327_969_856, 351_408_531),
    "R50+ViT-L/16": (316_483_624, 315_458_624, 338_897_299),
}
# no head; 1000; 21,843; 18,291 classes (JFT).
RESNETS = {
    "R50x1": (23_500_352, 25_549_352, 68_256_659, 60_978_611),
    "R50x2": (93_891_712, 97_988_712, 183_382_483, 168_829_939),
    "R101x1": (42_492_480, 44_541_480, 87_248_787, 79_970_739),
    "R152x1": (58_136_128, 60_185_128, 102_892_435, 95_614_387),
    "R152x2": (232_238_208, 236_335_208, 321_728_979, 307_176_435),
    "R152x4": (928_340_224, 936_533_224, 1_107_299_923, 1_078_198_387),
    "R200x3": (562_488_000, 568_633_000, 696_713_235, 674_886_195),
}


def cases() -> list[tuple[str, dict[str, Any], int]]:
    out: list[tuple[str, dict[str, Any], int]] = []
    for name, row in VITS.items():
        for options, count in zip(COLUMNS, row, strict=False):
            if options.get("image_size") and name == "ViT-H/14":
                options = {**options, "image_size": 518}
            out.append((name, options, count))
    for name, triple in HYBRIDS.items():
        out += [(name, options, n) for options, n in zip((dict(classes=1000), dict(classes=0), PRETRAIN), triple, strict=True)]
    for name, four in RESNETS.items():
        out += [(name, dict(classes=k), n) for k, n in zip((0, 1000, 21_843, 18_291), four, strict=True)]
    out += [("R50x3", dict(classes=1000), 217_319_080), ("R101x3", dict(classes=1000), 387_934_888)]
    out += [("R50x1", dict(classes=0, form="post"), 23_508_032)]
    out += [("ViT-B/16", dict(width=10, mlp=10, heads=2, depth=1), 21_390)]  # the authors' own testing config
    return out


@pytest.mark.parametrize(("name", "options", "count"), cases(), ids=lambda value: str(value).replace(" ", ""))
def test_parameter_count(name: str, options: dict[str, Any], count: int) -> None:
    assert sum(p.numel() for p in build_on_meta(parse_name(name, **options)).parameters()) == count


@pytest.mark.parametrize(("name", "tokens"), [(name, row[7]) for name, row in VITS.items()])
def test_token_count(name: str, tokens: int) -> None:
    config = parse_name(name)
    assert config.tokens == tokens  # type: ignore[union-attr]


@pytest.mark.parametrize(("name", "grid"), [("R+ViT-Ti/16", 7), ("R26+ViT-S/32", 7), ("R50+ViT-B/16", 14), ("R50+ViT-L/32", 7)])
def test_hybrid_grid(name: str, grid: int) -> None:
    assert parse_name(name).grid == (grid, grid)  # type: ignore[union-attr]
