"""Models with random weights, as in the tests of the page."""

from tests.test_app.conftest import files  # noqa: F401
