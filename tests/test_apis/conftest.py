"""Predictors with random weights, as in the tests of the page."""

from tests.test_app.conftest import files, predictor

__all__ = ['files', 'predictor']
