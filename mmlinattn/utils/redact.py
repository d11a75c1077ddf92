"""Addresses without what is secret in them: logs, errors and configs are kept and passed on."""

import re

# scheme://user:password@host; a password may have anything but the end of its address.
USER = re.compile(r'(?<=://)[^/\s\'"?#]*@')
QUERY = re.compile(r'(://[^\s\'"?]*\?)[^\s\'"#]+')


def has_user(text: str) -> bool:
    """Whether an address in the text names a user, as ``https://name:password@host`` does.

    Example:
        >>> has_user('https://me:secret@host/a.pth'), has_user('https://host/me@2x.pth')
        (True, False)
    """
    return USER.search(text) is not None


def redacted(text: str) -> str:
    """The text with ``***`` for users and passwords, and for the queries, of its addresses.

    Example:
        >>> redacted("no answer from 'https://me:secret@host/a.pth?token=abc'")
        "no answer from 'https://***@host/a.pth?***'"
    """
    return QUERY.sub(r'\1***', USER.sub('***@', text))
