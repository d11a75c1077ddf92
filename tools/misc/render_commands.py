"""Page of all commands and the names of their options, from the parsers."""

import argparse
import contextlib
from typing import List
from unittest.mock import patch

from mmlinattn.cli.commands import GROUPS, Command
from mmlinattn.utils.command_line import Parser

SHARED = ('-h', '--debug', '--cfg-options', '--local_rank')
HEAD = """# Commands

Written by `tools/misc/render_recipes.py`. `mmlinattn COMMAND --help` explains the arguments.

Every command has `--help` and `--debug`, which shows the traceback of an error. Those that read a
config have `--cfg-options a.b.c=value ...`; lists and dicts are written as in a config, in quotes:
`"custom_hooks=[dict(type='EMAHook')]"`. A number is an element of a list:
`param_scheduler.0.end=10` changes an option of it, and
`"param_scheduler.0=dict(_delete_=True, type='PolyLR')"` replaces it.
`python -m mmlinattn` is the same as `mmlinattn`.

- CONFIG is a file, or the name of a config of this package (`ravlt-t_8xb128_in1k`).
  `custom_imports` finds modules beside the config and in the current folder.
- CHECKPOINT is a path or an `https` address ([all kinds, what is refused](../checkpoints.md)).
- Before any work a command checks data folders, checkpoints, files to write, option names and
  metrics. A misspelt option is named with its place and what was meant. An error is one line and
  exit code 2. SIGTERM ends a command with exit code 143, Ctrl-C with 130.
- `train` and `test` print warnings, losses and scores; the log file has everything. Messages of
  other packages that you cannot act on are [not printed](../../mmlinattn/utils/messages.py).
- In a checkout `tools/` has OpenMMLab's usual scripts.
"""


def parser_of(command: Command) -> Parser:
    """Return the parser that a function of the table of commands makes."""
    found: List[Parser] = []
    keep = patch.object(Parser, 'print_help', lambda self, *_: found.append(self))
    with keep, contextlib.suppress(SystemExit):
        command(['--help'])
    return found[0]


def named(parser: Parser, action: argparse.Action) -> str:
    """Return the names of an argument and its value."""
    formatter = parser._get_formatter()
    value = formatter._format_args(action, action.dest.upper()) if action.nargs != 0 else ''
    return f'{", ".join(action.option_strings)} {value}'.strip()


def page() -> str:
    """Return the text of docs/reference/commands.md."""
    lines = [HEAD]
    for title, commands in GROUPS.items():
        lines += [f'## {title}', '', '| command | what it does | options |', '| --- | --- | --- |']
        for name, command in commands.items():
            parser = parser_of(command)
            known = [
                a for a in parser._actions if a.option_strings[:1] not in [[s] for s in SHARED]
            ]
            call = [name, *(named(parser, a) for a in known if not a.option_strings)]
            options = ', '.join(f'`{named(parser, a)}`' for a in known if a.option_strings)
            text = parser.description.partition('\n')[0]
            lines.append(f'| `{" ".join(call)}` | {text} | {options} |')
        lines.append('')
    return '\n'.join(lines)
