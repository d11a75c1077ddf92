"""Read all images, videos and annotations of a config's data sets, and print what is wrong."""

import argparse
from collections import Counter

from ..engine.config import load_config
from ..engine.preflight.run import audit
from ..utils import escaped, redacted


def main(args: argparse.Namespace) -> int:
    images: Counter = Counter()
    kinds: Counter = Counter()
    cfg = load_config(args.config, args.cfg_options)
    for split, finding in audit(cfg, tuple(args.splits), images):
        kinds[split, finding.kind] += 1
        line = f'{split}, {finding.kind}: {finding.where}: {finding.what}'
        print(escaped(redacted(line)), flush=True)
    for split in images:
        print(f'{split}: {images[split]} samples')
    for (split, kind), count in sorted(kinds.items()):
        print(f'{split}: {count} x {kind}')
    if not kinds:
        print('nothing found')
    return 1 if kinds else 0
