"""Cross-attention at linear cost, with the interface of mmcv's ``MultiheadAttention``."""

from typing import Any, Dict, Optional

import torch
from mmcv.cnn.bricks.drop import build_dropout
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn

from .base import BaseAttention, TokenLayout
from .build import AttnCfg, build_attention, registered_subclasses

# Different rows of a mask, each of which needs its own sums over the keys.
MAX_ROWS = 128


@MODELS.register_module()
class LinearCrossAttention(BaseModule):
    """Attention of N queries to M keys at a cost of N + M, for decoders of the DETR family.

    Arguments and results are those of mmcv's ``MultiheadAttention`` with ``batch_first=True``. In
    self-attention, key and value are the query.

    ``attn_mask`` hides keys from queries. Linear attention sums over the keys once for all queries,
    and once more for every other row of the mask: the blocks of DINO's denoising queries are
    computed exactly. Many different rows cost more than softmax attention. A mask per image or
    head, as that of Mask2Former's cross-attention, raises an error. So do numbers to be added to
    the logits. RALA and ``AdditiveAttention`` weigh keys by a mean of the queries with the same
    row, alike for each of them.

    Args:
        embed_dims, num_heads: channels and heads.
        attn_cfg: ``'MALA'``, ``'RALA'``, ``'LinearAttention'`` and its subclasses, ``'RWGKA'``,
            ``'AdditiveAttention'`` (values are projections of the queries), ``'SoftmaxAttention'``
            for comparison, or a config of one of them, without positions and gate.
        attn_drop: must be 0, since there are no N x M weights to drop.
        proj_drop: rate of dropout on the output.
        dropout: rate of ``dropout_layer``, which it overrides.
        batch_first: must be True.
        ignore_attn_mask: attend to all keys in spite of a mask.
        dropout_layer: config of a second dropout on the output, such as ``dict(type='DropPath',
            drop_prob=0.1)``.

    Raises:
        ValueError: the attention cannot attend to other tokens; ``attn_cfg`` has ``embed_dims``,
            ``num_heads``, ``proj_drop`` or an option of maps; ``attn_drop`` is not 0, or
            ``batch_first`` is False.
        KeyError: the attention is unknown.

    Example:
        >>> attn = LinearCrossAttention(32, 4)
        >>> queries, memory = torch.randn(2, 10, 32), torch.randn(2, 35, 32)
        >>> attn(queries, memory).shape
        torch.Size([2, 10, 32])
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        attn_cfg: AttnCfg = 'MALA',
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        dropout: Optional[float] = None,
        batch_first: bool = True,
        ignore_attn_mask: bool = False,
        dropout_layer: Optional[dict] = None,
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(init_cfg)
        if attn_drop:
            raise ValueError(
                f'attn_drop must be 0, got {attn_drop}: linear attention has no N x M weights to '
                'drop; use dropout, on the output'
            )
        if not batch_first:
            raise ValueError('batch_first must be True: tokens are (B, N, C)')
        cfg = dict(attn_cfg) if isinstance(attn_cfg, dict) else dict(type=attn_cfg)
        own = [name for name in ('embed_dims', 'num_heads', 'proj_drop') if name in cfg]
        if own:
            raise ValueError(
                f'attn_cfg must not have {own[0]}, an argument of LinearCrossAttention itself, '
                f'got {attn_cfg!r}'
            )
        off = dict(rotary=False, lepe=0, gate=None)
        wrong = [name for name in off if cfg.get(name)]
        if wrong:
            raise ValueError(f'attn_cfg: cross-attention has no {wrong[0]}, got {attn_cfg!r}')
        self.attn = build_attention(dict(cfg, **off), embed_dims, num_heads)
        if self.attn.cross_values is None:
            kinds: Dict[str, Any] = registered_subclasses(BaseAttention)
            known = [name for name, kind in kinds.items() if kind.cross_values]
            raise ValueError(
                f'{type(self.attn).__name__} needs queries and keys of one map; attn_cfg must be '
                f'one of {known}'
            )
        if getattr(self.attn, 'position', None) is not None:
            raise ValueError(f'attn_cfg: cross-attention has no position, got {attn_cfg!r}')
        self.embed_dims, self.num_heads, self.batch_first = embed_dims, num_heads, True
        self.ignore_attn_mask = ignore_attn_mask
        drop = dict(dropout_layer or dict(type='Dropout', drop_prob=0.0))
        if dropout is not None:
            drop['drop_prob'] = dropout
        self.dropout = nn.Sequential(nn.Dropout(proj_drop), build_dropout(drop))

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor] = None,
        value: Optional[Tensor] = None,
        identity: Optional[Tensor] = None,
        query_pos: Optional[Tensor] = None,
        key_pos: Optional[Tensor] = None,
        attn_mask: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        **kwargs: Any,
    ) -> Tensor:
        """Apply the attention.

        Args:
            query: (B, N, C).
            key, value: (B, M, C); the query, and the key, by default.
            identity: (B, N, C), added to the output; the query by default.
            query_pos: (B, N, C), added to the query.
            key_pos: (B, M, C), added to the key; ``query_pos`` by default if its shape fits.
            attn_mask: (N, M) bool, True hides a key from a query. Queries without a key get the
                bias of the output projection, with ``AdditiveAttention`` plus the projected query,
                which it adds to every output.
            key_padding_mask: (B, M) bool, True = padding.
            kwargs: other arguments of decoder layers, unused.

        Returns:
            (B, N, C), with the residual connection.

        Raises:
            ValueError: shapes do not match, or sums over the keys cannot express the mask.
        """
        key = query if key is None else key
        value = key if value is None else value
        if key_pos is None and query_pos is not None and query_pos.shape == key.shape:
            key_pos = query_pos
        identity = query if identity is None else identity
        self._check(query, key, value)
        attn = self.attn
        queries = query if query_pos is None else query + query_pos
        keys = key if key_pos is None else key + key_pos
        if attn.cross_values == 'queries':  # projected as the queries, without their position
            parts = attn.project_parts((queries, 1), (keys, 1)) + attn.project_parts((query, 1))
        else:
            parts = attn.project_parts((queries, 1), (keys, 1), (value, 1))
        q, k, v = (attn.split_heads(part) for part in parts)
        if attn_mask is None or self.ignore_attn_mask:
            out = self._attend(q, k, v, key_padding_mask)
        else:
            out = self._attend_by_rows(q, k, v, key_padding_mask, attn_mask)
        q, out = (x.transpose(1, 2).flatten(2) for x in (q, out))  # [B, N, C]
        return identity + self.dropout(attn.project_out(out, q))

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        batch, channels = query.shape[0], self.embed_dims
        for name, x in (('query', query), ('key', key), ('value', value)):
            if x.dim() != 3 or (x.shape[0], x.shape[2]) != (batch, channels):
                raise ValueError(
                    f'{name} must have shape ({batch}, tokens, {channels}), got {tuple(x.shape)}'
                )
        if value.shape[1] != key.shape[1]:
            raise ValueError(f'value has {value.shape[1]} tokens, key has {key.shape[1]}')

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor]) -> Tensor:
        return self.attn.attend(q, k, v, TokenLayout((1, k.shape[2]), mask, cross=True))

    def _attend_by_rows(
        self, q: Tensor, k: Tensor, v: Tensor, padding: Optional[Tensor], attn_mask: Tensor
    ) -> Tensor:
        """Compute the attention once for each different row of the mask."""
        shape = q.shape[2], k.shape[2]
        if attn_mask.dim() != 2:
            raise ValueError(
                f'attn_mask must have shape (N, M) = {shape}, got {tuple(attn_mask.shape)}: linear '
                'attention has sums over the keys for all queries and cannot hide other keys in '
                'each image or head, as the masked cross-attention of Mask2Former does. Replace '
                'self_attn_cfg only, or set ignore_attn_mask=True to attend to all keys'
            )
        if attn_mask.dtype != torch.bool or tuple(attn_mask.shape) != shape:
            raise ValueError(
                f'attn_mask must be bool of shape (N, M) = {shape}, True hides a key (linear '
                'attention has no logits to add numbers to), got '
                f'{attn_mask.dtype} {tuple(attn_mask.shape)}'
            )
        rows, which = attn_mask.unique(dim=0, return_inverse=True)
        if len(rows) > MAX_ROWS:
            raise ValueError(
                f'attn_mask has {len(rows)} different rows, each of which needs its own sums over '
                f'the keys; linear attention supports at most {MAX_ROWS}'
            )
        places, outs = [], []
        for i, hidden in enumerate(rows):
            queries, keys = (which == i).nonzero()[:, 0], (~hidden).nonzero()[:, 0]
            values = queries if self.attn.cross_values == 'queries' else keys
            # Its gradient is faster than that of q[:, :, queries].
            parts = [x.index_select(2, j) for x, j in ((q, queries), (k, keys), (v, values))]
            mask = None if padding is None else padding[:, keys]
            places.append(queries)
            if len(keys):
                outs.append(self._attend(parts[0], parts[1], parts[2], mask))
            else:
                outs.append(torch.zeros_like(parts[0]))
        return torch.cat(outs, 2)[:, :, torch.cat(places).argsort()]
