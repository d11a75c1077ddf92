"""A small CIFAR-100 in the layout of its binary archive."""

from pathlib import Path
from typing import Tuple

import numpy as np


def write_cifar100(root: Path, train: int = 8, test: int = 4) -> Tuple[Path, dict]:
    """Writes the files, and returns their folder and what is in them: RGB images and labels."""
    rng, content = np.random.default_rng(0), {}
    root.mkdir(parents=True)
    for split, count in (('train', train), ('test', test)):
        images = rng.integers(256, size=(count, 32, 32, 3), dtype=np.uint8)
        labels = rng.integers(100, size=count, dtype=np.uint8)
        with open(root / f'{split}.bin', 'wb') as file:
            for image, label in zip(images, labels):
                file.write(bytes([label // 5, label]))
                for colour in range(3):
                    for row in image[:, :, colour]:
                        file.write(bytes(row))
        content[split] = images, labels
    (root / 'fine_label_names.txt').write_text('\n'.join(f'kind_{i}' for i in range(100)) + '\n\n')
    return root, content
