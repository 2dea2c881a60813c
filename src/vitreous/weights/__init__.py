"""Checkpoints in and out: ours, the authors', timm's and Hugging Face's; found, fetched, read, changed for transfer, written."""
