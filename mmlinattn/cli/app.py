"""Serve a web page with predictions and attention maps of images."""

import argparse
import importlib.util
import os
import socket
import tempfile
from concurrent.futures import Future
from pathlib import Path
from typing import List, Optional

from ..apis.sources import IMAGES
from ..app import Workbench, load_models, package_models
from ..app.page import build_page, run_until_closed, serve
from ..app.workbench import model_names
from ..engine.config_files import config_file
from ..utils.command_line import errors_in_one_line
from .arguments.prediction import EXAMPLES

MOST_EXAMPLES = 8


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


def main(args: argparse.Namespace) -> int:
    with errors_in_one_line(args.debug), tempfile.TemporaryDirectory() as uploads:
        if importlib.util.find_spec('gradio') is None:
            raise ModuleNotFoundError("the page needs the package gradio: pip install 'gradio>=6'")
        check_address(args.host, args.port)
        examples = examples_of(args.images)
        files = list(zip(args.models[::2], args.models[1::2])) or package_models()
        for config, weights in files:
            config_file(config)
            if '://' not in weights and not Path(weights).is_file():
                raise FileNotFoundError(f'checkpoint {weights!r} does not exist')
        os.environ['GRADIO_TEMP_DIR'] = uploads  # removed when the page is closed
        bench: Future[Workbench] = Future()
        page = build_page(model_names(files), bench, examples, args.max_megapixels)
        address = serve(page, Path(uploads), args.host, args.port)
        print(f'{address} (Ctrl-C closes it)', flush=True)
        run_until_closed(page, bench, lambda: Workbench(load_models(files, args.device)))
    return 0
