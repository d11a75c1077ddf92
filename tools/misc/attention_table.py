#!/usr/bin/env python
"""Write the tables of docs/attentions.md: properties, options, parameters and measured times.

    python tools/misc/attention_table.py                    # update the page
    python tools/misc/attention_table.py --check            # exit code 1 if the page is outdated

The times are those of the case 'attentions' in docs/benchmarks/layers.json.
"""

import argparse
import inspect
import json
import statistics
import sys
from pathlib import Path
from typing import Dict, List, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mmlinattn.models.layers as layers
from benchmarks.report import digits
from mmlinattn.models.layers import BaseAttention, registered_subclasses
from mmlinattn.projects.video import NonLocalBlock

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / 'docs' / 'attentions.md'
TIMES = ROOT / 'docs' / 'benchmarks' / 'layers.json'
BEGIN, END = '<!-- table: tools/misc/attention_table.py -->', '<!-- end of table -->'
OPTIONS = '<!-- options: tools/misc/attention_table.py -->'
# Size of the layers whose parameters are counted.
CHANNELS, HEADS = 64, 2
TOKENS = {'4k': 4096, '16k': 16384, '65k': 65536}
CASE, MODE = 'attentions', 'forward'
# Facts of the measurement that are shown with the times.
FACTS = ('command', 'commit', 'machine', 'threads', 'versions', 'settings')


def ours() -> Dict[str, type]:
    """Return the attentions of this package by name, then the non-local block."""
    found = registered_subclasses(BaseAttention)
    names = {n: cls for n, cls in found.items() if cls.__module__.startswith(layers.__name__)}
    return {**names, 'NonLocalBlock': NonLocalBlock}


def count(module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def added(kind: type) -> str:
    """Return the parameters beyond those of softmax attention; for a block, all of them."""
    if kind is NonLocalBlock:
        return f'{count(kind(CHANNELS)):,} in all'
    plain = count(layers.SoftmaxAttention(CHANNELS, HEADS))
    return f'{count(kind(CHANNELS, HEADS)) - plain:+,}'.replace('+0', '0')


def defaults(cls: type) -> Dict[str, object]:
    """Return the options of a class's own constructor with their defaults."""
    parameters = inspect.signature(cls).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def options(kind: type) -> Dict[str, object]:
    """Return the options of an attention, inherited ones too, without those of all attentions."""
    found: Dict[str, object] = {}
    bases = [cls for cls in kind.__mro__ if issubclass(cls, BaseAttention)][:-1]
    for cls in bases or [kind]:
        found = {**defaults(cls), **found}
    common = defaults(BaseAttention)
    own = {name: value for name, value in found.items() if common.get(name, ...) != value}
    return {name: value for name, value in own.items() if not bases or accepts(kind, name, value)}


def accepts(kind: type, name: str, value: object) -> bool:
    """Return False for an inherited option that the class sets itself."""
    try:
        kind(CHANNELS, HEADS, **{name: value})
    except TypeError:
        return False
    return True


def table(times: dict) -> List[str]:
    """Return the lines of both tables: the choice, then the folded details."""
    lines = _rows(
        ['attention', 'source', 'take it for', 'time', 'extra tokens', 'packed', 'export']
    )
    details = ['attention', 'formula', 'memory', 'map', 'parameters']
    more = _rows(
        [*details, *(f'ms, {name}' for name in TOKENS)], [4 + i for i in range(1 + len(TOKENS))]
    )
    for name, kind in ours().items():
        info = kind.info
        if info is None:
            raise SystemExit(
                f'{name} has no `info`: add info = AttentionInfo(formula=..., time=..., '
                'memory=..., source=..., use=...) to the class'
            )
        extra = 'yes' if getattr(kind, 'supports_extra_tokens', False) else 'no'
        export = 'any size' if info.any_export_size else 'one size'
        packed = info.packed if issubclass(kind, BaseAttention) else 'no'
        lines.append(_row(f'`{name}`', info.source, info.use, info.time, extra, packed, export))
        measured = times['ms'].get(name, {})
        needed = 'needed' if info.needs_map else ''
        ms = (measured.get(size, '') for size in TOKENS)
        more.append(_row(f'`{name}`', f'`{info.formula}`', info.memory, needed, added(kind), *ms))
    lines += ['', '<details>', '<summary>Formula, memory, parameters, milliseconds</summary>', '']
    lines += more
    words = dict(command='`{}`', commit='commit {}', threads='{} threads')
    facts = (words.get(name, '{}').format(times[name]) for name in FACTS)
    return [*lines, '', f'Times: {"; ".join(facts)}.', '', '</details>']


def option_table() -> List[str]:
    """Return the lines of the table of options, with those of all attentions first."""
    lines = _rows(['attention', 'options', 'must be off'])
    kinds = {'all but `NonLocalBlock`': BaseAttention}
    kinds.update({f'`{name}`': kind for name, kind in ours().items()})
    for name, kind in kinds.items():
        found = defaults(kind) if kind is BaseAttention else options(kind)
        texts = (f'`{key}={value!r}`' for key, value in found.items())
        refused = (f'`{option}`' for option in getattr(kind, 'unsupported_options', ()))
        lines.append(_row(name, ', '.join(texts), ', '.join(refused)))
    return lines


def _row(*cells: str) -> str:
    return f'| {" | ".join(cell.replace("|", chr(92) + "|") for cell in cells)} |'


def _rows(heads: List[str], right: Sequence[int] = ()) -> List[str]:
    """Return the first two lines of a table, with these columns aligned to the right."""
    return [_row(*heads), _row(*('---:' if i in right else '---' for i in range(len(heads))))]


def page(text: str, times: dict) -> str:
    """Return the page with updated tables."""
    for begin, lines in ((BEGIN, table(times)), (OPTIONS, option_table())):
        if begin in text:
            before, rest = text.split(begin)
            _, after = rest.split(END, 1)
            text = '\n'.join([before + begin, '', *lines, '', END + after])
    return text


def distil(results: dict) -> dict:
    """Return the median times in ms of each attention by size, and the facts of the measurement."""
    sizes = {tokens: name for name, tokens in TOKENS.items()}
    ms: Dict[str, Dict[str, str]] = {}
    for result in results['results']:
        kept = result['case'] == CASE and result['mode'] == MODE and not result['skipped']
        if kept and result['batch'] == 1 and result['tokens'] in sizes:
            value = digits(1e3 * statistics.median(result['seconds']))
            ms.setdefault(result['baseline'], {})[sizes[result['tokens']]] = value
    if not ms:
        raise SystemExit(f'{TIMES} has no times of the case {CASE!r}, {MODE}, batch 1')
    return dict({name: results[name] for name in FACTS}, ms=ms)


def main(argv: List[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--check', action='store_true', help='write nothing')
    args = parser.parse_args(argv)
    text = PAGE.read_text()
    wanted = page(text, distil(json.loads(TIMES.read_text())))
    if args.check:
        if text != wanted:
            print(f'{PAGE.relative_to(ROOT)} has drifted: run python tools/misc/attention_table.py')
        return int(text != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
