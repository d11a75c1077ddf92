"""Gradio page and its server, which sends nothing to the internet."""

import os
import time
import traceback
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..datasets.audit.images import MAX_MEGAPIXELS
from .explain import OPACITY
from .guard import RequestGuard, no_outgoing_connections
from .html import bar_html, table_html
from .workbench import Workbench, enlargement, read_image

if TYPE_CHECKING:
    import gradio

TITLE = 'MMLinAttn'
KEPT = 24 * 3600  # lifetime of pictures in the temporary folder, and cleaning interval, in seconds
NO_LAYER = 'No attention of this model can be shown.'
CSS = """
.gradio-container { max-width: 1280px !important; margin: auto; }
#image img { object-fit: contain; width: 100%; height: 100%; }
#prediction img, #attention img { cursor: crosshair; }
#layer input, #model input { text-overflow: ellipsis; }
.image-container > button, #image .image-frame { padding-top: 30px; box-sizing: border-box; }
#found { max-height: 300px; overflow: auto; }
#found table { width: 100%; border-collapse: collapse; }
#found th, #found td { text-align: left; padding: 4px 8px; overflow-wrap: anywhere; }
#found table, #found tr { border-width: 0 !important; }
#found tr + tr { border-top: 1px solid var(--border-color-primary) !important; }
#found i { display: inline-block; width: 1em; height: 1em; margin-right: .5em;
  vertical-align: -.1em; border: 1px solid var(--border-color-primary); }
#found td, #found th { border-width: 0; }
#bar .bar { height: 14px; border: 1px solid var(--border-color-primary); }
#bar .ticks { position: relative; height: 1.5em; font-size: .85em; }
#bar .ticks span { position: absolute; white-space: nowrap; }
"""


def head_choices(count: int) -> List[Tuple[str, int]]:
    """Return the texts and values of the choice of a head; 0 is the mean.

    Example:
        >>> head_choices(2)
        [('mean over the heads', 0), ('head 1 of 2', 1), ('head 2 of 2', 2)]
    """
    own = [(f'head {i} of {count}', i) for i in range(1, count + 1)]
    return [('mean over the heads', 0), *own]


class Callbacks:
    """Functions of the controls; gradio is imported before one is made.

    Args:
        workbench: models and their functions; calls wait until they are loaded.
        max_megapixels: larger images are rejected before they are decoded.
    """

    def __init__(self, workbench: 'Future[Workbench]', max_megapixels: float) -> None:
        import gradio

        self.gr, self.workbench, self.max_megapixels = gradio, workbench, max_megapixels

    def pixels(self, image: Dict[str, Any]) -> np.ndarray:
        return read_image(image['path'], self.max_megapixels)

    def one_line(self, error: Exception) -> 'gradio.Error':
        # gradio keeps the error for a while; its frames would keep the tensors of the model alive.
        traceback.clear_frames(error.__traceback__)
        text = ' '.join(str(error).split()) or type(error).__name__
        return self.gr.Error(text, print_exception=False)

    def predict(self, name: str, image: Optional[Dict[str, Any]], min_score: float):
        if image is None:
            return None, '', ''
        try:
            drawn, text, table = self.workbench.result().predict(
                name, self.pixels(image), min_score
            )
        except Exception as error:  # models raise arbitrary exceptions; the page must keep running
            raise self.one_line(error) from error
        return drawn, text, table_html(table)

    def explain(
        self, name: str, image: Optional[Dict[str, Any]], title: Optional[str],
        pixel: Optional[List[int]], head: int, opacity: float,
    ):  # fmt: skip
        if image is None or not title:
            return None, '', '' if title else NO_LAYER
        try:
            shown = self.workbench.result().explain(
                name, self.pixels(image), title, pixel, head - 1 if head else None, opacity
            )
        except Exception as error:
            raise self.one_line(error) from error
        return shown.picture, bar_html(shown.bar), shown.text

    def controls(self, name: str):
        bench = self.workbench.result()
        titles, task = bench.views(name), bench.models[name].task
        title = titles[0] if titles else None
        layer = self.gr.Dropdown(choices=titles, value=title)
        return layer, self.gr.Slider(visible=task == 'detection'), self.heads(name, title)

    def heads(self, name: str, title: Optional[str]):
        count = self.workbench.result().heads(name, title)
        return self.gr.Dropdown(choices=head_choices(count), value=0, visible=count > 1)


