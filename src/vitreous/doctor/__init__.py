"""The doctor's examinations: what is wrong with a data set. Knows of data, not of models."""
