"""Tar shards in the webdataset layout: index, reader, writer.

Modules:
    byte_stream     bytes of a shard: file, HTTP or fsspec
    index           shard patterns and `index.json`
    reader          shards as a stream of samples
    samples         samples of one tar file
    virtual_stream  shards as a fixed number of virtual streams
    writer          write a data set as shards
"""
