#!/usr/bin/env python
"""Check that docstrings begin as CONTRIBUTING.md requires.

A function begins with a verb in the imperative ("Return the slices ..."), a class, module or
property with a noun phrase. The sentences before the sections ("Args:", ...) have at most 25 words;
a quotation, code or a citation counts as one. Prints one line per finding; exit code 1 if there are
any.
"""

import argparse
import ast
import re
import sys
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

FOLDERS = ('mmlinattn', 'tools', 'benchmarks')
MAX_WORDS = 25
SECTION = re.compile(r'^\s*(Args|Attributes|Example|Inputs|Raises|Returns|Yields):$', re.M)
# Quotations, code, and citations such as (Fan et al., CVPR 2025).
ONE_WORD = re.compile(r'"[^"]*"|``[^`]*``|\([^()]*\d{4}[^()]*\)')
# First words of sentences that are hard to understand.
BANNED = {
    'Any', 'Are', 'As', 'Can', 'Do', 'Does', 'From', 'How', 'Is', 'It', 'Its', 'Of', 'Same', 'See',
    'Them', 'They', 'What', 'Where', 'Whether', 'Which', 'Who',
}  # fmt: skip
VERBS = set(Path(__file__).with_name('imperative_verbs.txt').read_text().split())

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(path: Path) -> Iterator[Tuple[int, str, str]]:
    """Yield line, kind (``'function'`` or ``'noun'``) and text of every docstring of a file."""
    tree = ast.parse(path.read_text(encoding='utf-8'))
    for node in ast.walk(tree):
        if not isinstance(node, (*Function, ast.ClassDef, ast.Module)):
            continue
        text = ast.get_docstring(node)
        if text is None:
            continue
        is_verb = isinstance(node, Function) and not _is_property(node)
        yield getattr(node, 'lineno', 1), 'function' if is_verb else 'noun', text


def _is_property(node: ast.AST) -> bool:
    names = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(name.endswith(('property', 'setter')) for name in names)


def problem_of(kind: str, text: str) -> Optional[str]:
    """Return the problem of a docstring, or None.

    Example:
        >>> problem_of('function', 'Whether it fits.')
        "begins with 'Whether'"
        >>> problem_of('function', 'Return True if it fits.')
    """
    first = re.match(r'[A-Za-z]+', text)
    word = first[0] if first else text.split()[0]
    if word in BANNED:
        return f'begins with {word!r}'
    if kind == 'function' and word not in VERBS:
        return f'begins with {word!r}, which is no known verb in the imperative'
    for sentence in sentences(text):
        words = len(sentence.split())
        if words > MAX_WORDS:
            return f'has {words} words in a sentence, at most {MAX_WORDS}: {sentence}'
    return None


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of the description, without code and tables.

    Example:
        >>> [*sentences('Return x (Fan et al., 2025). It is new:\\n\\n    y = x')]
        ['Return x *.', 'It is new:']
    """
    for block in re.split(r'\n\s*\n|\n(?=\s*- )', SECTION.split(text)[0]):
        if not block.startswith((' ', '=', '|')) and '>>>' not in block:
            yield from re.split(r'(?<=[.:;])\s+', ONE_WORD.sub('*', ' '.join(block.split())))


def main(argv: Optional[List[str]] = None) -> int:
    """Check the files or folders of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('paths', nargs='*', type=Path, default=[Path(p) for p in FOLDERS])
    args = parser.parse_args(argv)
    found = 0
    for path in args.paths:
        for file in [path] if path.is_file() else sorted(path.rglob('*.py')):
            for line, kind, text in docstrings(file):
                problem = problem_of(kind, text)
                if problem:
                    found += 1
                    print(f'{file}:{line}: docstring {problem}')
    return int(found > 0)


if __name__ == '__main__':
    sys.exit(main())
