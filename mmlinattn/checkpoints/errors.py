"""Exception of this subpackage."""

from ..utils import redacted


class CheckpointError(ValueError):
    """Error for a checkpoint that cannot be used; the message names file or keys and the reason.

    The message omits passwords and queries of URLs.
    """

    def __init__(self, message: object = '') -> None:
        super().__init__(redacted(str(message)))
