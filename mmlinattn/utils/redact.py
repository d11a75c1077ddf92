"""Redaction of secrets in URLs, because logs, errors and configs are stored and shared."""

import re

# scheme://user:password@host; a password may contain any character that does not end the URL.
USER = re.compile(r'(?<=://)[^/\s\'"?#]*@')
CONTROL = re.compile(r'[\x00-\x1f\x7f-\x9f]')
QUERY = re.compile(r'(://[^\s\'"?]*\?)[^\s\'"#]+')


def has_user(text: str) -> bool:
    """Return True if a URL in the text has a user, as in ``https://name:password@host``.

    Example:
        >>> has_user('https://me:secret@host/a.pth'), has_user('https://host/me@2x.pth')
        (True, False)
    """
    return USER.search(text) is not None


def redacted(text: str) -> str:
    """Replace users, passwords and queries of URLs in the text by ``***``.

    Example:
        >>> redacted("no answer from 'https://me:secret@host/a.pth?token=abc'")
        "no answer from 'https://***@host/a.pth?***'"
    """
    return QUERY.sub(r'\1***', USER.sub('***@', text))


def escaped(text: str) -> str:
    r"""Replace control characters, as of names in a file, by their escapes.

    Example:
        >>> print(escaped('a\x1b[2K.jpg'))
        a\x1b[2K.jpg
    """
    return CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


class RedactedError(Exception):
    """Base class of errors whose message has no passwords and queries of URLs."""

    def __init__(self, message: object = '') -> None:
        super().__init__(redacted(str(message)))
