"""Export to ONNX and OpenVINO: write the file, run it against the original, keep it only if they agree.

Modules:
    check         an exported file against the original on images
    dynamic_size  positions for any image size, computed inside the graph
    export_run    `vitreous convert` to .onnx and .xml: from options to a checked file
    int8          eight-bit graphs and what they cost in accuracy
    write         graph and metadata to .onnx, or .xml and .bin
"""
