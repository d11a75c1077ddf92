#!/usr/bin/env python
"""Write published numbers into metafiles, READMEs, docs/ and the model zoo; and the commands.

The source of numbers is tests/reference: recipes.yml and a file of experiments for each folder of
configs.
``--check`` writes nothing and exits 1 if a file would change.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any, Dict, List

import render_commands
import yaml

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / 'tests/reference'
SIZES = {
    'parameters': 'Parameters (M)',
    'encoder_parameters': 'Parameters (M, encoder)',
    'model_parameters': 'Parameters (M, whole model)',
    'gflops': 'FLOPs (G)',
    'layer_gflops': 'FLOPs (G, one attention layer)',
    'images_per_second': 'Images per second (paper)',
    'speed_device': 'Device of the speed (paper)',
    'inference_ms': 'Inference time (ms/im, paper)',
}
# Name of a number: task, data set (None: that of the recipe) and metric of the metafile.
METRICS = {
    'top1': ('Image Classification', None, 'Top 1 Accuracy'),
    'top5': ('Image Classification', None, 'Top 5 Accuracy'),
    'top1_v2': ('Image Classification', 'ImageNet-V2', 'Top 1 Accuracy'),
    'video_top1': ('Action Recognition', None, 'Top 1 Accuracy'),
    'box_ap': ('Object Detection', None, 'box AP'),
    'box_ap50': ('Object Detection', None, 'box AP50'),
    'box_ap75': ('Object Detection', None, 'box AP75'),
    'box_ap_small': ('Object Detection', None, 'box AP small'),
    'box_ap_medium': ('Object Detection', None, 'box AP medium'),
    'box_ap_large': ('Object Detection', None, 'box AP large'),
    'mask_ap': ('Instance Segmentation', None, 'mask AP'),
    'mask_ap50': ('Instance Segmentation', None, 'mask AP50'),
    'mask_ap75': ('Instance Segmentation', None, 'mask AP75'),
    'miou': ('Semantic Segmentation', None, 'mIoU'),
    'rfid': ('Image Reconstruction', None, 'rFID'),
}
# Column of a README: names of the number, the first that is given counts.
COLUMNS = {
    'M, paper': ['parameters', 'model_parameters'],
    'encoder M, paper': ['encoder_parameters'],
    'G, paper': ['gflops'],
    'G of one layer, paper': ['layer_gflops'],
    'rFID (paper)': ['rfid'],
    'top-1 (paper)': ['top1', 'video_top1'],
    'top-1 (release)': ['top1', 'video_top1'],
    'top-1, ImageNet-V2 (paper)': ['top1_v2'],
    'top-5 (paper)': ['top5'],
    'box AP (paper)': ['box_ap'],
    'mask AP (paper)': ['mask_ap'],
    'mIoU (paper)': ['miou'],
    'mIoU, single scale (paper)': ['miou'],
    'small': ['box_ap_small'],
    'medium': ['box_ap_medium'],
    'large': ['box_ap_large'],
}

# Sections of the model zoo: tasks of their models.
ZOO = {
    'Detection and instance segmentation': ['Object Detection', 'Instance Segmentation'],
    'Semantic segmentation': ['Semantic Segmentation'],
    'Image classification, for the start of other models': ['Image Classification'],
    'Videos': ['Action Recognition'],
}
# Size in the name of a config.
SIZE = re.compile(r'(?<=-)(tiny|small|medium-wide|medium-deep|[tsbl]|b\d|w?\d\d)(?=[-_])')
ZOO_HEAD = """# Model zoo

Models with a score, and the weights that they start from, by `tools/misc/render_recipes.py`.
All configs lie in `configs/`; `{t,s}` in a name stands for either size.

- Scores are those of the paper or the release, for the model that the config describes. Only those
  marked "here" were trained and scored here.
- H-ViT³ classifiers: 83.5 (T) and 84.9 (B) are scores of the config's recipe. The released weights
  are trained with MESA, which it lacks, and have 84.0, 84.9 and 85.5; of S no other score is known.
