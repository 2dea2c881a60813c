"""How to train: the paper's tables as data, and how they are fitted to other data."""
