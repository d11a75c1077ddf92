"""Console of a run: the long texts of MMEngine's start go to the log file alone."""

import logging
import warnings

from mmengine.dist import is_main_process
from mmengine.logging import MMLogger

from ...utils.messages import hide_on_console


class StartFilter(logging.Filter):
    """Filter of the console that drops records below WARNING while a run starts.

    Attributes:
        starting: True until the run begins to work.
    """

    starting = True

    def filter(self, record: logging.LogRecord) -> bool:
        important = record.levelno >= logging.WARNING or hasattr(record, 'announced')
        return important or not self.starting


def hide_start(logger: MMLogger) -> MMLogger:
    """Print only warnings and what :func:`announce` logs, until :func:`show`; return the logger.

    Environment, config, hooks, options of parameters and initialisation of weights are in the log
    file.
    """
    hide_on_console(logger)
    for handler in logger.handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.addFilter(StartFilter())
    return logger


def show(logger: logging.Logger) -> None:
    """Print all records of a logger from now on."""
    for handler in logger.handlers:
        for entry in handler.filters:
            if isinstance(entry, StartFilter):
                entry.starting = False


def announce(text: str) -> None:
    """Log a message that is printed during the start of a run, too."""
    MMLogger.get_current_instance().info(text, extra=dict(announced=True))


def silence_other_processes() -> None:
    """Show warnings and messages of the first process alone, before there is a runner."""
    if is_main_process():
        return
    warnings.simplefilter('ignore')
    for handler in MMLogger.get_current_instance().handlers:
        handler.setLevel(logging.ERROR)
