"""Checks of an attention or a backbone against all rules."""

from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ..models.backbones import Backbone
from ..models.layers import AttnCfg, BaseAttention, registered_subclasses
from ..ops.common.checks import check_sides
from . import attention_rules, extra_token_rules, usage_rules  # noqa: F401  add rules in order
from .attention_case import ATTENTION_RULES, BUILT, AttentionCase
from .backbone_rules import BACKBONE_RULES, BackboneCase
from .rules import RuleBroken, RuleViolation, find_broken, report

IMAGE_SIZE = (64, 80)


def check_attention(
    cls: Union[str, type],
    *,
    hw_shape: Tuple[int, int] = (5, 6),
    rules: Optional[Sequence[str]] = None,
    expected_failures: Optional[Mapping[str, str]] = None,
    **options,
) -> None:
    """Check that an attention obeys every rule of the attention contract.

    It builds small layers on the CPU and checks the rules in ``ATTENTION_RULES``: shapes, strides,
    gradients against finite differences, padding, batches, half precision, odd maps, extra tokens,
    errors, ``torch.compile`` and ``torch.export``. It also checks the rules of
    :func:`check_backbone` in every backbone of this package. This takes 5 to 20 seconds, most of it
    for compilation and export.

    Args:
        cls: class or registered name of the attention, a :class:`BaseAttention`.
        hw_shape: (H, W) of most maps, at least 3 x 3; another one for attentions with a fixed
            number of tokens.
        rules: names of rules to check; all by default.
        expected_failures: reasons by name of the rules that the attention cannot keep. A rule
            that holds in spite of this is an error.
        options: options of the constructor. ``embed_dims`` is 32 and ``num_heads`` is 2 unless
            given.

    Raises:
        AssertionError: a rule is broken. The message has every broken rule with its input, what
            was found and what to do.
        ValueError: a rule is unknown, or the map is too small.
        TypeError: ``cls`` is an object, or ``expected_failures`` has no reasons.

    Example:
        >>> check_attention('HydraAttention', rules=['padding_content', 'batch_independence'])
    """
    __tracebackhide__ = True
    expected = _known(ATTENTION_RULES, expected_failures)
    selected = ATTENTION_RULES.select(rules)
    if not isinstance(cls, (str, type)):
        raise TypeError(f'cls must be a class or its name, got a {type(cls).__name__}')
    sides = check_sides(hw_shape, 'hw_shape')
    if min(sides) < 3:
        raise ValueError(f'hw_shape must be at least (3, 3), got {hw_shape!r}')
    case = AttentionCase(dict(options, type=cls), sides)
    findings = find_broken(case, selected)
    report(case.name, selected, findings, expected)


def check_backbone(
    cls: type,
    attentions: Optional[Sequence[AttnCfg]] = None,
    *,
    image_size: Tuple[int, int] = IMAGE_SIZE,
    rules: Optional[Sequence[str]] = None,
    expected_failures: Optional[Mapping[str, str]] = None,
    **options,
) -> None:
    """Check that a backbone works with attentions: outputs, training, checkpoints, initial weights.

    It builds small models on the CPU and checks the rules in ``BACKBONE_RULES`` with each
    attention, half a second each.

    Args:
        cls: class of the backbone. A :class:`HierarchicalBackbone` gets few channels and layers;
            any other module needs ``options`` and is called as ``cls(attn_cfg=..., **options)``.
        attentions: names, classes or configs; all registered attentions by default.
        image_size: (height, width) of the images.
        rules: names of rules to check; all by default.
        expected_failures: reasons by name of the rules that the backbone cannot keep. A rule that
            holds with every attention is an error.
        options: arguments of the constructor, such as ``arch``.

    Raises:
        AssertionError: a rule is broken. The message has every broken rule with its input, what
            was found, what to do, and further attentions that break it.
        ValueError: a rule is unknown.
        TypeError: ``attentions`` is no list, or ``expected_failures`` has no reasons.

    Example:
        >>> from mmlinattn.models.backbones import Swin
        >>> check_backbone(Swin, ['RALA'], rules=['outputs', 'parameters_learn'])
    """
    __tracebackhide__ = True
    expected = _known(BACKBONE_RULES, expected_failures)
    # Without the constructor's rule, an unsupported combination would break the others.
    selected = BACKBONE_RULES.select(None if rules is None else [*BUILT, *rules])
    if isinstance(attentions, (str, dict, type)):
        raise TypeError(f'attentions must be a list, got {attentions!r}')
    if attentions is None:
        attentions = list(registered_subclasses(BaseAttention))
    cases = [
        BackboneCase(cls, attn_cfg, options, (image_size[0], image_size[1]))
        for attn_cfg in attentions
    ]
    findings = merge([finding for case in cases for finding in find_broken(case, selected)])
    report(cls.__name__, selected, findings, expected)


@ATTENTION_RULES.add(
    'Every backbone of images of this package takes the attention.',
    'See the rule of the backbone above. Let **kwargs of the constructor through to '
    'BaseAttention; list in `projections` the layers that a backbone may initialise.',
    requires=(*BUILT, 'shape_and_dtype'),
)
def backbones(case: AttentionCase) -> None:
    found = registered_subclasses(Backbone).values()
    package = sorted(
        (cls for cls in found if cls.__module__.startswith('mmlinattn.models.')),
        key=lambda cls: cls.__name__,
    )
    rules = BACKBONE_RULES.select(None)
    cases = [BackboneCase(cls, case.attn_cfg, {}, IMAGE_SIZE) for cls in package]
    case.given = ', '.join(cls.__name__ for cls in package)
    findings = merge([finding for each in cases for finding in find_broken(each, rules)])
    if findings:
        raise RuleBroken('\n'.join(map(str, findings)))


def merge(findings: Sequence[RuleViolation]) -> List[RuleViolation]:
    """Return one finding per rule, the first, with the names of the other cases."""
    merged: Dict[str, List[RuleViolation]] = {}
    for finding in findings:
        merged.setdefault(finding.rule.name, []).append(finding)
    return [
        RuleViolation(
            first.rule, first.case, first.given, first.error, tuple(f.case for f in others)
        )
        for first, *others in merged.values()
    ]


def _known(rules, expected: Optional[Mapping[str, str]]) -> Mapping[str, str]:
    if not isinstance(expected, (Mapping, type(None))):
        raise TypeError(f'expected_failures must be dict(rule=reason), got {expected!r}')
    rules.select(list(expected or ()))
    return expected or {}
