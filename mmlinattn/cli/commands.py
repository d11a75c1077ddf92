"""Table of the commands: what ``mmlinattn --help`` lists."""

from argparse import Namespace
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from ..utils.suggest import did_you_mean
from . import arguments


class Command(NamedTuple):
    """Command of the command line.

    Its module in this package has the name of ``parse`` and a function ``main(args)``, which
    returns the exit code.
    """

    parse: Callable[[Optional[List[str]]], Namespace]
    summary: str


GROUPS: Dict[str, Dict[str, Command]] = {
    'Train and test': {
        'train': Command(arguments.train, 'train the model of a config'),
        'test': Command(
            arguments.test, 'score a checkpoint or an exported file on the test data of a config'
        ),
        'linearize': Command(
            arguments.linearize, 'turn a trained softmax model into one of linear cost'
        ),
    },
    'Predict and deploy': {
        'predict': Command(
            arguments.predict,
            'predict images and folders; pictures and COCO JSON',
        ),
        'app': Command(
            arguments.app,
            'a page in the browser: predictions, and what the attention looks at',
        ),
        'export': Command(arguments.export, 'write a trained model as ONNX or torch.export'),
    },
    'Data and weights': {
        'check-data': Command(
            arguments.check_data, 'read all data of a config and report what is wrong with it'
        ),
        'shapes': Command(arguments.shapes, 'write the embedded data set'),
        'convert': Command(arguments.convert, 'convert released weights'),
    },
    'Analyse': {
        'analyze complexity': Command(
            arguments.complexity, 'parameters and multiply-accumulates of a model'
        ),
        'analyze throughput': Command(arguments.throughput, 'images a second of a model'),
        'analyze rank': Command(arguments.rank, 'rank of what the attentions compute, by layer'),
        'analyze attention': Command(
            arguments.visualize_attention, 'attention maps of an SMCA detector'
        ),
        'analyze key-weights': Command(
            arguments.visualize_key_weights, 'what one query reads, for any attention'
        ),
        'doctor': Command(
            arguments.doctor, 'versions, GPU, kernels, data: what is there and what is not'
        ),
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
        lines += [f'  {name:<{width}}  {command.summary}' for name, command in commands.items()]
    return '\n'.join(lines)


def find_command(words: List[str]) -> Tuple[str, List[str]]:
    """Split the words of a command line into the name of the command and its arguments.

    Raises:
        ValueError: there is no such command; the message suggests similar names.

    Example:
        >>> find_command(['analyze', 'attention', 'config.py'])
        ('analyze attention', ['config.py'])
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
