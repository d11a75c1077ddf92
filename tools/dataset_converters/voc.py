#!/usr/bin/env python
"""Convert Pascal VOC boxes, an XML file an image, to COCO JSON.

VOC counts pixels from 1, and both corners belong to the box; --from-0 is for programs that count
from 0 and leave the last corner out.
"""

import argparse
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
            size = {side: int(root.find(f'size/{side}').text) for side in ('width', 'height')}
            images.append(dict(id=len(images) + 1, file_name=root.find('filename').text, **size))
            for item in root.iter('object'):
                ends = [
                    float(item.find(f'bndbox/{n}').text) for n in ('xmin', 'ymin', 'xmax', 'ymax')
                ]
                x, y = ends[0] - first, ends[1] - first
                w, h = ends[2] - ends[0] + first, ends[3] - ends[1] + first
                name = item.find('name').text
                if name not in classes:
                    raise ValueError(f'the class {name!r} is not in --classes {" ".join(classes)}')
                box = dict(id=len(boxes) + 1, image_id=len(images), area=w * h, iscrowd=0)
                boxes.append(dict(box, bbox=[x, y, w, h], category_id=classes.index(name) + 1))
        except AttributeError:
            raise ValueError(f'{path} lacks an entry of size, filename or object') from None
        except (ElementTree.ParseError, ValueError) as error:
            raise ValueError(f'{path}: {error}') from error
    if not images:
        raise FileNotFoundError(f'{folder} has no .xml files')
    categories = [dict(id=i + 1, name=name) for i, name in enumerate(classes)]
    write_json(out, dict(images=images, annotations=boxes, categories=categories), indent=None)
    return f'{out}: {len(images)} images, {len(boxes)} boxes'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add('folder', type=Path, help='folder of the XML files of one split')
    add('out', type=Path, help='JSON file to write')
    add('--classes', nargs='+', required=True, help='names in the order of metainfo.classes')
    add('--from-0', dest='first', action='store_const', const=0, default=1)
    add('--debug', action='store_true', help='show the traceback of an error')
    args = vars(parser.parse_args())
    with errors_in_one_line(args.pop('debug')):
        print(convert(**args))


if __name__ == '__main__':
    main()
