"""Command-line utilities: shared arguments, and errors in one line instead of a traceback."""

import argparse
import ast
import errno
import inspect
import math
import os
import re
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Iterator, NoReturn, Optional, Tuple, Type

from .redact import escaped
from .suggest import did_you_mean

# Not at run time: --help and mistyped options are answered before other packages are imported.
if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

EXIT_CODE = 2
# A value of --cfg-options that is a dict, or a list or tuple with dicts.
NESTED = re.compile(r"""(dict\(|\{|[\[(].*(\bdict\(|\{)).*[])}]""", re.DOTALL)
# Options of older releases of the frameworks -> what replaces them.
OLD_OPTIONS = {
    '--aug-test': '--tta',
    '--auto-resume': '--resume',
    '--deterministic': '--cfg-options randomness.deterministic=True',
    '--device': 'CUDA_VISIBLE_DEVICES=N before the command, without N for the CPU',
    '--eval': 'metrics that test_evaluator of the config names',
    '--eval-options': '--cfg-options test_evaluator.KEY=VALUE',
    '--format-only': '--cfg-options test_evaluator.format_only=True',
    '--gpu-id': 'CUDA_VISIBLE_DEVICES=N before the command',
    '--gpu-ids': 'CUDA_VISIBLE_DEVICES=N before the command, or torchrun (docs/distributed.md)',
    '--gpus': 'torchrun (docs/distributed.md)',
    '--load-from': '--cfg-options load_from=FILE',
    '--no-validate': '--cfg-options val_dataloader=None val_cfg=None val_evaluator=None',
    '--options': '--cfg-options',
    '--resume-from': '--resume FILE',
    '--seed': '--cfg-options randomness.seed=N',
}
# A signal can arrive twice: from the scheduler and from torchrun, which forwards it.
SAME_SIGNAL_S = 5


class Overrides(argparse.Action):
    """MMEngine's ``DictAction`` of ``--cfg-options``, with an error that names a malformed part.

    A value with dicts, which ``DictAction`` cannot read, is written as in a config:
    ``custom_hooks=[dict(type='ProfilerHook')]``.
    """

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        for value in values:
            if not value.partition('=')[0] or '=' not in value:
                raise argparse.ArgumentError(self, f'{value!r} is not KEY=VALUE')
        from mmengine.config import DictAction

        plain = DictAction(self.option_strings, self.dest)
        for value in values:
            key, _, text = value.partition('=')
            try:
                if NESTED.fullmatch(text.strip()):
                    tree = _DictCalls().visit(ast.parse(text.strip(), mode='eval'))
                    found = getattr(namespace, self.dest, None) or {}
                    # Nothing is called: only literals are evaluated.
                    setattr(namespace, self.dest, {**found, key: ast.literal_eval(tree)})
                else:
                    plain(parser, namespace, [value], option_string)
            except (AssertionError, RecursionError, SyntaxError, TypeError, ValueError):
                raise argparse.ArgumentError(
                    self,
                    f'{value!r} cannot be read: quote it for the shell as in '
                    '"a.b=[dict(type=\'X\', n=1), 2]", or set it in a config file',
                ) from None


class _DictCalls(ast.NodeTransformer):
    """Turns ``dict(a=1)`` into ``{'a': 1}``."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        names = [keyword.arg for keyword in node.keywords]
        if getattr(node.func, 'id', None) != 'dict' or node.args or None in names:
            return node
        return ast.Dict([ast.Constant(name) for name in names], [k.value for k in node.keywords])


class Parser(argparse.ArgumentParser):
    """Argument parser of a command, with ``--debug`` and one-line errors.

    Args:
        command: name of the command, such as ``'train'``.
        description: text of ``--help``.
        config: help of the first argument, a config, to which ``--cfg-options`` belongs.
    """

    def __init__(self, command: str, description: Optional[str], config: str = '') -> None:
        super().__init__(
            prog=f'mmlinattn {command}',
            description=inspect.cleandoc(description or ''),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if config:
            self.add_argument('config', help=config)
            self.add_argument(
                '--cfg-options',
                nargs='+',
                action=Overrides,
                metavar='KEY=VALUE',
                help='override settings of the config, as a.b.c=value ...',
            )
        self.add_argument('--debug', action='store_true', help='errors with their traceback')

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r'unrecognized arguments: (--[\w-]+)', message)
        hint = ''
        if unknown and unknown[1] in OLD_OPTIONS:
            hint = f'; instead: {OLD_OPTIONS[unknown[1]]}'
        elif unknown:
            hint = did_you_mean(unknown[1], self._option_string_actions)
        self.exit(EXIT_CODE, f'error: {message}{hint} ({self.prog} --help)\n')


def expand_home(word: str) -> str:
    """Return a word of a command line with the home folder for ``~`` after ``=``.

    Shells expand it at the beginning of a word only.

    Example:
        >>> expand_home('--out=~/x') == f'--out={os.path.expanduser("~")}/x'
        True
    """
    option, equals, path = word.partition('=')
    return option + equals + os.path.expanduser(path)


def plain_console(**kwargs: Any) -> 'Console':
    """Return a console without markup, because file names may look like rich's markup."""
    from rich.console import Console

    return Console(markup=False, emoji=False, **kwargs)


