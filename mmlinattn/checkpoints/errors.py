"""The one exception of this subpackage."""

from ..utils import redacted


class CheckpointError(ValueError):
    """A checkpoint file that cannot be used; the message names the file or the keys and why.

    Passwords and queries of addresses are left out of it.
    """

    def __init__(self, message: object = '') -> None:
        super().__init__(redacted(str(message)))
