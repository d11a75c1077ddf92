#!/usr/bin/env python
"""Check that docstrings begin as CONTRIBUTING.md asks.

A function begins with a verb in the imperative ("Return the slices ..."), a class, module or
property with a noun phrase. The first sentence has at most 30 words. Prints one line per finding;
exit code 1 if there are any.
"""

import argparse
import ast
import re
import sys
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

FOLDERS = ('mmlinattn', 'tools', 'benchmarks')
MAX_WORDS = 30
# Openings that make a sentence a riddle.
BANNED = set(
    'Of What Whether Who Which Where How Any As From See Is Are Does Do Can It Its They Them The '
    'Same'.split()
) - {'The'}
VERBS = set(
    """
    Abort Accept Access Accumulate Add Adapt Adjust Advance Align Allocate Allow Annotate Append Apply
    Approximate Arrange Ask Assign Assert Attach Average Backpropagate Begin Bind Block Break Broadcast
    Build Cache Calculate Call Cast Catch Change Check Choose Clamp Classify Clean Clear Clip Close
    Collate Collect Combine Compare Compile Complete Compose Compress Compute Concatenate Configure
    Connect Consolidate Consume Contain Continue Convert Convolve Copy Count Crop Create Cut Decide Decode
    Decorate Decorrelate Define Delete Describe Deserialize Detach Detect Disable Discard Display
    Divide Download Draw Drop Dump Duplicate Embed Emit Empty Enable Encode End Enforce Enlarge Ensure
    Enter Erase Estimate Evaluate Exchange Execute Exit Expand Explain Export Extend Extract Fail Feed
    Fetch Fill Filter Find Finish Fit Flatten Flip Flush Forward Freeze Fuse Gather Generate Get Give
    Group Guard Guess Handle Hash Hide Highlight Hold Ignore Implement Import Increase Index Infer
    Initialize Initialise Insert Inspect Install Interpolate Interpret Invert Invoke Iterate Join Keep
    Launch Leave Let Limit Link List Listen Load Localize Lock Log Look Loop Make Map Mark Mask Match
    Measure Merge Mirror Mix Modify Move Multiply Name Narrow Normalize Normalise Note Notify Number
    Offer Open Order Overlay Override Pack Pad Paint Parse Partition Pass Paste Patch Perform Permute
    Pick Place Plan Plot Pool Predict Prefetch Prepare Prepend Preprocess Print Process Produce Profile Project
    Propagate Provide Publish Pull Push Put Query Quantize Raise Randomize Read Receive Recompute Record
    Redact Reduce Refer Reformat Refuse Register Regroup Reject Release Reload Remap Remember Remove
    Rename Render Reorder Repeat Replace Replay Report Represent Request Require Rescale Reserve Reset
    Reshape Resize Resolve Respond Restore Restrict Resume Retry Return Reuse Reverse Rewind Rewrite
    Rotate Round Run Sample Save Scale Scan Scatter Schedule Score Search Seed Select Send Separate
    Serialize Serve Set Share Shift Show Shrink Shuffle Shut Simplify Simulate Skip Slice Smooth Solve
    Sort Split Spread Stack Stamp Standardize Start Stop Store Stream Strip Subtract Sum Summarize
    Supply Suppress Swap Switch Sync Synchronize Take Tell Terminate Test Tie Time Tile Toggle Tokenize
    Total Trace Track Train Transfer Transform Translate Transpose Traverse Treat Trim Try Tune Turn
    Undo Unflatten Unfold Unite Unpack Unpad Unregister Update Upload Upsample Use Validate Verify
    Visit Visualize Wait Walk Warn Watch Weight Widen Wrap Write Yield Zero
    """.split()
)

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(path: Path) -> Iterator[Tuple[int, str, str]]:
    """Yield line, kind (``'function'`` or ``'noun'``) and text of every docstring of a file."""
    tree = ast.parse(path.read_text(encoding='utf-8'))
    for node in ast.walk(tree):
        if not isinstance(node, (*Function, ast.ClassDef, ast.Module)):
            continue
        text = ast.get_docstring(node)
        if text is None:
            continue
        is_verb = isinstance(node, Function) and not _is_property(node)
        yield getattr(node, 'lineno', 1), 'function' if is_verb else 'noun', text


def _is_property(node: ast.AST) -> bool:
    names = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(name.endswith(('property', 'setter')) for name in names)


def problem_of(kind: str, text: str) -> Optional[str]:
    """Return what is wrong with a docstring, or None.

    Example:
        >>> problem_of('function', 'Whether it fits.')
        "begins with 'Whether'"
        >>> problem_of('function', 'Return True if it fits.')
    """
    first = re.match(r'[A-Za-z]+', text)
    word = first[0] if first else text.split()[0]
    if word in BANNED:
        return f'begins with {word!r}'
    if kind == 'function' and word not in VERBS:
        return f'begins with {word!r}, which is no known verb in the imperative'
    sentence = re.split(r'(?<=[.:;])\s|\n\n', text)[0]
    words = len(sentence.split())
    if words > MAX_WORDS:
        return f'first sentence has {words} words, at most {MAX_WORDS}'
    return None


def main(argv: Optional[List[str]] = None) -> int:
    """Check the files or folders of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('paths', nargs='*', type=Path, default=[Path(p) for p in FOLDERS])
    args = parser.parse_args(argv)
    found = 0
    for path in args.paths:
        for file in [path] if path.is_file() else sorted(path.rglob('*.py')):
            for line, kind, text in docstrings(file):
                problem = problem_of(kind, text)
                if problem:
                    found += 1
                    print(f'{file}:{line}: docstring {problem}: {text.splitlines()[0]}')
    return int(found > 0)


if __name__ == '__main__':
    sys.exit(main())
