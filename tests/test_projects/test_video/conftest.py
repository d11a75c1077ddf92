"""The fixture that runs a command in this process."""

from tests.test_tools.conftest import run  # noqa: F401
