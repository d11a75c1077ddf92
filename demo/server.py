"""Example of a server of predictions: docs/predict.md."""

import io
import threading

import cv2
import numpy as np
from flask import Flask, request
from PIL import Image

from mmlinattn.apis import load

NAME = 'mask-rcnn_ravlt-nano-linear_nuclei'
predictor = load(NAME, f'mmlinattn://{NAME}')
one_at_a_time = threading.Lock()  # MMEngine's scope is global to the process
app = Flask(__name__)
app.config['MAX_CONTENT_LENGTH'] = 20 * 2**20
MAX_PIXELS = 50_000_000  # a small file may be an image that does not fit into memory


@app.post('/predict')
def predict():
    body = request.get_data()
    try:
        width, height = Image.open(io.BytesIO(body)).size  # from the header alone
    except (OSError, Image.DecompressionBombError):
        return {'error': 'the body is no image'}, 400
    if width * height > MAX_PIXELS:
        return {'error': f'the image has more than {MAX_PIXELS} pixels'}, 413
    image = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR)  # BGR
    if image is None:
        return {'error': 'the body is no image'}, 400
    with one_at_a_time:
        found = predictor(image)
    boxes, scores = found.boxes.tolist(), found.scores.tolist()
    return {'boxes': boxes, 'names': list(found.names), 'scores': scores}
