"""Checkpoints in and out: ours, the authors', timm's and Hugging Face's. Found, fetched, read, adapted, written."""
