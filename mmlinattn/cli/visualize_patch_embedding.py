"""Draw the filters of a ViT's patch embedding and its position embeddings."""

import argparse

from ..engine.config import load_config
from ..engine.model import load_model
from ..models.backbones import ViT
from ..utils.command_line import errors_in_one_line
from ..visualization.files import check_picture
from ..visualization.patch_embedding import draw_patch_embedding


def main(args: argparse.Namespace) -> int:
    with errors_in_one_line(args.debug):
        check_picture('--out', args.out)
        cfg = load_config(args.config, args.cfg_options)
        model, _ = load_model(cfg, args.checkpoint)
        backbone = getattr(model, 'backbone', None)
        if not isinstance(backbone, ViT):
            raise ValueError(
                f'{args.config} must have a ViT as its backbone, got {type(backbone).__name__}'
            )
        print(draw_patch_embedding(args.out, backbone.embed, args.components))
    return 0
