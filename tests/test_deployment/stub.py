"""ONNX files made by hand, without a model: an exporter has no part in them."""

import json
from pathlib import Path

import numpy as np

DETECTIONS = dict(
    boxes=np.array([[[8, 8, 40, 40], [0, 0, 0, 0]]], np.float32),
    scores=np.array([[0.9, 0]], np.float32),
    labels=np.array([[1, -1]]),
    count=np.array([1]),
    masks=np.ones((1, 2, 28, 28), np.float32),
)


def description(task: str, number: int, **changes) -> dict:
    """What a correct file of stride 32 and any size says about itself."""
    outputs = dict(
        classification=['scores'], segmentation=['labels'], detection=[*DETECTIONS]
    )  # fmt: skip
    known = dict(
        task=task, classes=[f'class {i}' for i in range(number)], outputs=outputs[task],
        stride=32, dynamic=True, shape=[64, 64], least=64, batch=1,
        padding=[0.0, 0.0, 0.0],
    )  # fmt: skip
    return {**known, **changes}


def write_stub(path: Path, task: str, metadata: object, classes: int = 6) -> Path:
    """Write a file that predicts the class 1 everywhere.

    Args:
        path: the file.
        task: of the graph, whatever the metadata say.
        metadata: a dict, or the text to store.
        classes: number of scores of a classifier.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    inputs = [helper.make_tensor_value_info('image', TensorProto.FLOAT, [1, 3, 'h', 'w'])]
    if task == 'detection':
        inputs.append(helper.make_tensor_value_info('size', TensorProto.INT64, [1, 2]))
    if task == 'segmentation':
        nodes = [
            helper.make_node('ReduceMax', ['image', 'axis'], ['top'], keepdims=0),
            helper.make_node('Mul', ['top', 'zero'], ['zeros']),
            helper.make_node('Add', ['zeros', 'one'], ['ones']),
            helper.make_node('Cast', ['ones'], ['labels'], to=TensorProto.INT64),
        ]
        constants = dict(axis=np.array([1]), zero=np.float32(0), one=np.float32(1))
        outs = [helper.make_tensor_value_info('labels', TensorProto.INT64, [1, 'h', 'w'])]
    else:
        found = DETECTIONS
        if task == 'classification':
            found = dict(scores=np.eye(classes, dtype=np.float32)[1:2])
        nodes = [helper.make_node('Identity', [f'_{name}'], [name]) for name in found]
        constants = {f'_{name}': value for name, value in found.items()}
        outs = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in found.items()
        ]
    weights = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    graph = helper.make_graph(nodes, 'stub', inputs, outs, weights)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9
    )  # fmt: skip
    text = metadata if isinstance(metadata, str) else json.dumps(metadata)
    helper.set_model_props(model, {'mmlinattn': text})
    onnx.save(model, path)
    return path
