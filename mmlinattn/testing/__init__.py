"""Tests for attentions and backbones outside of this package.

In a file ``test_my_attention.py`` for pytest::

    from mmlinattn.testing import check_attention
    from my_attention import MyAttention

    def test_contract():
        check_attention(MyAttention)
"""

from .attention import ATTENTION_RULES, check_attention
from .backbone import BACKBONE_RULES, check_backbone

__all__ = ['ATTENTION_RULES', 'BACKBONE_RULES', 'check_attention', 'check_backbone']
