"""Errors that the command lines print in one line."""


class InputError(ValueError):
    """Error of images, hooks or files that do not fit a model; the message names them and the cure.

    Example:
        >>> raise InputError('images of 30x32 are no whole number of patches')
        Traceback (most recent call last):
            ...
        mmlinattn.utils.errors.InputError: images of 30x32 are no whole number of patches
    """
