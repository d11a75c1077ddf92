"""The one exception of this subpackage."""


class CheckpointError(ValueError):
    """A checkpoint file that cannot be used; the message names the file or the keys and why."""
