#!/usr/bin/env python
"""Convert YOLO boxes, a text file an image, to COCO JSON.

An image without a text file has no object. Outlines (lines of more than five numbers) are refused.
"""

import argparse
from pathlib import Path

from PIL import Image

from mmlinattn.datasets.audit.images import IMAGES
from mmlinattn.utils import write_json
from mmlinattn.utils.command_line import errors_in_one_line

ORIENTATION = 0x0112  # tag of EXIF
TURNED = ('JPEG', 'MPO', 'PNG')  # formats whose orientation OpenCV applies


def convert(images: Path, labels: Path, out: Path, classes: list) -> str:
    """Write the COCO file of a folder of images and one of text files; return what it holds."""
    found, boxes, names = [], [], {path.stem for path in labels.glob('*.txt')} - {'classes'}
    for path in sorted(p for p in images.iterdir() if p.suffix.lower() in IMAGES):
        try:
            with Image.open(path) as image:
                width, height = image.size
                turns = image.format in TURNED and image.getexif().get(ORIENTATION) in (5, 6, 7, 8)
                if turns:  # it lies on its side
                    width, height = height, width
        except Exception as error:
            raise ValueError(f'{path} cannot be read: {error}') from error
        found.append(dict(id=len(found) + 1, file_name=path.name, width=width, height=height))
        label = labels / f'{path.stem}.txt'
        for line in label.read_text().splitlines() if label.exists() else ():
            if not line.strip():
                continue
            try:
                number, x, y, w, h = (float(word) for word in line.split())
            except ValueError:
                raise ValueError(f'{label}: a box has five numbers, not {line!r}') from None
            if number not in range(len(classes)):
                raise ValueError(f'{label}: class {number:g}, but --classes has {len(classes)}')
            if not (all(0 <= value <= 1.01 for value in (x, y, w, h)) and w and h):  # NaN is not
                raise ValueError(
                    f'{label}: a box has its centre and sides in fractions of the image, above 0, '
                    f'not {line!r}'
                )
            x, y, w, h = x * width, y * height, w * width, h * height
            box = dict(id=len(boxes) + 1, image_id=len(found), area=w * h, iscrowd=0)
            boxes.append(dict(box, bbox=[x - w / 2, y - h / 2, w, h], category_id=int(number) + 1))
    if not found:
        raise FileNotFoundError(f'{images} has no images ({", ".join(IMAGES)})')
    if not boxes:
        raise FileNotFoundError(f'{labels} has no boxes of the images in {images}')
    categories = [dict(id=i + 1, name=name) for i, name in enumerate(classes)]
    write_json(out, dict(images=found, annotations=boxes, categories=categories), indent=None)
    stems = {Path(image['file_name']).stem for image in found}
    missing, left = len(stems - names), len(names - stems)
    return (
        f'{out}: {len(found)} images, {len(boxes)} boxes; '
        f'{missing} images without a text file, {left} text files without an image'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add('images', type=Path, help='folder of the images of one split')
    add('labels', type=Path, help='folder of their text files')
    add('out', type=Path, help='JSON file to write')
    add('--classes', nargs='+', required=True, help='names in the order of data.yaml')
    add('--debug', action='store_true', help='show the traceback of an error')
    args = vars(parser.parse_args())
    with errors_in_one_line(args.pop('debug')):
        print(convert(**args))


if __name__ == '__main__':
    main()
