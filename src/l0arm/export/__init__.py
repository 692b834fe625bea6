"""A compact network for other runtimes: ONNX and torch.export (extra ``export``)."""

from l0arm.export.capture import ExportError
from l0arm.export.exported_program import export_program
from l0arm.export.onnx import export_onnx
from l0arm.export.parity import Exported, Parity
from l0arm.export.runtime import OnnxNetwork

__all__ = ["ExportError", "Exported", "OnnxNetwork", "Parity", "export_onnx", "export_program"]
