"""Rules, which are functions of a case, and the report of broken ones."""

import inspect
import logging
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import torch
from torch import Tensor

from ..utils.command_line import error_text
from ..utils.suggest import did_you_mean

Rule = Callable[[Any], None]


class Rules(Dict[str, Rule]):
    """Rules by name, in the order in which they are checked.

    A rule is a function of a case that raises an error if the case breaks it. Its docstring is the
    rule, in one sentence.

    Args:
        first: names of the rules without which no later one is checked.
    """

    def __init__(self, *first: str) -> None:
        super().__init__()
        self.first = first

    def add(self, rule: Rule) -> Rule:
        """Add a function as a rule with its name; a decorator."""
        self[rule.__name__] = rule
        return rule

    def check(
        self,
        subject: str,
        case: Any,
        names: Optional[Sequence[str]],
        expected_failures: Optional[Mapping[str, str]] = None,
    ) -> None:
        """Check the rules with these names, or all of them, each with the same random numbers.

        Raises:
            AssertionError: a rule is broken, or one of ``expected_failures`` holds.
            ValueError: a rule is unknown, or ``names`` is one name.
        """
        __tracebackhide__ = True
        expected, findings, cause = expected_failures or {}, [], None
        if isinstance(names, str):
            raise ValueError(f'rules must be a list of names, got {names!r}')
        for name in (*(names or ()), *expected):
            if name not in self:
                known = did_you_mean(name, self) or f'; the rules are {", ".join(self)}'
                raise ValueError(f'there is no rule {name!r}{known}')
        for name in [name for name in self if names is None or name in names]:
            error = _broken(self[name], case)
            if error is None and name in expected:
                findings.append(f'{name}: it holds, but expected_failures names it')
            elif error is not None and name not in expected:
                statement = ' '.join((inspect.getdoc(self[name]) or '').split())
                found = repr(error)
                if type(error) is AssertionError:  # a plain assert has no text
                    found = str(error) or error_text(error)
                findings.append(f'{name}: {statement}\n  found: {found.strip()[:1000]}')
                cause = cause or error
                if name in self.first:
                    findings.append('The other rules are not checked, as they need this one.')
                    break
        if findings:
            raise AssertionError('\n\n'.join([f'{subject} breaks rules.', *findings])) from cause


def _broken(rule: Rule, case: Any) -> Optional[Exception]:
    level = logging.root.manager.disable
    logging.disable(logging.INFO)  # MMEngine and torch log hundreds of lines, which pytest prints
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            rule(case)
    except Exception as error:
        return error
    finally:
        logging.disable(level)
    return None


def require(holds: object, found: str) -> None:
    """Raise AssertionError unless a condition holds."""
    if not holds:
        raise AssertionError(found)


def compare(found: Tensor, expected: Tensor, what: str, tolerance: float = 1e-9) -> None:
    """Raise AssertionError unless two tensors have the same shape and close, finite values."""
    torch.testing.assert_close(
        found, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f'{what}: {text}'
    )


def require_gradients(names: Sequence[str], gradients: List[Optional[Tensor]]) -> None:
    """Raise AssertionError unless every gradient is there, finite and not zero."""
    for name, gradient in zip(names, gradients):
        if gradient is None:
            raise AssertionError(f'{name} is not used: its gradient is None')
        require(gradient.isfinite().all(), f'the gradient of {name} is not finite')
        require(gradient.any(), f'the gradient of {name} is zero everywhere')
