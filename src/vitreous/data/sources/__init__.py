"""Labelled images as users have them: folders, manifests, arrays, Hugging Face data sets.

Modules:
    arrays       images in one array
    file_source  image files with a compact index
    folder       class folders
    hub          Hugging Face data sets
    label_lists  labels of many items in two arrays
    manifest     CSV and JSON lines
    relabelled   the same images with other labels
"""
