"""Command line: ``python -m mmlinattn COMMAND``, or the console script ``mmlinattn``."""

import importlib
import io
import sys
from types import ModuleType
from typing import List, Optional

from .cli.commands import COMMANDS, find_command, usage
from .utils.command_line import EXIT_CODE, errors_in_one_line, expand_home, print_text
from .utils.environment import prepare_environment, use_utf8
from .utils.messages import hide_known_messages, known_messages_hidden
from .utils.versions import warn_if_untested
from .version import __version__


def main(argv: Optional[List[str]] = None) -> int:
    """Run a command and return its exit code; return 2 for an unknown command.

    Arguments are parsed before the module of the command, and with it torch, is imported.
    """
    if argv is None:
        use_utf8()
    prepare_environment()
    for stream in (sys.stdout, sys.stderr):
        # File names may contain bytes that are not UTF-8; printing one must not raise.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')
    words = sys.argv[1:] if argv is None else argv
    if words[:1] in (['-h'], ['--help'], ['--version']):
        print_text(__version__ if words[0] == '--version' else usage())
        return 0
    try:
        name, arguments = find_command(words) if words else ('', [])
    except ValueError as error:
        print(f'error: {error} (mmlinattn --help)', file=sys.stderr)
        return EXIT_CODE
    if not name:
        print(usage(), file=sys.stderr)
        return EXIT_CODE
    parse, arguments = COMMANDS[name], [expand_home(word) for word in arguments]
    args = parse(arguments)
    sys.argv = [f'mmlinattn {name}', *arguments]
    with errors_in_one_line(args.debug):
        found = _import_command(name, parse.__name__).main(args)
    return found if isinstance(found, int) else found()


def _import_command(name: str, module: str) -> ModuleType:
    """Return the module of a command.

    Raises:
        ModuleNotFoundError: MMEngine or mmcv is not installed.
    """
    hide_known_messages()
    try:
        with known_messages_hidden():
            found = importlib.import_module(f'{__package__}.cli.{module}')
    except ModuleNotFoundError as error:
        if (error.name or '').partition('.')[0] not in ('mmengine', 'mmcv'):
            raise
        raise ModuleNotFoundError(
            f'mmlinattn {name} needs MMEngine and mmcv: docs/installation.md says how to install '
            f'them ({error})'
        ) from error
    warn_if_untested()
    return found


if __name__ == '__main__':
    sys.exit(main())
