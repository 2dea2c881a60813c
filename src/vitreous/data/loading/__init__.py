"""Batches in a fixed order, read by worker processes."""
