"""Errors that the command lines print in one line."""


class InputError(ValueError):
    """Error of images, hooks or files that do not fit a model; the message names the cure."""