def build_page(
    names: Sequence[str],
    workbench: 'Future[Workbench]',
    examples: Sequence[Path] = (),
    max_megapixels: float = MAX_MEGAPIXELS,
) -> 'gradio.Blocks':
    """Build the page of a workbench.

    Args:
        names: names of the models.
        workbench: models and functions of the controls; the page waits until they are loaded.
        examples: example images.
        max_megapixels: larger images are rejected before they are decoded.

    Raises:
        ModuleNotFoundError: gradio is not installed.
    """
    os.environ['GRADIO_ANALYTICS_ENABLED'] = 'False'  # read when gradio is imported
    import gradio as gr

    callbacks = Callbacks(workbench, max_megapixels)

    def clicked(image: Dict[str, Any], event: gr.SelectData) -> List[int]:
        factor = enlargement(callbacks.pixels(image))
        return [at // factor for at in event.index]

    shown = dict(interactive=False, height=350, buttons=['download', 'fullscreen'], format='png')
    # Uploads are deleted, and the functions are not exposed as a public API.
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(KEPT, KEPT)) as page:
        gr.Markdown(
            f'# {TITLE}\nUpload or pick an image. Click the prediction: '
            'the last picture shows what the attention looks at for that pixel.'
        )
        pixel = gr.State(None)
        with gr.Row():
            with gr.Column(min_width=280):
                image = gr.Image(
                    str(examples[0]) if examples else None, sources=['upload', 'clipboard'],
                    label='image', elem_id='image', height=350,
                )  # fmt: skip
                model = gr.Dropdown([*names], value=names[0], label='model', elem_id='model')
                if examples:
                    gr.Examples([str(path) for path in examples], image, label='examples')
            with gr.Column(min_width=280):
                drawn = gr.Image(label='prediction: click a pixel', elem_id='prediction', **shown)
                min_score = gr.Slider(
                    0, 1, 0.3, step=0.05, label='least score of objects', elem_id='score',
                    visible=False,
                )  # fmt: skip
                summary = gr.Markdown(elem_id='summary')
                table = gr.HTML(elem_id='found')
            with gr.Column(min_width=280):
                attention = gr.Image(
                    label='what the query at that pixel looks at', elem_id='attention', **shown
                )
                bar = gr.HTML(elem_id='bar')
                text = gr.Markdown(elem_id='text')
                layer = gr.Dropdown([], label='layer', elem_id='layer')
                head = gr.Dropdown(
                    head_choices(1), value=0, label='head', elem_id='head', visible=False
                )
                opacity = gr.Slider(
                    0, 1, OPACITY, step=0.05, label='opacity of the colours', elem_id='opacity'
                )
        private = dict(api_visibility='private')
        # gradio would decode an image of any size, so the functions receive the uploaded file.
        of_image = dict(private, preprocess=False)
        prediction = dict(
            of_image, fn=callbacks.predict,
            inputs=[model, image, min_score], outputs=[drawn, summary, table],
        )  # fmt: skip
        explanation = dict(
            of_image, fn=callbacks.explain,
            inputs=[model, image, layer, pixel, head, opacity], outputs=[attention, bar, text],
        )  # fmt: skip
        choice = dict(
            private, fn=callbacks.controls, inputs=model, outputs=[layer, min_score, head]
        )
        for event in (page.load, model.change):
            event(**choice).then(**prediction).then(**explanation)
        image.change(lambda: None, None, pixel, **private).then(**prediction).then(**explanation)
        min_score.release(**prediction)
        layer.input(callbacks.heads, [model, layer], head, **private).then(**explanation)
        head.input(**explanation)
        opacity.release(**explanation)
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


def run_until_closed(
    page: 'gradio.Blocks', workbench: 'Future[Workbench]', load: Callable[[], Workbench]
) -> None:
    """Load the models of a served page and wait until Ctrl-C; then end server and predictions.

    It ends in the same way after another exception, such as from SIGTERM or from loading, and
    raises it. ``block_thread`` of gradio would go on writing to the folder of the uploads then.

    Args:
        page: page from :func:`build_page`.
        workbench: that of the page.
        load: function that loads the models.
    """
    try:
        workbench.set_result(load())
        with no_outgoing_connections():
            while True:
                time.sleep(1)
    except KeyboardInterrupt:
        pass
    finally:
        workbench.cancel()  # ends requests that wait for the models
        page.close(verbose=False)
        if not workbench.cancelled():
            workbench.result().close()
