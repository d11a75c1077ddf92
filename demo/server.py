"""Example of a server of predictions: docs/predict.md."""

import threading

import cv2
import numpy as np
from flask import Flask, request

from mmlinattn.apis import load

NAME = 'mask-rcnn_ravlt-nano-linear_nuclei'
predictor = load(NAME, f'mmlinattn://{NAME}')
one_at_a_time = threading.Lock()  # MMEngine's scope is global to the process
app = Flask(__name__)
app.config['MAX_CONTENT_LENGTH'] = 20 * 2**20


@app.post('/predict')
def predict():
    data = np.frombuffer(request.get_data(), np.uint8)
    image = cv2.imdecode(data, cv2.IMREAD_COLOR) if len(data) else None  # BGR
    if image is None:
        return {'error': 'the body is no image'}, 400
    with one_at_a_time:
        found = predictor(image)
    boxes, scores = found.boxes.tolist(), found.scores.tolist()
    return {'boxes': boxes, 'names': list(found.names), 'scores': scores}
