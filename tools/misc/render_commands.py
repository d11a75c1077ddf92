"""Page of all commands with their options, from the parsers."""

import argparse
import contextlib
from typing import List
from unittest.mock import patch

from mmlinattn.cli.commands import GROUPS, Command
from mmlinattn.utils.command_line import Parser

SHARED = ('-h', '--debug', '--cfg-options', '--local_rank')
HEAD = """# Commands

Written by `tools/misc/render_recipes.py`; `mmlinattn COMMAND --help` prints the same. Every
command has `--help` and `--debug`, which shows the traceback of an error. Those that read a config
have `--cfg-options a.b.c=value ...`; lists and dicts are written as in a config, in quotes:
`"custom_hooks=[dict(type='EMAHook')]"`. `python -m mmlinattn` is the same as `mmlinattn`.
"""


def parser_of(command: Command) -> Parser:
    """Return the parser that a function of the table of commands makes."""
    found: List[Parser] = []
    keep = patch.object(Parser, 'print_help', lambda self, *_: found.append(self))
    with keep, contextlib.suppress(SystemExit):
        command(['--help'])
    return found[0]


def described(parser: Parser, action: argparse.Action) -> str:
    """Return the row of an argument: names, value, help."""
    name = ', '.join(action.option_strings)
    formatter = parser._get_formatter()
    value = formatter._format_args(action, action.dest.upper()) if action.nargs != 0 else ''
    if not name:
        name, value = value, ''
    text = formatter._expand_help(action) if action.help else ''
    return f'| `{f"{name} {value}".strip()}` | {text} |'.replace('|  |', '| |')


def page() -> str:
    """Return the text of docs/reference/commands.md."""
    lines = [HEAD]
    for title, commands in GROUPS.items():
        lines.append(f'## {title}\n')
        for name, command in commands.items():
            parser = parser_of(command)
            lines += [f'### {name}\n', parser.description.partition('\n')[0] + '\n']
            rows = [a for a in parser._actions if a.option_strings[:1] not in [[s] for s in SHARED]]
            if rows:
                lines += ['| argument | |', '| --- | --- |']
                lines += [described(parser, action) for action in rows] + ['']
    return '\n'.join(lines).rstrip() + '\n'
