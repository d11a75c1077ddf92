"""What a reader should know of an attention before taking it: docs/attentions.md is made of it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionCard:
    """Facts about an attention, for ``tools/misc/attention_table.py``.

    N is the number of tokens, d the channels a head (all counts are for one head and its channels),
    M anchors or landmarks, R what the class says.

    Attributes:
        formula: the output in one line of plain text.
        time, memory: order of both in the tokens; memory beyond inputs and output.
        source: paper, year.
        use: when to pick it, in a phrase.
        map: reads positions: tokens must be those of a whole map.

    Example:
        >>> AttentionCard('mean_j v_j', 'O(N d)', 'O(d)', 'none', 'never', map=False).map
        False
    """

    formula: str
    time: str
    memory: str
    source: str
    use: str
    map: bool = False
