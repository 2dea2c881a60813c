"""From an image file to a tensor: decoding, preprocessing strings, augmentation."""
