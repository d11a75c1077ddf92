"""Exception of this subpackage."""

from ..utils.redact import RedactedError


class CheckpointError(RedactedError, ValueError):
    """Error for a checkpoint that cannot be used; the message names file or keys and the reason.

    The message omits passwords and queries of URLs.
    """
