"""Gradio page and its server, which sends nothing to the internet."""

import os
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

import numpy as np

from ..datasets.audit.images import MAX_MEGAPIXELS
from .guard import RequestGuard
from .workbench import Workbench, enlargement, read_image

if TYPE_CHECKING:
    import gradio

TITLE = 'MMLinAttn'
KEPT = 24 * 3600  # lifetime of pictures in the temporary folder, and cleaning interval, in seconds
CSS = """
.gradio-container { max-width: 1280px !important; margin: auto; }
#model, #score, #layer { min-height: 88px; }
#image img { object-fit: contain; width: 100%; height: 100%; }
#prediction img, #attention img { cursor: crosshair; }
.image-container > button, #image .image-frame { padding-top: 30px; box-sizing: border-box; }
"""


def build_page(
    workbench: Workbench,
    examples: Sequence[Path] = (),
    max_megapixels: float = MAX_MEGAPIXELS,
) -> 'gradio.Blocks':
    """Build the page of a workbench.

    Args:
        workbench: models and functions of the controls.
        examples: example images.
        max_megapixels: larger images are rejected before they are decoded.

    Raises:
        ModuleNotFoundError: gradio is not installed.
    """
    os.environ['GRADIO_ANALYTICS_ENABLED'] = 'False'  # read when gradio is imported
    import gradio as gr

    def one_line(error: Exception) -> 'gr.Error':
        # gradio keeps the error for a while; its frames would keep the tensors of the model alive.
        traceback.clear_frames(error.__traceback__)
        return gr.Error(' '.join(str(error).split()) or type(error).__name__, print_exception=False)

    def pixels(image: Dict[str, Any]) -> np.ndarray:
        return read_image(image['path'], max_megapixels)

    def predict(name: str, image: Optional[Dict[str, Any]], min_score: float):
        if image is None:
            return None, '', None
        try:
            drawn, text, table = workbench.predict(name, pixels(image), min_score)
        except Exception as error:  # models raise arbitrary exceptions; the page must keep running
            raise one_line(error) from error
        return drawn, text, dict(headers=table.heads, data=table.rows)

    def explain(name: str, image: Optional[Dict[str, Any]], title: str, pixel: Optional[List[int]]):
        if image is None or not title:
            return None, ''
        try:
            return workbench.explain(name, pixels(image), title, pixel)
        except Exception as error:
            raise one_line(error) from error

    def layers(name: str):
        titles = workbench.views(name)
        return gr.Dropdown(choices=titles, value=titles[0] if titles else None)

    def clicked(image: Dict[str, Any], event: gr.SelectData) -> List[int]:
        factor = enlargement(pixels(image))
        return [at // factor for at in event.index]

    names = list(workbench.models)
    titles = workbench.views(names[0])
    # Uploads are deleted, and the functions are not exposed as a public API.
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(KEPT, KEPT)) as page:
        gr.Markdown(
            f'# {TITLE}\nUpload or pick an image. Click the prediction: '
            'the last picture shows what the attention looks at for that pixel.'
        )
        pixel = gr.State(None)
        with gr.Row():
            with gr.Column(min_width=280):
                model = gr.Dropdown(names, value=names[0], label='model', elem_id='model')
                image = gr.Image(
                    str(examples[0]) if examples else None, sources=['upload', 'clipboard'],
                    label='image', elem_id='image', height=350,
                )  # fmt: skip
                if examples:
                    gr.Examples([str(path) for path in examples], image, label='examples')
            with gr.Column(min_width=280):
                min_score = gr.Slider(
                    0, 1, 0.3, step=0.05, label='least score of objects', elem_id='score'
                )
                drawn = gr.Image(
                    label='prediction: click a pixel', elem_id='prediction', interactive=False,
                    height=350, buttons=['download', 'fullscreen'], format='png',
                )  # fmt: skip
                summary = gr.Markdown(elem_id='summary')
                table = gr.Dataframe(
                    label='found', elem_id='found', interactive=False, max_height=300
                )
            with gr.Column(min_width=280):
                layer = gr.Dropdown(
                    titles, value=titles[0] if titles else None, label='layer', elem_id='layer'
                )
                attention = gr.Image(
                    label='what the query at that pixel looks at', elem_id='attention',
                    interactive=False, height=350, buttons=['download', 'fullscreen'], format='png',
                )  # fmt: skip
                text = gr.Markdown(elem_id='text')
        private = dict(api_visibility='private')
        # gradio would decode an image of any size, so the functions receive the uploaded file.
        of_image = dict(private, preprocess=False)
        prediction = dict(
            of_image, fn=predict,
            inputs=[model, image, min_score], outputs=[drawn, summary, table],
        )  # fmt: skip
        explanation = dict(
            of_image, fn=explain,
            inputs=[model, image, layer, pixel], outputs=[attention, text],
        )  # fmt: skip
        model.change(layers, model, layer, **private).then(**prediction).then(**explanation)
        image.change(lambda: None, None, pixel, **private).then(**prediction).then(**explanation)
        page.load(**prediction).then(**explanation)
        min_score.release(**prediction)
        layer.input(**explanation)
        for picture in (drawn, attention):
            picture.select(clicked, image, pixel, **of_image).then(**explanation)
    # Requests outside the queue would read images in parallel with other requests.
    return page.queue(api_open=False)


def serve(page: 'gradio.Blocks', uploads: Path, host: str, port: Optional[int] = None) -> str:
    """Serve the page in a background thread and return its URL.

    Args:
        uploads: folder of the uploaded files, which ``GRADIO_TEMP_DIR`` names.
        host: host name or address to listen at.
        port: port number; None for the first free one from 7860.

    Raises:
        OSError: the port is taken.
    """
    import gradio as gr
    from starlette.middleware import Middleware

    os.environ['no_proxy'] = '*'  # gradio sends a request to itself at the start
    os.environ['GRADIO_NUM_WORKERS'] = '0'  # worker processes would serve files without the guard
    _, address, _ = page.launch(
        server_name=host,
        server_port=port,
        share=False,
        mcp_server=False,
        ssr_mode=False,
        quiet=True,
        prevent_thread_lock=True,
        max_file_size='50mb',
        footer_links=[],
        app_kwargs=dict(middleware=[Middleware(RequestGuard, uploads=uploads)]),
        css=CSS,
        theme=gr.themes.Default(font=['system-ui', 'sans-serif'], font_mono=['monospace']),
    )
    return address


def wait_and_close(page: 'gradio.Blocks', workbench: Workbench) -> None:
    """Wait until Ctrl-C or another exception, such as from SIGTERM; end server and predictions.

    ``block_thread`` of gradio ends the server only after Ctrl-C. After other exceptions it would
    write to the folder of the uploads while that is being removed.
    """
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        pass
    finally:
        page.close(verbose=False)
        workbench.close()
