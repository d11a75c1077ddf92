"""Gradio page and its server."""

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import cv2
import numpy as np

from ..apis import Prediction, Predictor
from .attention import attention_layers, attention_of, enlarged

if TYPE_CHECKING:
    import gradio

MOST_CLASSES = 10  # rows of a classifier's table
NO_LAYER = 'No attention of this model can be shown.'


class Callbacks:
    """Functions of the controls for predictors by name, called one at a time.

    MMEngine's scope is global to the process, and an attention is observed while its model runs.
    """

    def __init__(self, models: Dict[str, Predictor]) -> None:
        self.models, self.turn, self.is_closed = models, threading.Lock(), False

    def predict(self, name: str, path: Optional[str], min_score: float) -> Tuple[Any, Any, str]:
        """Return the drawn prediction, its table and a line with the time."""
        if path is None:
            return None, None, ''
        with self.turn:
            predictor = self.open(name)
            found = predictor.predict(predictor.read(Path(path)), min_score=min_score)
            drawn = cv2.cvtColor(enlarged(found.plot()), cv2.COLOR_BGR2RGB)
            height, width = found.image.shape[:2]
            text = f'{1e3 * found.seconds:.0f} ms for {width} x {height} pixels'
            return drawn, table_of(found), text

    def explain(
        self, name: str, path: Optional[str], layer: Optional[str], pixel: Optional[List[int]]
    ) -> Tuple[Optional[np.ndarray], str]:
        """Return the attention of the token at a pixel, and its description."""
        if path is None or not layer:
            return None, '' if layer else NO_LAYER
        with self.turn:
            at = None if pixel is None else (pixel[0], pixel[1])
            predictor = self.open(name)
            return attention_of(predictor, predictor.read(Path(path)), layer, at)

    def layers(self, name: str) -> List[str]:
        return attention_layers(self.models[name].model)

    def open(self, name: str) -> Predictor:
        if self.is_closed:
            raise RuntimeError('the page is closed')
        return self.models[name]

    def close(self) -> None:
        """Wait for a running prediction: Python would abort if it ended beside it."""
        self.is_closed = True
        with self.turn:
            pass


def table_of(prediction: Prediction) -> Dict[str, list]:
    """Return objects or classes with their scores, best first, or with their share of the pixels.

    The keys are those of gradio's ``Dataframe``.
    """
    headers, names = ['class', 'score'], prediction.names
    if prediction.segmentation is not None:
        shares = np.bincount(prediction.segmentation.flatten()) / prediction.segmentation.size
        headers[1] = 'share'
        rows = [[n, round(float(shares[i]), 3)] for n, i in zip(names, prediction.labels)]
    else:
        assert prediction.scores is not None
        rows = [[n, round(float(score), 3)] for n, score in zip(names, prediction.scores)]
    if prediction.boxes is not None:
        headers += ['left', 'top', 'right', 'bottom']
        rows = [row + [round(x) for x in box.tolist()] for row, box in zip(rows, prediction.boxes)]
    elif prediction.segmentation is None:
        rows = rows[:MOST_CLASSES]
    return dict(headers=headers, data=sorted(rows, key=lambda row: -row[1]))


def build_page(callbacks: Callbacks, examples: Sequence[Path] = ()) -> 'gradio.Blocks':
    """Build the page of models, with some images as examples."""
    import gradio as gr

    def guarded(function: Any) -> Any:
        def call(*args: Any) -> Any:
            try:
                return function(*args)
            except Exception as error:  # the page says what is wrong and goes on
                raise gr.Error(str(error), print_exception=False) from error

        return call

    def layers(name: str) -> Any:
        names = callbacks.layers(name)
        return gr.Dropdown(choices=names, value=names[0] if names else None)

    def clicked(event: gr.SelectData) -> List[int]:
        return event.index

    names = [*callbacks.models]
    with gr.Blocks(title='MMLinAttn', analytics_enabled=False) as page:
        gr.Markdown(
            '# MMLinAttn\nUpload or pick an image. Click the attention picture to choose the '
            'token whose attention it shows.'
        )
        pixel = gr.State(None)
        with gr.Row():
            with gr.Column():
                model = gr.Dropdown(names, value=names[0], label='model', elem_id='model')
                image = gr.Image(
                    str(examples[0]) if examples else None, type='filepath', label='image',
                    image_mode=None,  # the file as it is; RGB would clip 16 bits at 255
                    sources=['upload', 'clipboard'], elem_id='image',
                )  # fmt: skip
                if examples:
                    gr.Examples([str(path) for path in examples], image, label='examples')
            with gr.Column():
                # WebP, the default, loses colours and ends at 16383 pixels.
                drawn = gr.Image(
                    label='prediction', interactive=False, elem_id='prediction', format='png'
                )
                score = gr.Slider(0, 1, 0.3, step=0.05, label='least score of objects')
                summary = gr.Markdown(elem_id='summary')
                table = gr.Dataframe(label='found', interactive=False, elem_id='found')
            with gr.Column():
                attention = gr.Image(
                    label='attention of the marked token',
                    interactive=False,
                    format='png',
                    elem_id='attention',
                )
                layer = gr.Dropdown(callbacks.layers(names[0]), label='layer', elem_id='layer')
                text = gr.Markdown(elem_id='text')
        private = dict(api_visibility='private')
        prediction = dict(
            private, fn=guarded(callbacks.predict),
            inputs=[model, image, score], outputs=[drawn, table, summary],
        )  # fmt: skip
        explanation = dict(
            private, fn=guarded(callbacks.explain),
            inputs=[model, image, layer, pixel], outputs=[attention, text],
        )  # fmt: skip
        for event in (page.load, model.change, image.change):
            event(lambda: None, None, pixel, **private).then(layers, model, layer, **private).then(
                **prediction
            ).then(**explanation)
        score.release(**prediction)
        layer.input(**explanation)
        attention.select(clicked, None, pixel, **private).then(**explanation)
    return page.queue(api_open=False)


def serve(
    models: Dict[str, Predictor],
    examples: Sequence[Path] = (),
    host: str = '127.0.0.1',
    port: Optional[int] = None,
) -> None:
    """Serve the page of models until Ctrl-C.

    Uploads lie in a temporary folder, which is removed at the end.

    Args:
        models, examples: see :class:`Callbacks` and :func:`build_page`.
        host: host name or address to listen at.
        port: port number; None for the first free one from 7860.

    Raises:
        OSError: the port is taken.
    """
    callbacks = Callbacks(models)
    with tempfile.TemporaryDirectory() as uploads:
        # Read when gradio is imported.
        os.environ.update(GRADIO_ANALYTICS_ENABLED='False', GRADIO_TEMP_DIR=uploads)
        import gradio as gr

        page = build_page(callbacks, examples)
        fonts = dict(font=['system-ui', 'sans-serif'], font_mono=['monospace'])  # none from the web
        _, address, _ = page.launch(
            server_name=host, server_port=port, share=False, quiet=True, show_error=True,
            prevent_thread_lock=True, max_file_size='50mb', theme=gr.themes.Default(**fonts),
        )  # fmt: skip
        print(f'{address} (Ctrl-C closes it)', flush=True)
        try:
            while True:
                time.sleep(1)
        except KeyboardInterrupt:
            pass
        finally:
            page.close(verbose=False)
            callbacks.close()
