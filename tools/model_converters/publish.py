#!/usr/bin/env python
"""The command ``mmlinattn publish``."""

import runpy
import sys

if __name__ == '__main__':
    sys.argv[:1] = ['mmlinattn', 'publish']
    runpy.run_module('mmlinattn', run_name='__main__')
