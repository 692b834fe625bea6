"""A compact network for other runtimes: ONNX and torch.export (extra ``export``)."""

from l0arm.export.onnx import OnnxNetwork, export_onnx
from l0arm.export.parity import Exported, ExportError, Parity
from l0arm.export.program import export_program

__all__ = ["ExportError", "Exported", "OnnxNetwork", "Parity", "export_onnx", "export_program"]
