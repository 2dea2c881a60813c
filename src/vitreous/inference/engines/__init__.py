"""Engines: what computes a model's outputs, behind one small interface.

Modules:
    choose           the engine of a command, by name or by measuring
    engine           the interface, names, and what must be installed
    exported_file    .onnx and .xml files as models
    graph            a torch model as an ONNX graph
    metadata         what travels with the weights, inside an exported file
    onednn_linear    torch's linear layers by oneDNN, on processors that MKL neglects
    onnx_engine      onnxruntime
    openvino_engine  OpenVINO
    replaced_linear  F.linear computed by another function
    torch_engine     torch, as it is or compiled
"""
