from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.core.files import user_path

if TYPE_CHECKING:
    from vitreous.doctor.diagnosis import Diagnosis

_NOT_NEAR = tyro.conf.arg(
    help="find equal files only, not re-encoded, resized, mirrored, turned, framed and slightly cropped copies.",
    help_behavior_hint="(default: find these too)",
)


def doctor(
    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    out: str,
    against: str | None = None,
    fix: str | None = None,
    preprocess: str = "inception_crop(224)|flip|range(-1,1)",
    near: Annotated[bool, _NOT_NEAR] = True,
    workers: int | None = None,
) -> Diagnosis:
    """Check a data set: bad files, duplicates, leaks, label conflicts.

    Writes a page to look at (report.html), findings.jsonl and summary.json. Exit code 1 means that something in the data
    would corrupt a result. No image is ever changed.

    Example: vitreous doctor photos/ --out report --fix photos.csv

    Args:
        data: a folder, a manifest, shards, `builtin:NAME` or the name of a known set.
        out: the folder to write to.
        against: another data set; images in both are reported, as when pre-training data must not contain test images.
        fix: a new manifest to write (.csv or .jsonl) that leaves the bad items out; use it as DATA from then on.
        preprocess: the preprocessing of training; shown for the smallest and the largest image.
        near: whether to find changed copies too (re-encoded, mirrored, turned, framed ...), or equal files only.
        workers: processes that read images; one for each core if not given, 0 for none.
    """
    from vitreous.core.errors import check_at_least
    from vitreous.data.loading.workers import default_workers
    from vitreous.data.transforms.parse import Preprocess
    from vitreous.doctor.diagnosis import examine_data

    check_at_least(0, workers=workers)
    return examine_data(
        data,
        against,
        out=user_path(out),
        fix=user_path(fix) if fix is not None else None,
        preprocess=Preprocess(preprocess),
        near=near,
        workers=default_workers() if workers is None else workers,
    )
