"""From a model and labelled images to numbers."""
