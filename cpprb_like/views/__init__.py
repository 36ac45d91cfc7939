"""What is read of the rows that were drawn: next values, frame stacks, n-step returns, sequences.

A view is handed slots and fills a batch: values that are stored are gathered, values that follow
from other rows are put together, each from a window that is clipped at the end of its episode.
May import: ``samplers``, ``_store`` and what they may.
"""
