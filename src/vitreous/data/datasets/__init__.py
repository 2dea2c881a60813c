"""Known data sets in their original files, one family per file.

Modules:
    archive        safe reading of .tar, .tar.gz and .zip
    builtin        `builtin:NAME`
    cache          unpacked archives and arrays, made once
    cifar          CIFAR-10 and CIFAR-100
    class_folders  EuroSAT and Caltech-101
    clevr          CLEVR
    dataset_dir    a folder with the files of one data set
    dsprites       dSprites
    dtd            Describable Textures
    flowers        Oxford Flowers-102
    image_files    data sets of image files with lists
    imagenet       ImageNet (ILSVRC 2012)
    kitti          KITTI objects
    known          table of known data sets: counts, terms, files
    matlab         reader of .mat files, version 5
    mnist          MNIST and Fashion-MNIST
    pets           Oxford-IIIT Pets
    pixel_arrays   data sets of pixel arrays, memory-mapped
    real_labels    ImageNet ReaL labels
    registry       data sets by name: found on disk or downloaded
    smallnorb      smallNORB
    svhn           Street View House Numbers
    tfds_order     example order of TensorFlow Datasets
    vtab           VTAB-1k as DATA
    vtab_known     VTAB-1k from the original files of known data sets
    vtab_lists     VTAB-1k folders with lists
    vtab_parts     which images of the original files a VTAB task uses
    vtab_rules     VTAB labels from original annotations
    vtab_tasks     table of the 19 tasks
"""
