"""Labelled images as users have them: folders, manifests, Hugging Face data sets."""
