"""Every config agrees with the recipe of the paper or release that it reproduces."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

import mmengine
import pytest

from tests.recipe_facts import differences, facts_of, wrong_groups
from tests.test_configs import built, load, optimizer_of

REFERENCE = Path(__file__).parent / 'reference'
RECIPES = mmengine.load(REFERENCE / 'recipes.yml')['recipes']
EXPERIMENTS: List[Dict[str, Any]] = [
    experiment
    for path in sorted((REFERENCE / 'experiments').glob('*.yml'))
    for experiment in mmengine.load(path)['experiments']
]
OF_RECIPES = {e['config']: e for e in EXPERIMENTS if 'recipe' in e}


def values_of(recipe: str) -> Dict[str, Any]:
    """Return the values of a recipe and of those that it is based on."""
    entry = RECIPES[recipe]
    inherited = values_of(entry['base']) if 'base' in entry else {}
    return {**inherited, **copy.deepcopy(entry['values'])}


def wanted_of(experiment: Dict[str, Any]) -> Dict[str, Any]:
    return {**values_of(experiment['recipe']), **experiment.get('changes', {})}


@pytest.mark.parametrize('name', OF_RECIPES)
def test_a_config_agrees_with_its_recipe(name):
    wanted = wanted_of(OF_RECIPES[name])
    cfg, model = load(name), built(name)
    assert differences(wanted, facts_of(cfg, model, name)) == {}
    rule, rates = wanted.get('decay_rule', 'unknown'), wanted.get('lr_multipliers', {})
    if rule != 'unknown':
        rates = None if rates == 'unknown' else rates
        assert wrong_groups(rule, rates, model, optimizer_of(cfg, model)) == []


def test_every_config_has_one_experiment(root):
    names = [experiment['config'] for experiment in EXPERIMENTS]
    folders = [path.parent for path in (root / 'configs').glob('*/metafile.yml')]
    methods = {path.stem for folder in folders for path in folder.glob('*.py')}
    assert len(names) == len(set(names)) and set(names) == methods


def test_metafiles_readmes_and_the_page_have_the_numbers_of_the_ledger(root):
    command = [sys.executable, 'tools/misc/render_recipes.py', '--check']
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, '')
