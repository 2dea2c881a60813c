"""Tar shards in the webdataset layout: index, reader, writer."""
