"""TimeSformer with any attention."""

from typing import Optional, Sequence, Tuple, Union

import torch
from mmengine.logging import print_log
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...models.backbones.patch_embed import resize_embedding, resize_loaded_embedding
from ...models.backbones.vision_transformer import ViT
from ...models.backbones.vit_patch_embed import ViTPatchEmbed
from ...models.layers import AttnCfg
from ...utils import check_integer
from .space_time_block import SpaceTimeBlock, ZeroLinear, resolve_scheme


class ClipEmbed(ViTPatchEmbed):
    """Patch embedding of the frames of a clip, with learnt positions in space and in time.

    ``num_frames`` is the number of positions in time, None for none.
    """

    def __init__(
        self, in_channels: int, embed_dims: int, *args, num_frames: Optional[int] = None, **kwargs
    ) -> None:
        super().__init__(in_channels, embed_dims, *args, **kwargs)
        self.time_embed = None
        if num_frames is not None:
            self.time_embed = nn.Parameter(torch.zeros(1, num_frames, embed_dims))
        self._frames_logged = False
        self._register_load_state_dict_pre_hook(self._resize_checkpoint_frames)

    def forward(  # type: ignore[override]  # clips alone
        self, clip: Tensor
    ) -> Tuple[Tensor, Tuple[int, int, int]]:
        """Embed a clip (B, in_channels, T, H, W).

        Returns:
            tokens (B, E + T * N, C), and their (T, H, W).
        """
        batch, _, frames = clip.shape[:3]
        images = clip.transpose(1, 2).flatten(0, 1)
        images = images.contiguous(memory_format=torch.channels_last)
        tokens, hw_shape = super().forward(images)
        tokens = tokens.unflatten(0, (batch, frames))
        # The class token and its position are the same in each frame.
        extra, patches = tokens.tensor_split([self.num_extra_tokens], 2)
        if self.time_embed is not None:
            patches = patches + self._times(self.time_embed, frames)[:, :, None]
        return torch.cat([extra[:, 0], patches.flatten(1, 2)], 1), (frames, *hw_shape)

    def _times(self, time_embed: Tensor, frames: int) -> Tensor:
        if frames == time_embed.shape[1]:
            return time_embed
        if not self._frames_logged and not torch.compiler.is_compiling():
            self._frames_logged = True
            print_log(
                f'the time embedding of {time_embed.shape[1]} frames is resized to other clips, '
                f'first to {frames} frames',
                'current',
            )
        return resize_embedding(time_embed, frames)

    def _resize_checkpoint_frames(self, state_dict: dict, prefix: str, *_) -> None:
        """Resize the time embedding of a checkpoint to the frames of the model."""
        resize_loaded_embedding(state_dict, f'{prefix}time_embed', self.time_embed, ' frames')


