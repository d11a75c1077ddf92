"""Serve a web page with predictions and attention maps of images.

Without arguments it serves the models that `make demo` trained.
"""

import argparse
import importlib.util
import os
import socket
import tempfile
from pathlib import Path
from typing import List, Optional

from ..apis.sources import IMAGES
from ..app import Workbench, demo_models, load_models
from ..app.guard import no_outgoing_connections
from ..app.page import build_page, serve, wait_and_close
from ..datasets.audit.images import MAX_MEGAPIXELS
from ..utils.command_line import Parser, errors_in_one_line

DEMO, EXAMPLES, MOST_EXAMPLES = Path('work_dirs/demo'), Path('data/shapes/coco/val2017'), 8
PILLOW_LIMIT = 178


def parse_args(argv: Optional[List[str]] = None) -> argparse.Namespace:
    parser = Parser(description=__doc__)
    add = parser.add_argument
    add(
        'models', nargs='*', metavar='CONFIG CHECKPOINT',
        help='config (file, or the name of one of this package) and checkpoint of each model',
    )  # fmt: skip
    add('--images', type=Path, metavar='DIR', help=f'examples to pick; default: {EXAMPLES}')
    add('--host', default='127.0.0.1', help='where to listen; 0.0.0.0: all of the network')
    add('--port', type=int, help='default: the first that is free from 7860')
    add(
        '--max-megapixels', type=float, default=MAX_MEGAPIXELS, metavar='N',
        help='images with more are refused before they are decoded; default: %(default)g',
    )  # fmt: skip
    add('--device', default='cpu', help='cpu, cuda, cuda:1, ...')
    args = parser.parse_args(argv)
    if len(args.models) % 2:
        parser.error(f'each CONFIG needs its CHECKPOINT; {args.models[-1]!r} has none')
    if args.port is not None and not 1 <= args.port <= 65535:
        parser.error(f'--port must be 1 to 65535, got {args.port}')
    if not 0 < args.max_megapixels <= PILLOW_LIMIT:
        parser.error(
            f'--max-megapixels must be above 0 and at most {PILLOW_LIMIT}, which is the limit of '
            f'Pillow, got {args.max_megapixels:g}'
        )
    return args


def examples_of(folder: Optional[Path]) -> List[Path]:
    """Return the first images of a folder, or of the default folder if it exists.

    Raises:
        FileNotFoundError: ``folder`` is given and has no images.
    """
    directory = folder or EXAMPLES
    found = sorted(p for p in directory.glob('*') if p.suffix.lower() in IMAGES)[:MOST_EXAMPLES]
    if folder is not None and not found:
        raise FileNotFoundError(f'--images {str(folder)!r} has no images ({", ".join(IMAGES)})')
    return found


def check_address(host: str, port: Optional[int]) -> None:
    """Raise OSError if the server cannot listen at an address; called before models are loaded.

    Args:
        host: host name or address.
        port: port number; None for any free port.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host.strip('[]'), port or 0, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        where = f'--host {host}' if port is None else f'--host {host} --port {port}'
        raise OSError(f'{where} cannot be listened at: {error.strerror}; choose another') from error


def main(argv: Optional[List[str]] = None) -> int:
    args = parse_args(argv)
    with errors_in_one_line(args.debug), tempfile.TemporaryDirectory() as uploads:
        if importlib.util.find_spec('gradio') is None:
            raise ModuleNotFoundError(
                "the page needs the package gradio: pip install 'mmlinattn[app]'"
            )
        check_address(args.host, args.port)
        examples = examples_of(args.images)
        files = list(zip(args.models[::2], args.models[1::2])) or demo_models(DEMO)
        os.environ['GRADIO_TEMP_DIR'] = uploads  # removed when the page is closed
        bench = Workbench(load_models(files, args.device))
        page = build_page(bench, examples, args.max_megapixels)
        address = serve(page, Path(uploads), args.host, args.port)
        with no_outgoing_connections():
            print(f'{address} (Ctrl-C closes it)', flush=True)
            wait_and_close(page, bench)
    return 0
