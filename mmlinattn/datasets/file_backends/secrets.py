"""Checks for secrets in configs, which are printed, logged and stored in every checkpoint."""

import os
import re
from typing import Any

from mmengine.config import Config

from ...utils import has_user, nodes, redacted

WHERE = 'credentials come from the environment, see docs/datasets.md'
ARGUMENT = re.compile(
    r'secret|passw|token|credential|signature|access_?key|api_?key|(^|_)key(_?id)?$|(^|_)ak$|(^|_)sk$',
    re.IGNORECASE,
)
SIGNED = re.compile(
    r'[?&](X-Amz-(Signature|Credential)|AWSAccessKeyId|Signature|sig|token)=', re.IGNORECASE
)
VARIABLES = ('AWS_SECRET_ACCESS_KEY', 'AWS_SESSION_TOKEN', 'AWS_ACCESS_KEY_ID')
BACKENDS = ('backend_args', 'file_client_args')


def check_no_secrets(config: Any) -> None:
    """Raise ValueError if a config contains a key, a password or a signed URL.

    It checks the names of file backend arguments, URLs, and all text for credentials that are set
    in the environment. The message names the place and not the secret.

    Args:
        config: nested dicts and lists, or a config of MMEngine.

    Example:
        >>> check_no_secrets(dict(a=[dict(backend_args=dict(secret_key='x'))]))
        Traceback (most recent call last):
        ValueError: a[0].backend_args.secret_key of the config looks like a secret: credentials \
come from the environment, see docs/datasets.md
    """
    known = [os.environ[name] for name in VARIABLES if len(os.environ.get(name, '')) >= 8]
    nested = config._cfg_dict.to_dict() if isinstance(config, Config) else config
    for place, value in nodes(nested):
        if isinstance(value, (dict, list, tuple)):
            continue
        name = place.rpartition('.')[2]
        inside = not {*re.split(r'[.\[]', place)}.isdisjoint(BACKENDS)
        text = value if isinstance(value, str) else ''
        if has_user(text):
            raise ValueError(
                f'{place} of the config has a user or a password in an address, which would be '
                f'logged: {redacted(text)!r}'
            )
        if (
            (inside and value is not None and ARGUMENT.search(name))
            or SIGNED.search(text)
            or any(secret in text for secret in known)
        ):
            raise ValueError(f'{place} of the config looks like a secret: {WHERE}')
