"""Oxford Flowers-102: 102flowers.tgz (jpg/image_00001.jpg ...), imagelabels.mat, setid.mat.

`setid` has 10 images a class for training (trnid), 10 for validation (valid) and the others, 6,149, for testing (tstid):
the test set is the large one, and swapping the two gives far better results than the paper's.
The label files number the classes; their names are those of the authors' page, in its order.
"""

from __future__ import annotations

from vitreous.data.datasets.dataset_dir import DatasetDir
from vitreous.data.datasets.image_files import image_dataset, unpack_archives
from vitreous.data.datasets.matlab import check_integers, read_mat
from vitreous.data.source import Dataset

_PAGE = """
    pink primrose, hard-leaved pocket orchid, canterbury bells, sweet pea, english marigold, tiger lily, moon orchid,
    bird of paradise, monkshood, globe thistle, snapdragon, colt's foot, king protea, spear thistle, yellow iris,
    globe-flower, purple coneflower, peruvian lily, balloon flower, giant white arum lily, fire lily, pincushion flower,
    fritillary, red ginger, grape hyacinth, corn poppy, prince of wales feathers, stemless gentian, artichoke, sweet william,
    carnation, garden phlox, love in the mist, mexican aster, alpine sea holly, ruby-lipped cattleya, cape flower,
    great masterwort, siam tulip, lenten rose, barbeton daisy, daffodil, sword lily, poinsettia, bolero deep blue,
    wallflower, marigold, buttercup, oxeye daisy, common dandelion, petunia, wild pansy, primula, sunflower, pelargonium,
    bishop of llandaff, gaura, geranium, orange dahlia, pink-yellow dahlia, cautleya spicata, japanese anemone,
    black-eyed susan, silverbush, californian poppy, osteospermum, spring crocus, bearded iris, windflower, tree poppy,
    gazania, azalea, water lily, rose, thorn apple, morning glory, passion flower, lotus, toad lily, anthurium, frangipani,
    clematis, hibiscus, columbine, desert-rose, tree mallow, magnolia, cyclamen, watercress, canna lily, hippeastrum,
    bee balm, ball moss, foxglove, bougainvillea, camellia, mallow, mexican petunia, bromelia, blanket flower,
    trumpet creeper, blackberry lily
"""
NAMES = tuple(" ".join(name.split()) for name in _PAGE.split(","))

_SETS = {"train": "trnid", "validation": "valid", "test": "tstid"}


def open_flowers102(place: DatasetDir) -> Dataset:
    labels_file, sets_file = (place.need(name, f"flowers-102/{name}") for name in ("imagelabels.mat", "setid.mat"))
    root = place.base("jpg", "flowers-102") or unpack_archives(
        place, [place.need("102flowers.tgz", "flowers-102/102flowers.tgz")], lambda name: name.endswith(".jpg")
    )
    (array,) = read_mat(labels_file, "labels")
    labels = check_integers(labels_file, "labels", array, 1, len(NAMES)) - 1
    splits = {}
    for (split, name), array in zip(_SETS.items(), read_mat(sets_file, *_SETS.values()), strict=True):
        numbers = check_integers(sets_file, name, array, 1, len(labels))
        splits[split] = [(f"jpg/image_{number:05d}.jpg", int(labels[number - 1])) for number in numbers.tolist()]
    return image_dataset(place, root, NAMES, splits)
