"""Tests for attentions and backbones outside of this package.

In a file ``test_my_attention.py`` for pytest::

    from mmlinattn.testing import check_attention
    from my_attention import MyAttention

    def test_contract():
        check_attention(MyAttention)
"""

from .attention_case import ATTENTION_RULES
from .backbone_rules import BACKBONE_RULES
from .check import check_attention, check_backbone
from .rules import Rule, Rules

__all__ = [
    'ATTENTION_RULES',
    'BACKBONE_RULES',
    'Rule',
    'Rules',
    'check_attention',
    'check_backbone',
]
