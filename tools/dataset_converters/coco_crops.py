#!/usr/bin/env python
"""The command ``mmlinattn coco-crops``."""

import runpy
import sys

if __name__ == '__main__':
    sys.argv[:1] = ['mmlinattn', 'coco-crops']
    runpy.run_module('mmlinattn', run_name='__main__')
