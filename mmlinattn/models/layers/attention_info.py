"""Facts about each attention, the source of the table in docs/attentions.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionInfo:
    """Facts about an attention, which :mod:`mmlinattn.testing` checks.

    N is the number of tokens, d the channels per head, M the number of anchors or landmarks; the
    docstring of the attention defines R. All counts are per head.

    Attributes:
        formula: the output in one line of plain text.
        time, memory: complexity in the number of tokens; memory excludes inputs and output.
        source: paper and year.
        use: when to choose it, in one phrase.
        needs_map: the tokens must form a 2D map, since the attention uses their positions.
        any_export_size: ``torch.export`` and ONNX files take any height and width; False if the
            attention, with its default options, calls :func:`require_static_size`.
        packed: how packed images of different sizes are attended: ``'at once'`` if ``attend`` takes
            all of them, else ``'by image'``. Both give the results of each image alone.

    Example:
        >>> AttentionInfo('mean_j v_j', 'O(N d)', 'O(d)', 'none', 'never').needs_map
        False
    """

    formula: str
    time: str
    memory: str
    source: str
    use: str
    needs_map: bool = False
    any_export_size: bool = True
    packed: str = 'by image'
