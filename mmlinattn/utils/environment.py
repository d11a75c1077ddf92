"""Environment variables and settings that other packages read when they are imported."""

import getpass
import os
import sys


def prepare_environment() -> None:
    """Switch usage reports of other packages off, and give the user a name.

    onnxruntime (from 1.29) and OpenVINO send reports to their makers, and leave an identifier in
    the home directory. A value of ``ORT_DISABLE_TELEMETRY`` that is there already stays.
    OpenVINO has no variable for it, but works where the package ``openvino_telemetry`` is absent.

    torch asks for the user's name when it is imported by torchvision. In a container that runs
    with a user id of its own (``docker run --user 12345``) there is none, which is a KeyError.
    """
    os.environ.setdefault('ORT_DISABLE_TELEMETRY', '1')
    sys.modules.setdefault('openvino_telemetry', None)  # type: ignore[arg-type]
    try:
        getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        os.environ['USER'] = str(os.getuid())
