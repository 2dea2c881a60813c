"""Architectures: what the paper's models compute, and nothing else. Knows nothing of files, data or training."""
