"""Rendered images with labels: any number of them, each a function of (seed, index)."""
