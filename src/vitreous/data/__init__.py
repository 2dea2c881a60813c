"""From image files to tensors. Knows nothing of models."""
