"""Messages: warnings of this package, and those of others that are kept off the console.

:data:`MESSAGES` lists those of other packages that a user of this one cannot act on. The command
line hides them for the life of the process; ``import mmlinattn`` hides them while it imports the
frameworks. Log files have what is logged.
"""

import contextlib
import io
import logging
import re
import sys
import warnings
from typing import Dict, Iterator, List

# Start of the message -> why it is hidden.
MESSAGES: Dict[str, str] = {
    'Line NMS is not compiled.': 'mmdet logs it at import; its lane detector CLRNet alone needs it',
    'Could not import OneDL': "the frameworks print it at import; OneDL's data sets alone need it",
    'faster_coco_eval is not installed': 'mmdet warns at import; FasterCocoMetric alone needs it',
    '"FileClient" will be deprecated': "MMEngine's own CheckpointHook uses it",
    '"HardDiskBackend" is the alias': "MMEngine's own CheckpointHook uses it",
    'The draw is False, it means that the hook': "the default of mmseg's own base configs",
    '`reduce_zero_label` will be deprecated': "an option of mmseg's own base configs",
    'Default ``avg_non_ignore`` is False': 'the loss that the papers of mmseg were trained with',
    'The prefix is not set in metric class': "the default of mmseg's own base configs",
    'loading annotations into memory...': 'progress of pycocotools',
    'Done (t=': 'progress of pycocotools',
    'creating index...': 'progress of pycocotools',
    'index created!': 'progress of pycocotools',
    'Loads checkpoint by': "MMEngine prints it and then logs 'Load checkpoint from'",
}
# MMEngine's optimizer logs a line for each parameter that `frozen_stages` freezes.
FROZEN = ' is skipped since its requires_grad=False'


def is_known(text: str) -> bool:
    """Return True if a text begins with a message of the list, or tells of a frozen parameter.

    Example:
        >>> is_known('Could not import OneDL. Skipping OneDL datasets.'), is_known('Could not')
        (True, False)
        >>> is_known('backbone.stem.0.bias is skipped since its requires_grad=False')
        True
    """
    return text.lstrip().startswith(tuple(MESSAGES)) or text.endswith(FROZEN)


def _is_other(record: logging.LogRecord) -> bool:
    """Return False for the log records that the filter of :func:`hide_on_console` drops."""
    return not is_known(record.getMessage())


def hide_on_console(logger: logging.Logger) -> List[logging.Handler]:
    """Filter :data:`MESSAGES` out of a logger's console output; return the handlers that change."""
    printing = [x for x in logger.handlers if not isinstance(x, logging.FileHandler)]
    changed = [handler for handler in printing if _is_other not in handler.filters]
    for handler in changed:
        handler.addFilter(_is_other)
    return changed


def hide_known_messages() -> List[logging.Handler]:
    """Apply :func:`hide_on_console` to MMEngine's logger, and filter warnings, for good."""
    for text in MESSAGES:
        warnings.filterwarnings('ignore', message=re.escape(text))
    with contextlib.suppress(ModuleNotFoundError):
        from mmengine.logging import MMLogger

        return hide_on_console(MMLogger.get_current_instance())
    return []


@contextlib.contextmanager
def known_messages_hidden() -> Iterator[None]:
    """Filter :data:`MESSAGES` out of warnings, logs and prints inside the block."""
    printed = io.StringIO()
    with warnings.catch_warnings():
        filtered = hide_known_messages()
        try:
            with contextlib.redirect_stdout(printed):
                yield
        finally:
            for handler in filtered:
                handler.removeFilter(_is_other)
            lines = printed.getvalue().splitlines(keepends=True)
            sys.stdout.writelines(line for line in lines if not is_known(line))


def log_warning(text: str) -> None:
    """Log a warning with MMEngine's current logger."""
    from mmengine.logging import print_log

    print_log(text, 'current', level=logging.WARNING)
