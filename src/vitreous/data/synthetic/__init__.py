"""Rendered images with labels: any number of them, each a function of (seed, index).

Modules:
    generated     what all rendered data sets share
    letters       `builtin:letters`
    paint         scene to pixels
    random_draws  random numbers by address
    rendered      rendered data sets
    scenes        contents of each rendered image
    symbols       shapes and glyphs as distance fields
    textures      procedural textures
"""
