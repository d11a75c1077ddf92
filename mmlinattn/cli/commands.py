"""Table of the commands: what ``mmlinattn --help`` lists."""

import inspect
from argparse import Namespace
from typing import Callable, Dict, List, Optional, Tuple

from ..utils.suggest import did_you_mean
from .arguments import analysis, data, prediction, runs

# Function that parses the arguments. The first line of its docstring describes the command. The
# module of this package that has its name has a function ``main(args)``, whose errors are printed
# in one line. It returns the exit code, or the function of a long run, which returns the code and
# decides itself which errors have a traceback.
Command = Callable[[Optional[List[str]]], Namespace]
GROUPS: Dict[str, Dict[str, Command]] = {
    'Train and test': {'train': runs.train, 'test': runs.test, 'linearize': runs.linearize},
    'Predict and deploy': {
        'predict': prediction.predict,
        'app': prediction.app,
        'export': prediction.export,
    },
    'Data and weights': {
        'check-data': data.check_data,
        'shapes': data.shapes,
        'convert': data.convert,
    },
    'Analyse': {
        'analyze complexity': analysis.complexity,
        'analyze throughput': analysis.throughput,
        'analyze rank': analysis.rank,
        'analyze attention': analysis.visualize_attention,
        'analyze key-weights': analysis.visualize_key_weights,
        'doctor': analysis.doctor,
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


def usage() -> str:
    """Return the text of ``mmlinattn --help``."""
    width = max(map(len, COMMANDS))
    lines = [
        'usage: mmlinattn COMMAND [ARGUMENT ...]',
        '       mmlinattn COMMAND --help | --version',
    ]
    for title, commands in GROUPS.items():
        lines += ['', f'{title}:']
        for name, command in commands.items():
            summary = (inspect.getdoc(command) or '').partition('\n')[0]
            lines.append(f'  {name:<{width}}  {summary}')
    return '\n'.join(lines)


def find_command(words: List[str]) -> Tuple[str, List[str]]:
    """Split the words of a command line into the name of the command and its arguments.

    Raises:
        ValueError: there is no such command; the message suggests similar names.
    """
    for count in (1, 2):
        name = ' '.join(words[:count])
        if name in COMMANDS:
            return name, words[count:]
    first = words[0]
    family = [name for name in COMMANDS if name.startswith(f'{first} ')]
    if family and len(words) > 1 and not words[1].startswith('-'):
        first = f'{first} {words[1]}'
        raise ValueError(f'no command {first!r}{did_you_mean(first, family)}')
    if family:
        raise ValueError(f'{first!r} is one of the commands {", ".join(family)}')
    raise ValueError(f'no command {first!r}{did_you_mean(first, COMMANDS)}')
