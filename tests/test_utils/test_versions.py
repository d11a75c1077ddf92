"""Versions outside the tested range: one warning that names both."""

import sys
import warnings
from types import SimpleNamespace

import pytest

from mmlinattn.utils import versions
from mmlinattn.utils.versions import TESTED, warn_if_untested


def caught(monkeypatch, **found):
    for name in TESTED:
        module = SimpleNamespace(__version__=found[name]) if name in found else None
        monkeypatch.setitem(sys.modules, name, module)
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter('always')
        warn_if_untested()
    return [str(message.message) for message in messages]


@pytest.mark.parametrize('found', [
    dict(torch='2.4.1+cu121', torchvision='0.19.1', mmengine='0.10.7', mmcv='2.1.0', mmdet='3.3.0',
         mmseg='1.2.2', mmpretrain='1.2.0'),
    dict(torch='2.15.0', torchvision='0.29.2', mmengine='0.10.12', mmcv='2.3.6', mmdet='3.5.1',
         mmseg='1.4.2', mmpretrain='1.3.6'),
    dict(torch='2.12.0a0+git1234'),
    {},
])  # fmt: skip
def test_tested_versions_are_silent(monkeypatch, found):
    assert caught(monkeypatch, **found) == []


def test_one_warning_names_what_is_there_and_what_was_tested(monkeypatch):
    messages = caught(monkeypatch, torch='2.16.0', mmengine='1.0.0rc1', mmcv='2.2.0')
    assert messages == [
        'mmlinattn was not tested with torch 2.16.0 (tested: 2.4 to 2.15), '
        'mmengine 1.0.0rc1 (tested: 0.10)'
    ]
    assert caught(monkeypatch, mmdet='3.10.0') and not caught(monkeypatch, mmdet='3.4.0')
    assert versions._number('2.11.0+cu130') == (2, 11)


def test_a_module_without_a_version_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmcv', SimpleNamespace())
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert warn_if_untested() is None