@MODELS.register_module()
class TimeSformer(ViT):
    """TimeSformer, "Is Space-Time Attention All You Need for Video Understanding?" (Bertasius et
    al., ICML 2021), with any attention.

    With softmax attention, the default, outputs equal those of the release, of transformers'
    ``TimesformerModel`` and of MMAction2; ``convert(..., source='timesformer')`` renames their
    weights. Weights of a :class:`ViT` can be loaded too: the time embedding starts at 0, and the
    other steps as copies of the spatial attention and norm with a projection of 0.

    Schemes, as lists of steps (tokens of a group):

    - ``'space'``: the patches of a frame. Frames do not see each other; class tokens are averaged
      over the frames after the last layer. There is no time embedding.
    - ``'joint'``: all patches of the clip;
    - ``'divided'``: ``'time'`` (one place in all frames), then ``'space'``;
    - ``'sparse'``: ``'local'`` (a quarter of the image, all frames), then ``'global'`` (every
      second frame, row and column);
    - ``'axial'``: ``'time'``, ``'width'``, then ``'height'`` (one axis each).

    ``'sparse'`` and ``'axial'`` have no released code. The class token takes part in the last step
    only.

    MMAction2 has a model of this name; in its configs write ``type='mmengine.TimeSformer'``.

    Args:
        arch: see :class:`ViT`.
        attn_cfg: config or name of the attention of all layers, or a list with one per layer. All
            steps of a layer have the same. In ``'joint'``, ``'local'`` and ``'global'`` it must
            support clips.
        scheme: one of the names above, or a list of steps: ``'joint'``, ``'space'``, ``'time'``,
            ``'width'``, ``'height'``, ``'local'``, ``'global'``.
        num_frames: frames of the time embedding. It is resized to other clips linearly, which is
            logged once; the release takes the nearest.
        img_size: see :class:`ViT`. Positions are resized to other sizes by bicubic interpolation;
            the release takes the nearest.
        with_cls_token: prepend a class token to the patches.
        position_std: standard deviation of the initial positions in space and in time. None: 0.02
            in space and 0 in time, as released. Small models that are trained from scratch learn
            faster with 0.5.
        out_type: ``'cls_token'``, ``'avg_featmap'`` (mean of all patches) or ``'featmap'``.
        in_channels, out_indices, kwargs: options of :class:`ViT`.

    Inputs:
        (B, in_channels, T, H, W). Frames are padded with zeros, right and bottom, to whole patches.

    Returns:
        (B, C) or, with ``'featmap'``, (B, C, T, H / p, W / p), contiguous. With several
        ``out_indices`` a tuple of these.

    Raises:
        ValueError: the scheme is unknown, ``num_frames`` is below 1, the input is no clip, a step
            halves an odd number of frames or patches, an attention does not support clips; errors
            of :class:`ViT`.

    Example:
        >>> model = TimeSformer('deit-t', scheme='divided').eval()
        >>> model(torch.randn(1, 3, 8, 224, 224)).shape
        torch.Size([1, 192])
    """

    input_name, input_shape = 'clip', '(B, C, T, H, W)'
    embed: ClipEmbed

    def __init__(
        self,
        arch: Union[str, dict] = 'b16',
        attn_cfg: Union[AttnCfg, Sequence[AttnCfg]] = 'SoftmaxAttention',
        scheme: Union[str, Sequence[str]] = 'divided',
        num_frames: int = 8,
        img_size: Union[int, Sequence[int]] = 224,
        in_channels: int = 3,
        with_cls_token: bool = True,
        position_std: Optional[float] = None,
        out_indices: Optional[Sequence[int]] = None,
        out_type: str = 'cls_token',
        **kwargs,
    ) -> None:
        self.num_frames = check_integer('num_frames', num_frames)
        self.steps = resolve_scheme(scheme)
        # Without exchange between frames, each of them is an image of the batch.
        self.frames_apart = self.steps == ('space',)
        super().__init__(
            arch, attn_cfg, img_size, in_channels, with_cls_token, out_indices=out_indices,
            out_type=out_type, **kwargs,
        )  # fmt: skip
        if self.cls_token_from:
            raise ValueError(f'cls_token_from must be 0 for clips, got {self.cls_token_from}')
        if position_std is not None:
            for positions in (self.embed.pos_embed, self.embed.time_embed):
                if positions is not None:
                    nn.init.normal_(positions, std=position_std)
        self._register_load_state_dict_pre_hook(self._inflate_image_weights)

    def build_embed(self, *args, **kwargs) -> ClipEmbed:
        frames = None if self.frames_apart else self.num_frames
        return ClipEmbed(*args, num_frames=frames, **kwargs)

    def build_layer(self, *args, **kwargs) -> nn.Module:
        fixed = dict(ffn='mlp', layer_scale_init=None, cpe=False, key_bias=True)
        for name, value in fixed.items():
            given = kwargs.pop(name, value)
            if given != value:
                raise ValueError(f'{name} must be {value!r} for clips, got {given!r}')
        return SpaceTimeBlock(*args, steps=self.steps, **kwargs)

    def init_layer(self, layer: Union[nn.Conv2d, nn.Linear]) -> None:
        if isinstance(layer, ZeroLinear):
            layer.reset_parameters()
        else:
            super().init_layer(layer)

    def forward(  # type: ignore[override]  # clips alone
        self, clip: Tensor
    ) -> Union[Tensor, Tuple[Tensor, ...]]:
        self.check_input(clip)
        frames = clip.shape[2]
        if self.frames_apart:
            clip = clip.transpose(1, 2).flatten(0, 1)[:, :, None]
        tokens, shape = self.embed(clip)
        outs = []
        for i, layer in enumerate(self.layers):
            num_extra = self.num_extra_tokens(i)
            tokens = self.run_block(layer, tokens, shape, num_extra)
            if i in self.out_indices:
                out = self._join_frames(tokens, frames, num_extra) if self.frames_apart else tokens
                out = self.norm(out) if self.norm is not None and i == self.num_built - 1 else out
                outs.append(self.format_output(out, (frames, *shape[1:]), num_extra))
        return outs[0] if len(outs) == 1 else tuple(outs)

    @staticmethod
    def _join_frames(tokens: Tensor, frames: int, num_extra: int) -> Tensor:
        """Return clips (B, E + T * N, C) of frames (B * T, E + N, C), with mean extra tokens."""
        extra, patches = tokens.unflatten(0, (-1, frames)).tensor_split([num_extra], 2)
        return torch.cat([extra.mean(1), patches.flatten(1, 2)], 1)

    def format_output(self, tokens: Tensor, shape: Sequence[int], num_extra_tokens: int = 0):
        if self.out_type != 'featmap':
            return super().format_output(tokens, shape[1:], num_extra_tokens)
        patches = tokens[:, num_extra_tokens:].unflatten(1, tuple(shape))
        return patches.permute(0, 4, 1, 2, 3).contiguous()

    def _inflate_image_weights(self, state_dict: dict, prefix: str, *_) -> None:
        """Add what the weights of an image model lack to those that are loaded."""
        first = f'{prefix}layers.0.norm1.weight'
        own = self.state_dict()
        missing = [name for name in own if name == 'embed.time_embed' or '.steps.' in name]
        if first not in state_dict or any(f'{prefix}{name}' in state_dict for name in missing):
            return
        for name in missing:
            layer, _, rest = name.partition('.steps.')
            kind, _, parameter = rest.partition('.')[2].partition('.')
            source = {'norm': 'norm1', 'attn': 'attn'}.get(kind)
            found = state_dict.get(f'{prefix}{layer}.{source}.{parameter}') if source else own[name]
            if found is not None:
                state_dict[f'{prefix}{name}'] = found.detach().clone()
        if missing:
            print_log(
                f'{len(missing)} tensors of time embedding and steps {self.steps[:-1]} are not in '
                'the checkpoint; they start as for image weights'
            )
