"""What every other package stands on: errors, files, devices, processes, progress, downloads."""
