"""From image files to batches of tensors; knows nothing of models.

Modules:
    bad_images    list of unreadable images, `bad_images.jsonl`
    conventions   meaning of names: splits, class order, shard members
    datasets/     known data sets in their original files
    loading/      batches from worker processes
    masks         PNG masks beside images
    open          DATA, as typed, to a data set
    option_types  option types that several packages share
    policy        stop at, or skip, unreadable images
    sampling      order of examples as a pure function of seed and step
    shards/       tar shards in webdataset layout
    source        the interface of every data set
    sources/      folders, manifests, arrays, Hugging Face data sets
    splits        training and held-out images
    synthetic/    rendered images
    transforms/   decoding, preprocessing strings, augmentation
"""
