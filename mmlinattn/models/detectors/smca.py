"""SMCA, a DETR whose cross-attention is modulated around predicted points."""

from typing import Any, Dict, Optional, Sequence, Tuple

import torch
from mmdet.models.detectors import DETR
from mmdet.models.layers import SinePositionalEncoding
from mmdet.structures import SampleList
from mmengine.model import PretrainedInit
from mmengine.registry import MODELS
from mmengine.structures import InstanceData
from torch import Tensor, nn

from ...ops.common.numerics import accumulation_dtype
from ..layers import BaseAttention, init_layers
from .smca_decoder import Memory, SMCADecoder
from .smca_encoder import SMCAEncoder


@MODELS.register_module()
class SMCA(DETR):
    """Spatially modulated co-attention, "Fast Convergence of DETR with Spatially Modulated
    Co-Attention" (Gao et al., ICCV 2021), single scale as released.

    The encoder accepts any attention of this package.

    Args:
        backbone, neck, bbox_head, positional_encoding, num_queries: as in MMDetection's ``DETR``.
        train_cfg, test_cfg, data_preprocessor, init_cfg: as in MMDetection's ``DETR``.
        encoder: arguments of :class:`SMCAEncoder`; the attention is ``layer_cfg.attn_cfg``.
        decoder: arguments of :class:`SMCADecoder`.

    Raises:
        ValueError: ``positional_encoding.num_feats`` is not half the channels; in the forward
            pass, the size of the map does not match ``decoder.stride``.

    Example:
        >>> from mmengine.config import Config
        >>> from mmlinattn.engine import build_model
        >>> cfg = Config.fromfile('configs/smca/smca_r50_8xb2-50e_coco.py')
        >>> sum(p.numel() for p in build_model(cfg).parameters() if p.requires_grad)
        41534998
    """

    # Configs until _init_layers builds the modules.
    positional_encoding: Any
    encoder: Any
    decoder: Any

    def _init_layers(self) -> None:
        self.positional_encoding = SinePositionalEncoding(**self.positional_encoding)
        self.encoder = SMCAEncoder(**self.encoder)
        self.decoder = SMCADecoder(**self.decoder)
        self.embed_dims = self.encoder.embed_dims
        self.query_embedding = nn.Embedding(self.num_queries, self.embed_dims)
        num_feats = self.positional_encoding.num_feats
        if 2 * num_feats != self.embed_dims:
            raise ValueError(
                f'positional_encoding.num_feats={num_feats} must be half of '
                f'embed_dims={self.embed_dims}'
            )

    def init_weights(self) -> None:
        """Initialise as released: Xavier for matrices of encoder and decoder, scales of 1.

        Parameters of an attention besides its projections keep their initial values. An
        ``init_cfg`` is applied last; of that of the neck, only ``Pretrained`` is applied.
        """
        if not self.is_init:
            self._init_as_released()
        super(DETR, self).init_weights()  # DETR.init_weights would overwrite everything

    def _init_as_released(self) -> None:
        for coder in (self.encoder, self.decoder):
            init_layers(coder, _init_xavier)
            for module in coder.modules():
                if isinstance(module, BaseAttention):
                    module.init_projections(_zero_bias)
        for layer in self.decoder.layers:
            if layer.scale is not None:
                nn.init.zeros_(layer.scale.weight)
                nn.init.ones_(layer.scale.bias)
        if self.with_neck:
            # The projection has torch's initialisation. MMCV's is for convolutions before a ReLU,
            # and MMDetection's necks have a default init_cfg.
            for module in self.neck.modules():
                if isinstance(module, nn.Conv2d):
                    module.reset_parameters()
            cfgs = self.neck.init_cfg or []
            cfgs = [cfgs] if isinstance(cfgs, dict) else cfgs
            self.neck.init_cfg = [c for c in cfgs if c['type'] in ('Pretrained', PretrainedInit)]

    def pre_transformer(
        self, img_feats: Tuple[Tensor], batch_data_samples: SampleList
    ) -> Tuple[Dict, Dict]:
        """Prepare tokens, mask and positions as DETR, with the sizes that the decoder needs."""
        feat = img_feats[-1]
        hw_shape = tuple(feat.shape[-2:])
        shape, stride = batch_data_samples[0].batch_input_shape, self.decoder.stride
        if any(abs(side / stride - cells) >= 1 for side, cells in zip(shape, hw_shape)):
            raise ValueError(
                f'decoder.stride={stride} does not match the map {hw_shape} of an input of '
                f'{tuple(shape)} pixels'
            )
        encoder_inputs, decoder_inputs = super().pre_transformer(img_feats, batch_data_samples)
        sizes = [sample.img_shape[1::-1] for sample in batch_data_samples]
        encoder_inputs['hw_shape'] = hw_shape
        decoder_inputs['hw_shape'] = hw_shape
        decoder_inputs['image_sizes'] = torch.tensor(
            sizes, dtype=accumulation_dtype(feat.dtype), device=feat.device
        )
        return encoder_inputs, decoder_inputs

    def forward_encoder(
        self, feat: Tensor, feat_mask: Optional[Tensor], feat_pos: Tensor, hw_shape: Sequence[int]
    ) -> Dict:
        return dict(memory=self.encoder(feat, hw_shape, feat_pos, feat_mask))

    def forward_decoder(
        self,
        query: Tensor,
        query_pos: Tensor,
        memory: Tensor,
        memory_mask: Optional[Tensor],
        memory_pos: Tensor,
        hw_shape: Sequence[int],
        image_sizes: Tensor,
    ) -> Dict:
        hidden_states, points = self.decoder(
            query, query_pos, Memory(memory, hw_shape, memory_pos, memory_mask), image_sizes
        )
        return dict(hidden_states=hidden_states, references=points)

    def predict(
        self, batch_inputs: Tensor, batch_data_samples: SampleList, rescale: bool = True
    ) -> SampleList:
        """Predict boxes that do not depend on the other images of the batch.

        A batch of unpadded images of one size runs at once. Otherwise each image runs alone: a
        backbone would spread padding over the border. An image without pixels has no boxes.
        """
        sizes = [tuple(sample.img_shape[:2]) for sample in batch_data_samples]
        if len(set(sizes)) == 1 and sizes[0] == tuple(batch_inputs.shape[-2:]):
            return super().predict(batch_inputs, batch_data_samples, rescale)
        for image, sample, (height, width) in zip(batch_inputs, batch_data_samples, sizes):
            if height == 0 or width == 0:
                scores = image.new_zeros(0)
                boxes = dict(bboxes=image.new_zeros(0, 4), scores=scores, labels=scores.long())
                sample.pred_instances = InstanceData(**boxes)
                continue
            unpadded = sample.new()
            unpadded.set_metainfo(dict(batch_input_shape=(height, width)))
            (found,) = super().predict(image[None, :, :height, :width], [unpadded], rescale)
            sample.pred_instances = found.pred_instances
        return batch_data_samples


def _init_xavier(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear):
        nn.init.xavier_uniform_(layer.weight)


def _zero_bias(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear) and layer.bias is not None:
        nn.init.zeros_(layer.bias)
