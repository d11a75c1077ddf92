"""Command line: ``python -m mmlinattn COMMAND``, or the console script ``mmlinattn``."""

import importlib
import io
import os
import sys
from typing import List, Optional

from .utils.suggest import did_you_mean
from .version import __version__

COMMANDS = {
    'train': 'train the model of a config',
    'test': 'score a checkpoint or an exported file on the test data of a config',
    'predict': 'predict images, folders, videos or a camera; pictures and COCO JSON',
    'export': 'write a trained model as ONNX, OpenVINO or AOTInductor',
    'latency': 'time a model and its exported files on the same images',
    'app': 'a page in the browser: predictions, and what the attention looks at',
    'convert': 'convert released weights',
    'complexity': 'parameters and multiply-accumulates of a model',
    'check-data': 'read all data of a config and report what is wrong with it',
    'doctor': 'versions, GPU, kernels, data: what is there and what is not',
}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f'  {name:<{width}}  {what}' for name, what in COMMANDS.items()]
    return '\n'.join(
        [
            'usage: mmlinattn COMMAND [ARGUMENT ...]',
            '       mmlinattn COMMAND --help | --version',
            '',
            *lines,
        ]
    )


def main(argv: Optional[List[str]] = None) -> int:
    """Run a command and return its exit code; return 2 for an unknown command."""
    for stream in (sys.stdout, sys.stderr):
        # File names may contain bytes that are not UTF-8; printing one must not raise.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')
    name, *arguments = (sys.argv[1:] if argv is None else argv) or ['']
    if name in ('-h', '--help', '--version'):
        _show(__version__ if name == '--version' else usage())
        return 0
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS)
        print(f'error: no command {name!r}{hint}' if name else usage(), file=sys.stderr)
        return 2
    command = importlib.import_module(f'{__package__}.cli.{name.replace("-", "_")}')
    sys.argv = [f'mmlinattn {name}', *arguments]
    return command.main() or 0


def _show(text: str) -> None:
    """Print to stdout; ignore a closed pipe, as in ``mmlinattn --help | head``."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # At exit Python flushes its buffer, which would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == '__main__':
    sys.exit(main())
