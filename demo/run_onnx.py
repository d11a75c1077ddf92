"""Predictions of an ONNX file of `mmlinattn export`, without torch and without MMLinAttn.

Copy this file into your program:

    from run_onnx import OnnxModel

    model = OnnxModel('model.onnx')
    boxes, scores, classes, masks = model.detect(cv2.imread('picture.jpg'), threshold=0.3)
"""

import json

import cv2
import numpy as np
import onnxruntime


class OnnxModel:
    """Exported detector or segmentor.

    Args:
        path: the ONNX file.
        options: of `onnxruntime.InferenceSession`, such as `providers=['CUDAExecutionProvider']`.
    """

    def __init__(self, path, **options):
        self.session = onnxruntime.InferenceSession(path, **options)
        # Task, classes, stride, ... as docs/export.md lists them.
        self.about = json.loads(self.session.get_modelmeta().custom_metadata_map['mmlinattn'])

    def run(self, picture, sides, task):
        """Return the outputs of a picture (H, W, 3) of cv2.imread, and its size after resizing.

        Args:
            picture: BGR image.
            sides: the shorter and the longer side at most, as Resize in the test pipeline.
            task: 'detection' or 'segmentation'.
        """
        if self.about['task'] != task:
            raise ValueError(f'the file is of {self.about["task"]}, not of {task}')
        if picture is None:  # of cv2.imread
            raise ValueError('there is no picture, or its file cannot be read')
        if picture.dtype != np.uint8 or picture.shape[2:] != (3,) or not picture.size:
            raise ValueError(f'take cv2.imread(path): got {picture.dtype} {picture.shape}')
        height, width = picture.shape[:2]
        factor = min(min(sides) / min(height, width), max(sides) / max(height, width))
        new = max(1, int(height * factor + 0.5)), max(1, int(width * factor + 0.5))
        resized = cv2.resize(picture, new[::-1])[..., ::-1]  # RGB
        about, stride = self.about, self.about['stride']
        shape = [max(-(-side // stride) * stride, about['least']) for side in new]
        shape = shape if about['dynamic'] else about['shape']
        if new[0] > shape[0] or new[1] > shape[1]:
            raise ValueError(f'after resizing {new} is above {shape}: give smaller sides')
        image = np.empty((*shape, 3), np.float32)
        image[:] = about['padding']
        image[: new[0], : new[1]] = resized
        inputs = {'image': image.transpose(2, 0, 1)[None]}
        if about['task'] == 'detection':
            inputs['size'] = np.array([new], np.int64)
        outputs = self.session.run(None, inputs)
        return {name: out[0] for name, out in zip(about['outputs'], outputs)}, new

    def detect(self, picture, sides=(800, 1333), threshold=0.0):
        """Return boxes, scores, classes, and masks (H, W) of bool if the model has them."""
        found, new = self.run(picture, sides, 'detection')
        height, width = picture.shape[:2]
        count = (found['scores'][: int(found.pop('count'))] >= threshold).sum()  # best first
        found = {name: out[:count] for name, out in found.items()}
        scale = new[1] / width, new[0] / height  # not quite equal, as both sides are rounded
        boxes = found['boxes'] / [*scale, *scale]
        classes = [self.about['classes'][label] for label in found['labels']]
        masks = [paste(*pair, height, width) for pair in zip(found.get('masks', []), boxes)]
        return boxes, found['scores'], classes, masks

    def segment(self, picture, sides=(1024, 2048)):
        """Return the class of each pixel (H, W); about['classes'] has the names."""
        found, new = self.run(picture, sides, 'segmentation')
        labels = found['labels'][: new[0], : new[1]].astype(np.int32)
        return cv2.resize(labels, picture.shape[1::-1], interpolation=cv2.INTER_NEAREST)


def paste(mask, box, height, width):
    """Return a map (height, width) of bool, where the mask of a box is above 0.5."""
    left, top, right, bottom = box
    x = (np.arange(width) + 0.5 - left) / (right - left) * mask.shape[1] - 0.5
    y = (np.arange(height) + 0.5 - top) / (bottom - top) * mask.shape[0] - 0.5
    grid = [axis.astype(np.float32) for axis in np.meshgrid(x, y)]
    return cv2.remap(mask, *grid, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT) >= 0.5
