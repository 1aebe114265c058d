"""What the scripts that make cases of onnxruntime's ops share."""

import struct

import onnxruntime as ort


def blob(data):
    """The bytes behind their length."""
    return struct.pack("<I", len(data)) + data


def session(model):
    """Runs a model on the CPU as it is written."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
