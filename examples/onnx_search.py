"""Which hidden units of an int8 ONNX network to keep: the objective is the answer of onnxruntime.

The network has the mask of its hidden units as an input. Nothing of it is known to torch. The
units that are found are then cut out of the file. Run: ``python examples/onnx_search.py``
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import l0arm
from l0arm.lab.data.mini import mnist_mini

HIDDEN = 32
Array = npt.NDArray[np.float32]


def trained() -> list[Array]:
    """A small network for the digits: random features, and a classifier by least squares."""
    random = np.random.default_rng(0)
    first = random.normal(0, 0.1, (784, HIDDEN)).astype(np.float32)
    images, digits = images_of("train")
    features = np.maximum(images @ first, 0)
    second = np.linalg.lstsq(features, np.eye(10, dtype=np.float32)[digits], rcond=None)[0]
    return [first, second.astype(np.float32)]


def images_of(part: str) -> tuple[Array, npt.NDArray[np.int64]]:
    """Half of the embedded images, flat, from 0 to 1."""
    data = mnist_mini()
    images = data.train_images if part == "train" else data.test_images
    digits = data.train_labels if part == "train" else data.test_labels
    return images[::2].flatten(1).float().div(255).numpy(), digits[::2].numpy()


def int8_network(weights: list[Array], keep: npt.NDArray[np.bool_] | None = None) -> bytes:
    """The network with int8 weights. With ``keep``, the other hidden units are not in it."""
    nodes, constants, source = [], [], "x"
    for layer, weight in enumerate(weights):
        scale = np.abs(weight).max() / 127
        whole = np.round(weight / scale).astype(np.int8)
        if keep is not None:
            whole = whole[:, keep] if layer == 0 else whole[keep]
        n = str(layer)
        constants += [
            numpy_helper.from_array(whole, "w" + n),
            numpy_helper.from_array(np.float32(scale), "s" + n),
        ]
        quantised = ["q" + n, "qs" + n, "qz" + n]
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [source], quantised),
            helper.make_node("MatMulInteger", ["q" + n, "w" + n, "qz" + n], ["i" + n]),
            helper.make_node("Cast", ["i" + n], ["f" + n], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["f" + n, "qs" + n], ["g" + n]),
            helper.make_node("Mul", ["g" + n, "s" + n], ["out" + n]),
        ]
        source = "out" + n
        if layer == 0:
            nodes.append(helper.make_node("Relu", [source], ["relu"]))
            source = "relu"
            if keep is None:
                nodes.append(helper.make_node("Mul", ["relu", "mask"], ["masked"]))
                source = "masked"
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 784])]
    if keep is None:
        inputs.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [HIDDEN]))
    outputs = [helper.make_tensor_value_info("out1", TensorProto.FLOAT, ["rows", 10])]
    graph = helper.make_graph(nodes, "digits", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    serialised: bytes = model.SerializeToString()
    return serialised


def session(model: bytes) -> onnxruntime.InferenceSession:
    """The network in onnxruntime, with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def main(steps: int = 300) -> tuple[l0arm.SearchResult, float]:
    """Search, cut the file, and say how far the outputs of both files differ."""
    weights = trained()
    whole, (images, digits) = session(int8_network(weights)), images_of("train")
    images, digits = images[:500], digits[:500]

    def errors(masks: dict[str, npt.NDArray[np.bool_]]) -> float:
        mask = masks["hidden"].astype(np.float32)
        return float((whole.run(None, {"x": images, "mask": mask})[0].argmax(1) != digits).mean())

    found = l0arm.search(errors, {"hidden": HIDDEN}, "50%", steps=steps)
    small = session(int8_network(weights, found.masks["hidden"]))
    test, answers = images_of("test")
    mask = found.masks["hidden"].astype(np.float32)
    masked = whole.run(None, {"x": test, "mask": mask})[0]
    compact = small.run(None, {"x": test})[0]
    wrong = (compact.argmax(1) != answers).mean()
    print(f"errors at the start {found.start:.3f}, found {found.value:.3f}, on test {wrong:.3f}")
    return found, float(np.abs(masked - compact).max())


if __name__ == "__main__":
    print(f"the compact file differs by {main()[1]:.1e}")
