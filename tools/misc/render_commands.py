#!/usr/bin/env python
"""Write docs/reference/commands.md: every command with its options, from the parsers.

``--check`` writes nothing and exits 1 if the page would change.
"""

import argparse
import contextlib
import sys
from pathlib import Path
from typing import List
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from mmlinattn.cli.commands import GROUPS, Command  # noqa: E402
from mmlinattn.utils.command_line import Parser  # noqa: E402

PAGE = ROOT / 'docs/reference/commands.md'
SHARED = ('-h', '--debug', '--cfg-options', '--local_rank')
HEAD = """# Commands

Written by `tools/misc/render_commands.py`; `mmlinattn COMMAND --help` prints the same. Every
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--check', action='store_true', help='write nothing, exit 1 on a change')
    args = parser.parse_args()
    text = page()
    changed = not PAGE.exists() or PAGE.read_text(encoding='utf-8') != text
    if changed and not args.check:
        PAGE.write_text(text, encoding='utf-8')
    return int(args.check and changed)


if __name__ == '__main__':
    sys.exit(main())
