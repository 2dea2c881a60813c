"""Data checks: what is wrong with a data set (unreadable files, duplicates, leaks, label conflicts).

Modules:
    alignment           correlation of two aligned images
    border              even borders, found and removed
    confirmation        near duplicates confirmed on the images
    description         low-frequency descriptors through windows
    diagnosis           the whole examination and its output folder
    doctor_report       contents of the HTML report
    duplicate_findings  findings about copies
    duplicates          near duplicates among fingerprints
    examine             one item
    finding_types       table of all kinds of findings
    findings            scan records to findings
    fingerprint         1,732 bytes per image
    fix_manifest        `--fix`: a manifest without the bad items
    header_check        quick check of headers before training
    preview             preprocessing shown on the smallest and largest image
    records             fixed-size record per item
    scan                one parallel pass over a data set
    stream_index        a stream that was read once, by number
    summary             `summary.json`
    thumbnails          second reading of images that are shown or compared
    union_find          groups from pairs
    vector_search       approximate nearest neighbours of unit vectors
"""
