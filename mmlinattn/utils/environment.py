"""The process of a command: its encoding, and variables that other packages read at import."""

import codecs
import getpass
import locale
import os
import sys
from pathlib import Path


def use_utf8() -> None:
    """Start the process anew in Python's UTF-8 mode if the locale has another encoding.

    The frameworks and pycocotools read and write text in the encoding of the locale: with one such
    as ``zh_CN.GBK`` they fail on files in UTF-8.
    """
    encoding = codecs.lookup(locale.getpreferredencoding(False)).name
    if encoding != 'utf-8' and os.environ.get('PYTHONUTF8') != '1':
        os.environ['PYTHONUTF8'] = '1'
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def prepare_environment() -> None:
    """Switch off the telemetry of onnxruntime (from 1.29) and set a user name if there is none."""
    os.environ.setdefault('ORT_DISABLE_TELEMETRY', '1')
    try:  # torch asks; a container with an unknown user id (docker run --user 12345) has no name
        getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        os.environ['USER'] = str(os.getuid())


def is_command_line() -> bool:
    """Return True in ``python -m mmlinattn``, the console script and the scripts of ``tools/``."""
    name = sys.argv[0] if sys.argv else ''
    # While Python imports the package of `python -m mmlinattn`, argv[0] is '-m'.
    return Path(name).stem == 'mmlinattn' or (name == '-m' and 'mmlinattn' in sys.orig_argv)
