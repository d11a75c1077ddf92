"""The lint of docstrings: how they begin, and how long their sentences are."""

import runpy

import pytest


@pytest.fixture(scope='module')
def lint(root):
    return runpy.run_path(str(root / 'tools' / 'misc' / 'check_docstrings.py'))


@pytest.mark.parametrize(
    'kind, text, problem',
    [
        ('function', 'Return True if it fits.', None),
        ('function', 'Returns True.', "'Returns', which is no known verb"),
        ('function', 'Gradient of the queries.', "'Gradient', which is no known verb"),
        ('function', '(B, heads, N, d).', 'which is no known verb'),
        ('function', 'Whether it fits.', "begins with 'Whether'"),
        ('noun', 'Layers that share a norm.', None),
        ('noun', 'What all share.', "begins with 'What'"),
        ('noun', 'A ' + 'very ' * 30 + 'long name.', 'has 33 words in a sentence'),
        ('noun', 'A name.\n\nIt ' + 'is ' * 25 + 'long.', 'has 27 words in a sentence'),
        ('noun', 'A name.\n\nArgs:\n    a: is ' + 'very ' * 25 + 'long.', None),
        ('noun', f'A name, "{"very " * 25}" (Fan et al., 2025) and ``a, {"b " * 25}``.', None),
    ],
)
def test_begin_and_length(lint, kind, text, problem):
    found = lint['problem_of'](kind, text)
    assert found is None if problem is None else problem in found


def test_findings_are_printed_with_their_place(lint, tmp_path, capsys):
    code = '"""A module."""\n\n\nclass A:\n    @property\n'
    code += '    def b(self):\n        """Number of bs."""\n\n'
    (tmp_path / 'a.py').write_text(code + '    def c(self):\n        """Of c."""\n')
    assert lint['main']([str(tmp_path)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f'{tmp_path}/a.py:9: docstring begins with ') and line.endswith("'Of'")
    (tmp_path / 'a.py').write_text(code)
    assert lint['main']([str(tmp_path)]) == 0
