"""The page itself, of gradio. Nothing of it goes out to the internet."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, List, Optional, Sequence

import numpy as np

from .workbench import Workbench, enlargement

if TYPE_CHECKING:
    import gradio

TITLE = 'MMLinAttn'
KEPT = 24 * 3600  # seconds that pictures lie in the temporary folder, and between looks for older
CSS = """
.gradio-container { max-width: 1280px !important; margin: auto; }
#model, #score, #layer { min-height: 88px; }
#image img { object-fit: contain; width: 100%; height: 100%; }
#prediction img, #attention img { cursor: crosshair; }
.image-container > button, #image .image-frame { padding-top: 30px; box-sizing: border-box; }
"""


def build_page(workbench: Workbench, examples: Sequence[Path] = ()) -> 'gradio.Blocks':
    """The page over a workbench; ``examples`` are pictures to pick.

    Raises:
        ModuleNotFoundError: gradio is not installed.
    """
    os.environ['GRADIO_ANALYTICS_ENABLED'] = 'False'  # read when gradio is imported
    import gradio as gr

    def one_line(error: Exception) -> 'gr.Error':
        return gr.Error(' '.join(str(error).split()) or type(error).__name__, print_exception=False)

    def predict(name: str, image: Optional[np.ndarray], min_score: float):
        if image is None:
            return None, '', None
        try:
            drawn, text, table = workbench.predict(name, image, min_score)
        except Exception as error:  # whatever a model says of a picture; the page goes on
            raise one_line(error) from error
        return drawn, text, dict(headers=table.heads, data=table.rows)

    def explain(name: str, image: Optional[np.ndarray], title: str, pixel: Optional[List[int]]):
        if image is None or not title:
            return None, ''
        height, width = image.shape[:2]
        try:
            return workbench.explain(name, image, title, pixel or (width // 2, height // 2))
        except Exception as error:
            raise one_line(error) from error

    def layers(name: str):
        titles = workbench.views(name)
        return gr.Dropdown(choices=titles, value=titles[0] if titles else None)

    def clicked(image: np.ndarray, event: gr.SelectData) -> List[int]:
        return [at // enlargement(image) for at in event.index]

    names = list(workbench.models)
    titles = workbench.views(names[0])
    # Uploads are deleted; the functions have no public interface beside the page.
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
                    str(examples[0]) if examples else None, type='numpy', image_mode='RGB',
                    sources=['upload', 'clipboard'], label='image', elem_id='image', height=350,
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
        prediction = dict(
            fn=predict, inputs=[model, image, min_score], outputs=[drawn, summary, table], **private
        )
        explanation = dict(
            fn=explain, inputs=[model, image, layer, pixel], outputs=[attention, text], **private
        )
        model.change(layers, model, layer, **private).then(**prediction).then(**explanation)
        image.change(lambda: None, None, pixel, **private).then(**prediction).then(**explanation)
        page.load(**prediction).then(**explanation)
        min_score.release(**prediction)
        layer.input(**explanation)
        for picture in (drawn, attention):
            picture.select(clicked, image, pixel, **private).then(**explanation)
    return page


def serve(page: 'gradio.Blocks', host: str, port: Optional[int] = None) -> str:
    """Serves the page in a thread of its own; its address.

    Args:
        host: name or address to listen at.
        port: None for the first free one from 7860.

    Raises:
        OSError: the port is taken.
    """
    import gradio as gr

    _, address, _ = page.launch(
        server_name=host,
        server_port=port,
        share=False,
        ssr_mode=False,
        quiet=True,
        prevent_thread_lock=True,
        max_file_size='50mb',
        footer_links=[],
        css=CSS,
        theme=gr.themes.Default(font=['system-ui', 'sans-serif'], font_mono=['monospace']),
    )
    return address