def progress_bars(console: 'Console') -> 'Progress':
    """Return progress bars with a text, a count and the remaining time."""
    from rich import progress

    text = progress.TextColumn('{task.description:<5}', markup=False)
    columns = progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn()
    return progress.Progress(text, *columns, console=console)


@contextmanager
def unwind_on_sigterm() -> Iterator[None]:
    """Make SIGTERM raise SystemExit inside the block, so that temporary files are removed.

    The process exits with code 143, like one killed by the signal. A hook may replace the handler
    inside the block, as :class:`.preemption.PreemptionHook` does.
    """
    owner, last = os.getpid(), -math.inf

    def end(number: int, frame: Optional[FrameType]) -> None:
        nonlocal last
        if os.getpid() != owner:  # a forked worker, which has nothing to remove
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        if time.monotonic() - last > SAME_SIGNAL_S:
            last = time.monotonic()
            raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # Python can set handlers only in the main thread
        return
    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)


@contextmanager
def errors_in_one_line(
    debug: Optional[bool] = None,
    kinds: Tuple[Type[Exception], ...] = (Exception,),
    log_dir: Optional[str] = None,
) -> Iterator[None]:
    """Print an exception of these kinds as one line to stderr and exit with code 2.

    Ctrl-C ends in one line, too (code 130); SIGTERM as in :func:`unwind_on_sigterm`. With ``debug``
    the exception is raised unchanged; None is for a command without this option. Else its traceback
    is written to ``error.txt`` in ``log_dir`` if possible.
    """
    try:
        with unwind_on_sigterm():
            try:
                yield
            except SyntaxError as error:  # MMEngine takes an interrupt for one in a config
                if isinstance(error.__context__, (KeyboardInterrupt, SystemExit)):
                    raise error.__context__ from None
                raise
    except KeyboardInterrupt:
        print('error: interrupted', file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None
    except kinds as error:
        if debug:
            raise
        text = error_text(error)
        where = None if debug is None else '--debug shows the traceback'
        if log_dir is not None:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
                text += f': if the disk of {log_dir} is full, free space there or set --work-dir'
            with suppress(OSError):
                path = Path(log_dir) / 'error.txt'
                path.write_text(''.join(traceback.format_exception(error)))
                where = f'the traceback is in {path}'
        where = f' ({where})' if where else ''
        print(f'error: {type(error).__name__}: {text}{where}', file=sys.stderr)
        raise SystemExit(EXIT_CODE) from None


def print_text(text: str) -> None:
    """Print to stdout; ignore a closed pipe, as in ``mmlinattn --help | head``."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # At exit Python flushes its buffer, which would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def error_text(error: Exception) -> str:
    """Return the message of an error in one line, or its place in the code if it has none."""
    # A KeyError's text is the repr of its message.
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    if 'Original Traceback' in text:  # of a worker, with the message after the last line of code
        text = re.split(rf'\n(?:\w+\.)*{type(error).__name__}: ', text)[-1]
    text = ' '.join(text.split())
    if text:
        return escaped(text)
    for frame in traceback.extract_tb(error.__traceback__)[-1:]:
        return f'{frame.line} (line {frame.lineno} of {frame.filename})'
    return 'no message'
