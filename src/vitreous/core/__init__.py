"""Errors, files, devices, processes, progress and downloads: what every other package uses.

Modules:
    device          device, threads, precision and allocator settings
    distributed     rank, world size and collectives
    download        one file over HTTP, verified, resumable
    errors          VitreousError and nearest matches for typos
    fields          one checker of types and ranges for dataclasses
    files           atomic writes, user paths, cache folder
    hashing         hashes of files and lists
    memory          memory that is still available
    output_dir      checks of output folders before the work
    printable       untrusted text made safe to show
    processor       its name and features
    progress        progress bar, or plain lines without a terminal
    table           text tables for people
    untrusted_json  bounded JSON reading, NaN-free writing
"""
