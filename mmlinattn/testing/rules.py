"""Rules, the objects that they are checked on, and the report of broken rules."""

import logging
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor

from ..utils.suggest import did_you_mean

# Frames in these folders do not tell the reader where the own code failed.
FOREIGN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


class RuleBroken(AssertionError):
    """Violation of a rule; the message has the size and the place of a difference."""


class Unsupported(Exception):
    """A combination that the constructor rejects as documented; no rule applies to it."""


class Case:
    """Base class of what rules are checked on.

    Attributes:
        name: name for the report.
        given: description of the last input, for the report.
    """

    name = ''
    given = ''


@dataclass(frozen=True)
class Rule:
    """A rule for attentions or backbones, with a function that checks it.

    Attributes:
        name: name of the rule.
        statement: the rule, in one sentence.
        cure: what to change in code that breaks it.
        check: function that raises :class:`RuleBroken` if a case breaks the rule. Any other error
            also breaks it.
        requires: rules without which this one is not checked.
    """

    name: str
    statement: str
    cure: str
    check: Callable
    requires: Tuple[str, ...] = ()


class Rules(Dict[str, Rule]):
    """Rules by name, in the order in which they are checked."""

    def add(self, statement: str, cure: str, requires: Sequence[str] = ()) -> Callable:
        """Return a decorator that adds a function as the check of a rule with its name."""

        def register(check: Callable) -> Callable:
            name = check.__name__
            self[name] = Rule(name, statement, cure, check, tuple(requires))
            return check

        return register

    def select(self, names: Optional[Sequence[str]]) -> List[Rule]:
        """Return the rules with these names, or all of them.

        Raises:
            ValueError: a name is unknown, or ``names`` is one name.
        """
        if isinstance(names, str):
            raise ValueError(f'rules must be a list of names, got {names!r}')
        for name in names or ():
            if name not in self:
                known = did_you_mean(name, self) or f'; the rules are {", ".join(self)}'
                raise ValueError(f'there is no rule {name!r}{known}')
        return [rule for rule in self.values() if names is None or rule.name in names]


@dataclass(frozen=True)
class RuleViolation:
    """A broken rule, with the input and the error.

    ``also`` has the names of further cases that break the rule.
    """

    rule: Rule
    case: str
    given: str
    error: Exception
    also: Tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f'{self.rule.name}: {self.rule.statement}']
        lines += [f'  case:  {self.case}', f'  input: {self.given or "none"}']
        found = _describe(self.error).replace('\n', '\n         ')
        is_broken = isinstance(self.error, RuleBroken)
        cure = self.rule.cure if is_broken else f'Mend this error. {self.rule.cure}'
        lines += [f'  found: {found}', f'  to do: {cure}']
        if self.also:
            lines.append(f'  also:  {", ".join(self.also)}')
        return '\n'.join(lines)


def find_broken(case: Case, rules: Sequence[Rule]) -> List[RuleViolation]:
    """Check rules on a case, each with the same random numbers, and return the broken ones."""
    findings: Dict[str, RuleViolation] = {}
    for rule in rules:
        if any(name in findings for name in rule.requires):
            continue
        case.given = ''
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), _without_logs():
            torch.manual_seed(0)
            try:
                rule.check(case)
            except Unsupported:
                break
            except Exception as error:
                findings[rule.name] = RuleViolation(rule, case.name, case.given, error)
    return list(findings.values())


@contextmanager
def _without_logs() -> Iterator[None]:
    """Suppress logs of MMEngine and torch, of which pytest would print hundreds of lines."""
    level = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(level)


def report(
    subject: str,
    rules: Sequence[Rule],
    findings: Sequence[RuleViolation],
    expected: Mapping[str, str],
) -> None:
    """Raise an AssertionError that describes all unexpected findings, if there are any.

    Args:
        subject: what was checked.
        rules: the rules that were checked.
        findings: the broken rules.
        expected: reasons by name of the rules that are known to be broken. One that is not broken
            is an error, so that the list stays true.
    """
    __tracebackhide__ = True
    broken = {finding.rule.name for finding in findings}
    unexpected = [finding for finding in findings if finding.rule.name not in expected]
    parts = [str(finding) for finding in unexpected]
    for rule in rules:
        if rule.name in expected and rule.name not in broken:
            reason = expected[rule.name]
            parts.append(
                f'{rule.name}: it holds, but expected_failures names it ({reason})\n'
                f'  to do: remove {rule.name!r} from expected_failures'
            )
    if parts:
        head = f'{subject} breaks {len(parts)} of {len(rules)} rules.'
        left = [rule.name for rule in rules if broken.intersection(rule.requires)]
        if left:
            head += f' Not checked, because they depend on a broken rule: {", ".join(left)}.'
        cause = unexpected[0].error if unexpected else None
        raise AssertionError('\n\n'.join([head, *parts])) from (
            None if isinstance(cause, RuleBroken) else cause
        )


def require(holds: object, found: str) -> None:
    """Raise :class:`RuleBroken` unless a condition holds."""
    if not holds:
        raise RuleBroken(found)


def compare(
    found: Tensor,
    expected: Tensor,
    what: str,
    rtol: float = 1e-9,
    atol: float = 1e-9,
    dims: Sequence[str] = ('image', 'token', 'channel'),
) -> None:
    """Raise :class:`RuleBroken` unless two tensors have the same shape and close values.

    Args:
        found, expected: the tensors; NaN is close to nothing.
        what: name of the values for the message.
        rtol, atol: allowed difference, relative to ``expected`` and absolute.
        dims: names of the dimensions for the message.
    """
    shapes = tuple(found.shape), tuple(expected.shape)
    require(shapes[0] == shapes[1], f'{what} has shape {shapes[0]}, expected {shapes[1]}')
    difference = (found.detach() - expected.detach()).abs()
    wrong = ~(difference <= atol + rtol * expected.detach().abs())
    if wrong.any():
        finite = torch.isfinite(found)
        count = f'{int(wrong.sum())} of {wrong.numel()} values'
        if not finite.all():
            place = _place(~finite, dims)
            raise RuleBroken(f'{what} is not finite at {place} ({count} differ)')
        excess = difference.where(wrong, difference.new_zeros(()))
        place = _place(excess == excess.max(), dims)
        raise RuleBroken(
            f'{what} differs by {excess.max():.2g} at {place} ({count}), allowed {atol:g}'
        )


def require_finite(values: Tensor, what: str) -> None:
    """Raise :class:`RuleBroken` unless all values are finite."""
    bad = ~torch.isfinite(values)
    if bad.any():
        dims = ('image', 'token', 'channel') if values.dim() == 3 else ()
        raise RuleBroken(
            f'{what} is not finite at {_place(bad, dims)} '
            f'({int(bad.sum())} of {bad.numel()} values)'
        )


def _place(wrong: Tensor, dims: Sequence[str]) -> str:
    index = wrong.nonzero()[0].tolist()
    if len(dims) != len(index):
        return f'index {tuple(index)}'
    return ', '.join(f'{name} {i}' for name, i in zip(dims, index))


def _describe(error: Exception, max_lines: int = 6) -> str:
    """Return the message of a finding, or type, message and place of another error."""
    if isinstance(error, RuleBroken):
        return str(error)
    lines = [line for line in str(error).splitlines() if line.strip()][:max_lines]
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(FOREIGN)]
    place = f'\n({own[-1].filename}:{own[-1].lineno}, in {own[-1].name})' if own else ''
    return f'{type(error).__name__}: ' + '\n'.join(lines) + place
