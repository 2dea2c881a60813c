"""One loop for everything: objectives and recipes differ, loops do not."""
