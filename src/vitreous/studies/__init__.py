"""Grids of runs, each with one table and one figure: what the paper's claims rest on."""
