"""From an image file to a tensor: decoding, preprocessing strings, augmentation.

Modules:
    cutmix         CutMix
    decode         image file to pixels, bounded
    denormalise    preprocessed tensor to an image for display
    image          resize, crop, flip, pad
    image_formats  supported image formats
    mixup          mixup
    ops            one class per preprocessing operation
    parse          preprocessing strings
    randaugment    RandAugment as in AugReg
"""
