"""The kinds of findings: whether each corrupts results, what it means, and what to do about it.

This table is the only place that says so; exit code, report, terminal and docs/how-to/check-data.md follow it. Its order is
the order of every listing (findings across splits come before those of the same kind within one).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Kind:
    name: str
    corrupts: Literal["always", "across splits", "in train", "never"]
    title: str
    meaning: str
    remedy: str


_TABLE = (
    Kind(
        "label-conflict",
        "always",
        "One image, several labels",
        "The same image, or nearly the same, lies under different labels. At most one of them is right, so training on it "
        "teaches something false and testing on it cannot be passed.",
        "Look at each, keep the one whose label is right. --fix leaves out all of them.",
    ),
    Kind(
        "duplicate",
        "across splits",
        "The same file more than once",
        "Byte for byte the same. Across splits it makes the test easier than the world is: the model has seen the answer. "
        "Within one split it only counts the image twice, but a random split would part the copies.",
        "--fix keeps one, in the test or validation split if it is there.",
    ),
    Kind(
        "near-duplicate",
        "across splits",
        "Nearly the same image",
        "Copies that were re-encoded, resized, cropped by up to 5 % a side, mirrored, turned by right angles, framed by a "
        "border or brightened, or photographs taken a moment apart. Across splits they make the test easier than the world is.",
        "--fix leaves out those in train where a copy is in test or validation.",
    ),
    Kind("missing", "always", "Missing files", "Listed, but not there.", "Bring it back, or leave it out with --fix."),
    Kind(
        "empty-file",
        "always",
        "Empty files",
        "No bytes at all: a download or a copy that was broken off.",
        "Fetch it again, or leave it out with --fix.",
    ),
    Kind(
        "not-an-image",
        "always",
        "Not an image",
        "The name says image, the content does not: a web page saved as .jpg, a folder, a text.",
        "Replace it, or leave it out with --fix.",
    ),
    Kind(
        "unreadable",
        "always",
        "Unreadable files",
        "An image that cannot be decoded, or a file that may not be opened.",
        "Replace it, or leave it out with --fix.",
    ),
    Kind(
        "truncated",
        "always",
        "Cut off",
        "The file ends before the image does. Some programs show the missing part in grey and say nothing.",
        "Fetch it again, or leave it out with --fix.",
    ),
    Kind(
        "damaged",
        "always",
        "Damaged images",
        "It can be opened, but parts of it are corrupt: a checksum is wrong or the compressed data make no sense.",
        "Fetch it again, or leave it out with --fix.",
    ),
    Kind(
        "too-large",
        "always",
        "Too many pixels or bytes",
        "So large that reading or decoding it could exhaust the memory; small files can claim any size.",
        "Make it smaller, or leave it out with --fix.",
    ),
    Kind(
        "too-small",
        "always",
        "Smaller than the crop",
        "The preprocessing cuts out a part that is larger than the image; training stops there.",
        "Put a resize before the crop in --preprocess, or leave the image out.",
    ),
    Kind(
        "broken-shard",
        "always",
        "Broken shards",
        "A shard could not be read to its end; what lies behind the break is not in the data set.",
        "Fetch or write the shard again.",
    ),
    Kind(
        "class-mismatch",
        "always",
        "Splits with different classes",
        "A class that is in one split only is never learnt, or never tested.",
        "Rename or remove those classes; often a folder is spelt in two ways.",
    ),
    Kind(
        "similar-class-names",
        "always",
        "Class names that look the same",
        "They differ only in upper and lower case, or in how Unicode writes an accent (composed or decomposed), so what is "
        "meant as one class is learnt as several.",
        "Move the images into one folder, or give the classes names that tell them apart.",
    ),
    Kind(
        "empty-class",
        "in train",
        "Classes without images",
        "No split has an image of it, so nothing can be learnt of it. An empty folder makes no class and is passed over.",
        "Add images, or remove the class.",
    ),
    Kind(
        "symlink-loop",
        "never",
        "Links in a circle",
        "A link that leads back to a folder above it; what lies there was counted once.",
        "Remove the link.",
    ),
    Kind(
        "left-out",
        "never",
        "Not part of the data set",
        "Files that are not used: no image by their name, or outside the class folders.",
        "Nothing, unless one should be used: then move or rename it.",
    ),
    Kind(
        "imbalance",
        "never",
        "Uneven classes",
        "Some classes have many times the images of others. Accuracy then says little of the small ones.",
        "Look at the accuracy of each class, and add images to the small ones.",
    ),
    Kind(
        "unlabelled",
        "never",
        "Images without a label",
        "Some images have labels and these have none; training on labels passes over them.",
        "Label them, or leave them out.",
    ),
    Kind(
        "rotated",
        "never",
        "Turned by their EXIF note",
        "The pixels are stored lying down or mirrored, and a note says how to turn them. vitreous does; many programs do not.",
        "Nothing here. For other programs, store them upright.",
    ),
    Kind(
        "unusual-mode",
        "never",
        "Unusual colours",
        "Neither RGB nor grey with 8 bits. Palettes and CMYK are converted, transparent parts become white, 16 bits become 8.",
        "See that the thumbnails look as they should.",
    ),
    Kind(
        "animated",
        "never",
        "Several frames or pages",
        "Only the first one is used.",
        "Save the frame that matters as an image of its own.",
    ),
    Kind(
        "blank",
        "never",
        "Blank images",
        "One colour all over: a scan that failed, a placeholder, a lens cap.",
        "Look at them; remove what shows nothing.",
    ),
    Kind(
        "tiny",
        "never",
        "Much smaller than the rest",
        "A small fraction of the usual size: often icons or previews that were fetched by mistake.",
        "Look at them; fetch the large ones.",
    ),
    Kind(
        "extreme-aspect",
        "never",
        "Very long or very tall",
        "Squeezed into a square they are distorted, or a crop shows a small part of them.",
        "Crop them to what matters.",
    ),
    Kind(
        "upscaled",
        "never",
        "Smaller than the model's input",
        "The preprocessing has to enlarge them, which makes them blurred.",
        "Use larger images, or a smaller size in --preprocess.",
    ),
    Kind(
        "misnamed",
        "never",
        "Another format than the name says",
        "It is read by its content, so all is well here. Programs that trust the name may fail.",
        "Rename them, if others are to read them.",
    ),
    Kind(
        "suspicious",
        "never",
        "Odd, but readable",
        "Decoders let it pass: data behind the end of the image, a missing end, notes that cannot be read.",
        "Look at the thumbnails.",
    ),
)

KINDS = {kind.name: kind for kind in _TABLE}
ORDER = {kind.name: number for number, kind in enumerate(_TABLE)}
BAD_FILES = ("missing", "empty-file", "not-an-image", "unreadable", "truncated", "damaged", "too-large")


def corrupts(kind: str, splits: tuple[str, ...]) -> bool:
    """Whether a finding of this kind, in these splits, would corrupt a result."""
    rule = KINDS[kind].corrupts
    return rule == "always" or (rule == "across splits" and len(splits) > 1) or (rule == "in train" and "train" in splits)
