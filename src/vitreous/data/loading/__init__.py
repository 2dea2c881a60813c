"""Batches in an order given by the seed, read by worker processes.

Modules:
    loader       batches in an order given by the seed
    worker_task  what a worker does: read, decode, preprocess
    workers      processes with fixed tasks and ordered results
"""
