"""Environment variables and settings that other packages read at import."""

import getpass
import os
import sys


def prepare_environment() -> None:
    """Switch off the telemetry of other packages and set a user name if there is none.

    onnxruntime (from 1.29) and OpenVINO send telemetry and store an identifier in the home
    directory. An existing value of ``ORT_DISABLE_TELEMETRY`` is kept. OpenVINO has no such
    variable, but works without the package ``openvino_telemetry``.

    torch reads the user name when torchvision imports it. A container with an unknown user id
    (``docker run --user 12345``) has no name, which raises KeyError.
    """
    os.environ.setdefault('ORT_DISABLE_TELEMETRY', '1')
    sys.modules.setdefault('openvino_telemetry', None)  # type: ignore[arg-type]
    try:
        getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        os.environ['USER'] = str(os.getuid())
