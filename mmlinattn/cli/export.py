"""Export a trained model to files that run without this package: docs/export.md."""

import argparse
from pathlib import Path

from ..deployment import FORMATS, ExportSettings, export, sample_image
from ..engine.config import load_image_config


def main(args: argparse.Namespace) -> int:
    name = Path(args.config).stem
    cfg = load_image_config(args.config, args.cfg_options)
    image, origin = sample_image(cfg, args.sample)
    settings = ExportSettings(tuple(args.shape), args.static, args.dynamic_batch)
    print(f'compared on {origin}', flush=True)
    out = args.out or Path('work_dirs') / name / name
    if out.name in ('', '..'):
        raise ValueError(f'--out {out} is a folder: give the path of the files, without a suffix')
    if out.suffix in [form.suffix for form in FORMATS.values()]:  # each format adds its own
        out = out.with_suffix('')
    for written in export(cfg, args.checkpoint, args.format, settings, out, image):
        print(written, flush=True)
    return 0
