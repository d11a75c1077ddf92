"""Serve a web page with predictions and attention maps of images."""

import argparse
import errno
import importlib.util
import socket
from pathlib import Path
from typing import List, Optional

from ..apis.sources import IMAGES
from ..app import load_models, package_models
from ..app.page import serve
from ..engine.model import check_device
from .arguments.prediction import EXAMPLES

MOST_EXAMPLES = 8


def examples_of(folder: Optional[Path]) -> List[Path]:
    """Return the first images of a folder, or of the default folder if it exists."""
    paths = (folder or EXAMPLES).glob('*')
    found = sorted(path for path in paths if path.suffix.lower() in IMAGES)[:MOST_EXAMPLES]
    if folder is not None and not found:
        raise FileNotFoundError(f'--images {str(folder)!r} has no images ({", ".join(IMAGES)})')
    return found


def check_address(host: str, port: Optional[int]) -> None:
    """Raise an error if nothing can listen at an address; ``port`` None stands for any.

    Gradio would go on to the next port, 100 times. It needs brackets around an IPv6 address.
    """
    if ':' in host and not host.startswith('['):
        raise ValueError(f'--host must have an IPv6 address in brackets: [{host}]')
    try:
        found = socket.getaddrinfo(host.strip('[]'), port or 0, type=socket.SOCK_STREAM)
        *kind, _, address = found[0]
        with socket.socket(*kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        cure = ': set another --port' if error.errno == errno.EADDRINUSE else ''
        raise OSError(f'--host {host} --port {port or "unset"}: {error.strerror}{cure}') from error


def main(args: argparse.Namespace) -> int:
    if importlib.util.find_spec('gradio') is None:
        raise ModuleNotFoundError("the page needs the package gradio: pip install 'gradio>=6'")
    examples = examples_of(args.images)
    check_address(args.host, args.port)
    files = list(zip(args.models[::2], args.models[1::2])) or package_models()
    serve(load_models(files, check_device(args.device)), examples, args.host, args.port)
    return 0
