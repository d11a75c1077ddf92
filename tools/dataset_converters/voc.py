#!/usr/bin/env python
"""Convert Pascal VOC boxes, an XML file an image, to COCO JSON.

VOC counts pixels from 1, and both corners belong to the box; --from-0 is for programs that count
from 0 and leave the last corner out.
"""

import argparse
import math
from pathlib import Path
from xml.etree import ElementTree

from mmlinattn.utils import write_json
from mmlinattn.utils.command_line import errors_in_one_line


def convert(folder: Path, out: Path, classes: list, first: int = 1) -> str:
    """Write the COCO file of a folder of XML files, and return what it holds."""
    images, boxes = [], []
    for path in sorted(folder.glob('*.xml')):
        try:
            root = ElementTree.parse(path).getroot()
            size = {side: int(number(root, f'size/{side}')) for side in ('width', 'height')}
            if min(size.values()) < 1:
                raise ValueError(f'the image is {size["width"]} wide and {size["height"]} high')
            images.append(dict(id=len(images) + 1, file_name=entry(root, 'filename'), **size))
            for item in root.iter('object'):
                name = entry(item, 'name')
                if name not in classes:
                    raise ValueError(f'the class {name!r} is not in --classes {" ".join(classes)}')
                left, top, right, bottom = (
                    number(item, f'bndbox/{end}') for end in ('xmin', 'ymin', 'xmax', 'ymax')
                )
                x, y, w, h = left - first, top - first, right - left + first, bottom - top + first
                if w <= 0 or h <= 0:
                    ends = f'{left:g} {top:g} {right:g} {bottom:g}'
                    raise ValueError(f'the box {ends} of {name!r} is empty: correct or remove it')
                box = dict(id=len(boxes) + 1, image_id=len(images), area=w * h, iscrowd=0)
                boxes.append(dict(box, bbox=[x, y, w, h], category_id=classes.index(name) + 1))
        except (ElementTree.ParseError, ValueError) as error:
            raise ValueError(f'{path}: {error}') from error
    if not images:
        raise FileNotFoundError(f'{folder} has no .xml files')
    categories = [dict(id=i + 1, name=name) for i, name in enumerate(classes)]
    write_json(out, dict(images=images, annotations=boxes, categories=categories), indent=None)
    return f'{out}: {len(images)} images, {len(boxes)} boxes'


def entry(parent: ElementTree.Element, name: str) -> str:
    """Return the text of an entry, such as size/width."""
    text = parent.findtext(name, '').strip()
    if not text:
        raise ValueError(f'<{parent.tag}> has no {name}')
    return text


def number(parent: ElementTree.Element, name: str) -> float:
    """Return the finite number of an entry."""
    text = entry(parent, name)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f'{name} is {text!r}, no number')
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add('folder', type=Path, help='folder of the XML files of one split')
    add('out', type=Path, help='JSON file to write')
    add('--classes', nargs='+', required=True, help='names in the order of metainfo.classes')
    add(
        '--from-0', dest='first', action='store_const', const=0, default=1,
        help='pixels count from 0, and the last corner does not belong to the box',
    )  # fmt: skip
    add('--debug', action='store_true', help='show the traceback of an error')
    args = vars(parser.parse_args())
    with errors_in_one_line(args.pop('debug')):
        print(convert(**args))


if __name__ == '__main__':
    main()
