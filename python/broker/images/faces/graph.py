"""An ONNX graph under construction: nodes, constants and the convolutions that the networks are made of.

Layouts: TensorFlow's filters are (height, width, in, out) and its images (batch, height, width, channel);
ONNX has (out, in, height, width) and (batch, channel, height, width). Names are counted, so the same calls
give the same bytes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from broker.images.faces.weights import Array

_OPSET = 17  # the oldest that has all we use, so that older runtimes load it too
_IR_VERSION = 8

Shape = Sequence[int | str]


class Graph:
    """Grows node by node. Every method that adds one returns the name of its result."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._constants: list[TensorProto] = []

    def constant(self, value: ArrayLike, kind: type[np.generic] = np.float32) -> str:
        """A constant tensor."""
        name = f"constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.array(value, kind, order="C"), name))
        return name

    def integers(self, *values: int) -> str:
        """A constant list of whole numbers: a shape, axes, bounds of a slice."""
        return self.constant(values, np.int64)

    def add(self, kind: str, *inputs: str, result: str | None = None, **attributes: Any) -> str:
        """A node with one result, which is named `result` if it leaves the graph."""
        name = result or f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [name], name=f"node_{name}", **attributes))
        return name

    def split(self, source: str, sizes: Sequence[int], axis: int) -> list[str]:
        """The parts of a tensor along an axis."""
        names = [f"split_{len(self._nodes)}_{part}" for part in range(len(sizes))]
        inputs = [source, self.integers(*sizes)]
        self._nodes.append(helper.make_node("Split", inputs, names, name=f"node_{names[0]}", axis=axis))
        return names

    def slice(self, source: str, begin: int, end: int, axis: int) -> str:
        """Elements `begin` to `end` along an axis, the last one excluded."""
        bounds = (self.integers(begin), self.integers(end), self.integers(axis))
        return self.add("Slice", source, *bounds)

    def convolution(self, source: str, filters: Array, bias: Array | None = None, stride: int = 1) -> str:
        """A convolution by TensorFlow's filters (height, width, in, out), padded as it pads `SAME`."""
        return self._convolution(source, filters.transpose(3, 2, 0, 1), bias, stride, group=1)

    def depthwise(self, source: str, filters: Array, bias: Array | None = None, stride: int = 1) -> str:
        """A convolution of each channel by its own filter of (height, width, channel, 1)."""
        moved = filters.transpose(2, 3, 0, 1)
        return self._convolution(source, moved, bias, stride, group=moved.shape[0])

    def valid_convolution(self, source: str, filters: Array, bias: Array) -> str:
        """A convolution without padding."""
        return self._convolution(source, filters.transpose(3, 2, 0, 1), bias, 1, group=1, pads=(0, 0, 0, 0))

    def model(
        self, name: str, inputs: Mapping[str, tuple[int, Shape]], outputs: Mapping[str, Shape], origin: str
    ) -> ModelProto:
        """The finished, checked model.

        Args:
            inputs: by name: an element type of `onnx.TensorProto` and a shape; text in it is a free size.
            outputs: by name the shape; elements are 32-bit floats.
            origin: what the weights come from; kept in the file.
        """
        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info(key, kind, shape) for key, (kind, shape) in inputs.items()],
            [helper.make_tensor_value_info(key, TensorProto.FLOAT, shape) for key, shape in outputs.items()],
            self._constants,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            producer_name="onair-broker",
            doc_string=origin,
        )
        model.ir_version = _IR_VERSION
        onnx.checker.check_model(model)
        return model

    def _convolution(
        self,
        source: str,
        filters: NDArray[np.float32],
        bias: Array | None,
        stride: int,
        group: int,
        pads: tuple[int, int, int, int] | None = None,
    ) -> str:
        side = filters.shape[2]
        inputs = [source, self.constant(filters)]
        if bias is not None:
            inputs.append(self.constant(bias))
        return self.add(
            "Conv",
            *inputs,
            kernel_shape=[side, side],
            strides=[stride, stride],
            pads=pads or _same_pads(side, stride),
            group=group,
        )


_Pads = tuple[int, int, int, int]


def _same_pads(side: int, stride: int) -> _Pads:
    """TensorFlow's `SAME` for the sides that occur here: an even image, a filter of 1 or 3.

    With a stride of two it pads at the end only, where ONNX's `SAME_UPPER` needs a size known beforehand.
    """
    if side == 1:
        return (0, 0, 0, 0)
    return (1, 1, 1, 1) if stride == 1 else (0, 0, 1, 1)