- `mmlinattn://...`: weights that come with the package. Name the address as the checkpoint.
- Other weights are released by their authors: "RAVLT, `rala`" is a row of the
  [licences](commercial_use.md) and the `--source` of `mmlinattn convert`
  ([download and convert](weights.md#released-weights)). A release has the classifiers; its page
  says which detectors and segmentors.
- A detector or segmentor starts from a [converted classifier](weights.md#use-a-converted-file), or
  from [a detector with other classes](fine_tune.md).
"""


def load_recipes() -> Dict[str, Dict[str, Any]]:
    return yaml.safe_load((REFERENCE / 'recipes.yml').read_text(encoding='utf-8'))['recipes']


def load_experiments(method: str) -> Dict[str, Any]:
    """Return collection and experiments of a folder of configs."""
    path = REFERENCE / 'experiments' / f'{method}.yml'
    return yaml.safe_load(path.read_text(encoding='utf-8'))


def methods() -> List[str]:
    return sorted(path.stem for path in (REFERENCE / 'experiments').glob('*.yml'))


def value_of(recipes: Dict[str, Any], recipe: str, field: str) -> Any:
    """Return a value of a recipe, or of the nearest one that it is based on."""
    entry = recipes[recipe]
    if field in entry or field in entry.get('values', {}):
        return entry.get(field, entry.get('values', {}).get(field))
    return value_of(recipes, entry['base'], field) if 'base' in entry else None


def metafile(method: str, recipes: Dict[str, Any]) -> str:
    """Return the text of the metafile of a folder of configs."""
    ledger = load_experiments(method)
    collection, readme = ledger['collection'], f'configs/{method}/README.md'
    paper = {'Title': collection['title']}
    if 'url' in collection:
        paper['URL'] = collection['url']
    head = {
        'Name': collection['name'],
        'Metadata': {'Architecture': collection['architecture']},
        'Paper': paper,
        'README': readme,
        'Code': {'URL': collection['code']},
    }
    models = [model_entry(method, collection['name'], e, recipes) for e in ledger['experiments']]
    words = f'Written by tools/misc/render_recipes.py. {collection["note"]}'
    if any('Weights' in model for model in models):
        words += ' Only the models with Weights were trained and scored here.'
    return comment(words) + yaml.safe_dump(
        {'Collections': [head], 'Models': models}, sort_keys=False, allow_unicode=True, width=100
    )


def comment(words: str) -> str:
    """Return a text as lines of a comment, at most 100 characters long."""
    lines = ['#']
    for word in words.split():
        if len(lines[-1]) + len(word) >= 100:
            lines.append('#')
        lines[-1] += f' {word}'
    return '\n'.join(lines) + '\n'


def model_entry(
    method: str, collection: str, experiment: Dict[str, Any], recipes: Dict[str, Any]
) -> Dict[str, Any]:
    """Return the metafile entry of a config."""
    name, paper = experiment['config'], experiment.get('paper', {})
    recipe = experiment.get('recipe')
    data = experiment.get('data') or value_of(recipes, recipe, 'data')
    if data is None:
        raise ValueError(f'{name}: neither the experiment nor its recipe names the data')
    metadata = {'Training Data': data}
    metadata.update({text: paper[key] for key, text in SIZES.items() if key in paper})
    changed = experiment.get('changes', {}).get('length')
    length = changed or (value_of(recipes, recipe, 'length') if recipe else None)
    match = re.fullmatch(r'(\d+) (epochs|iterations)', str(length))
    if match:
        metadata[match[2].capitalize()] = int(match[1])
    entry = {
        'Name': name,
        'In Collection': collection,
        'Config': f'configs/{method}/{name}.py',
        'Metadata': metadata,
    }
    notes = [experiment[key] for key in ('note', 'remark') if key in experiment]
    found = results(paper, data, '; '.join(notes))
    published = ROOT / 'mmlinattn' / 'weights' / f'{name}.yml'
    if published.exists():
        (ours,) = yaml.safe_load(published.read_text())['Models']
        entry['Weights'] = f'mmlinattn/weights/{ours["Weights"]}'
        metadata.update({key: ours['Metadata'][key] for key in ('sha256', 'License')})
        found = [dict(result, Note='measured here') for result in ours['Results']]
    return {**entry, 'Results': found} if found else entry


def results(paper: Dict[str, float], data: str, note: str) -> List[Dict[str, Any]]:
    """Return the published results of a metafile entry, one for each task and data set."""
    found: Dict[tuple, Dict[str, Any]] = {}
    for key, (task, other, metric) in METRICS.items():
        if key in paper:
            group = found.setdefault((task, other or data), {})
            group[metric] = paper[key]
    return [
        {'Task': task, 'Dataset': dataset, 'Metrics': metrics, 'Note': note}
        for (task, dataset), metrics in found.items()
    ]


def cells(line: str) -> List[str]:
    return [cell.strip() for cell in line.strip().strip('|').split('|')]


def fill_readme(text: str, numbers: Dict[str, Dict[str, float]]) -> str:
    """Return a README whose columns of published numbers have the values of the ledger.

    Args:
        text: content of the README.
        numbers: published numbers of each config, by its name.
    """
    lines, start = text.splitlines(), 0
    while start < len(lines):
        stop = start
        while stop < len(lines) and lines[stop].startswith('|'):
            stop += 1
        if stop > start:
            lines[start:stop] = fill_table(lines[start:stop], numbers)
        start = stop + 1
    return '\n'.join(lines) + '\n'


def fill_table(lines: List[str], numbers: Dict[str, Dict[str, float]]) -> List[str]:
    """Return the rows of a table with published numbers filled in, where a row links a config."""
    header, rows = cells(lines[0]), [cells(line) for line in lines]
    for column, title in enumerate(header):
        if title not in COLUMNS:
            continue
        found = {}
        for i, line in enumerate(lines):
            # A row may link several configs, of a classifier and of the models that start from it.
            linked = [name for name in re.findall(r'([^/(\s]+)\.py\)', line) if name in numbers]
            values = [numbers[name].get(key) for name in linked for key in COLUMNS[title]]
            if linked:
                found[i] = next((value for value in values if value is not None), None)
        digits = max((len(f'{v:g}'.partition('.')[2]) for v in found.values() if v), default=0)
        for i, value in found.items():
            size = COLUMNS[title][0] in SIZES
            rows[i][column] = (
                '' if value is None else f'{value:g}' if size else f'{value:.{digits}f}'
            )
    return [
        f'| {" | ".join(row)} |'.replace('|  |', '| |') if row != cells(line) else line
        for line, row in zip(lines, rows)
    ]


def expected(paper: Dict[str, float]) -> str:
    """Return the published metrics of an experiment in one line."""
    short = {'Top 1 Accuracy': 'top-1', 'Top 5 Accuracy': 'top-5'}
    return ', '.join(
        f'{short.get(metric, metric)}{" (V2)" if data else ""} {paper[key]:g}'
        for key, (_, data, metric) in METRICS.items()
        if key in paper and not metric.endswith(('50', '75', 'small', 'medium', 'large'))
    )


def licences() -> Dict[str, List[str]]:
    """Return source and licence of released weights, by the name in the table of licences."""
    page = (ROOT / 'docs/commercial_use.md').read_text(encoding='utf-8')
    rows = [cells(line) for line in page.splitlines() if re.match(r'\| [^|]+ \| `\w+` \|', line)]
    return {row[0]: row[1:4] for row in rows}


def zoo(recipes: Dict[str, Any]) -> str:
    """Return a table a task of the models with a score and weights."""
    groups: Dict[str, Dict[tuple, List[tuple]]] = {title: {} for title in ZOO}
    known = licences()
    for method in methods():
        ledger = load_experiments(method)
        released = ledger['collection'].get('released', {})
        for experiment in ledger['experiments']:
            name = experiment['config']
            entry = model_entry(method, ledger['collection']['name'], experiment, recipes)
            names = [n for n, pattern in released.items() if re.fullmatch(pattern, name)]
            if 'Weights' in entry:
                score, weights = ours(entry['Results'][0]['Metrics']), f'`mmlinattn://{name}`'
                licence = entry['Metadata']['License'].partition(',')[0]
            elif names and expected(experiment.get('paper', {})):
                score = expected(experiment['paper'])
                source, licence, use = known[names[0]]
                weights = f'{names[0]}, {source}'
                licence += ', **not commercial**' if '**no**' in use else ''
            else:
                continue
            task = entry['Results'][0]['Task']
            (title,) = (title for title, tasks in ZOO.items() if task in tasks)
            data = entry['Metadata']['Training Data']
            row = SIZE.sub('{}', name, count=1), data, weights, licence
            groups[title].setdefault(row, []).append((name, f'(../{entry["Config"]})', score))
    head = '| model | data | score | weights | licence |\n| --- | --- | --- | --- | --- |\n'
    return '\n'.join(
        f'## {title}\n\n{head}' + ''.join(map(zoo_row, rows, rows.values()))
        for title, rows in groups.items()
    )


def zoo_row(row: tuple, models: List[tuple]) -> str:
    """Return the row of the models whose names differ in the size alone."""
    (name, data, weights, licence), scores = row, [score for _, _, score in models]
    metrics = {re.sub(r' [\d.]+(?=,|$)', '', score) for score in scores}
    if len(models) > 1:
        sizes = [SIZE.findall(of)[0] for of, _, _ in models]
        name = f'`{name}`'.replace('{}', f'{{{",".join(sizes)}}}')
        if len(metrics) == 1:
            scores = [', '.join(re.findall(r' ([\d.]+)(?=,|$)', score)) for score in scores]
        scores = [f'[{size}]{of[1]} {score}' for size, of, score in zip(sizes, models, scores)]
        if len(metrics) == 1:
            scores[0] = f'{metrics.pop()}: {scores[0]}'
    else:
        name = f'[{models[0][0]}]{models[0][1]}'
    return f'| {name} | {data} | {"; ".join(scores)} | {weights} | {licence} |\n'


def ours(metrics: Dict[str, float]) -> str:
    """Return the first scores of a model that was trained here."""
    short = {
        'coco/bbox_mAP': ('box AP', 100),
        'coco/segm_mAP': ('mask AP', 100),
        'mIoU': ('mIoU', 1),
    }
    found = [
        f'{word} {metrics[key] * by:.1f}' for key, (word, by) in short.items() if key in metrics
    ]
    return f'{", ".join(found)} (here)'


def notes(recipes: Dict[str, Any]) -> str:
    """Return what sources leave open, as a table, and where they differ, as a list."""
    users: Dict[str, Any] = {}  # recipe: the first config that follows it
    for method in methods():
        for experiment in load_experiments(method)['experiments']:
            path = f'../../configs/{method}/{experiment["config"]}.py'
            users.setdefault(experiment.get('recipe'), path)
    lines = ['| recipe | not stated: the config has a usual value |', '| --- | --- |']
    differing = []
    for name, recipe in recipes.items():
        unknown = [
            field.replace('_', ' ') for field, v in recipe['values'].items() if v == 'unknown'
        ]
        unknown += recipe.get('unstated', ())
        if unknown:
            lines.append(f'| [{name}]({users[name]}) | {", ".join(unknown)} |')
        differing += [f'- **{name}**, {note}.' for note in recipe.get('notes', ())]
    return '\n'.join([*lines, '', 'Where paper and release differ:', '', *differing]) + '\n'


def rendered() -> Dict[Path, str]:
    """Return the text of every file that this script writes."""
    recipes, files = load_recipes(), {}
    numbers = {
        e['config']: e.get('paper', {})
        for m in methods()
        for e in load_experiments(m)['experiments']
    }
    for method in methods():
        folder = ROOT / 'configs' / method
        files[folder / 'metafile.yml'] = metafile(method, recipes)
        readme = folder / 'README.md'
        files[readme] = fill_readme(readme.read_text(encoding='utf-8'), numbers)
    head = '# Known differences\n\n[How to use them](../reproduce.md)'
    files[ROOT / 'docs/reproduce/differences.md'] = f'{head}\n\n{notes(recipes)}'
    files[ROOT / 'docs/reference/commands.md'] = render_commands.page()
    files[ROOT / 'docs/zoo.md'] = f'{ZOO_HEAD}\n{zoo(recipes)}'
    return files


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--check', action='store_true', help='write nothing, exit 1 on a change')
    args = parser.parse_args()
    files = rendered()
    changed = [
        p for p, text in files.items() if not p.exists() or p.read_text(encoding='utf-8') != text
    ]
    for path in changed:
        print(f'{"differs" if args.check else "written"}: {path.relative_to(ROOT)}')
        if not args.check:
            path.write_text(files[path], encoding='utf-8')
    return int(args.check and bool(changed))


if __name__ == '__main__':
    sys.exit(main())
