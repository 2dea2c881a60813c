"""Pages that people look at: one file each, which needs nothing else and loads nothing from anywhere."""
