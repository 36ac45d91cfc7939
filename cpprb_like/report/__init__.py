"""Reports: what the rows of a buffer are like, as text, as JSON, and as a page.

``describe`` reads rows of every buffer of a source (``_facts``) and asks each check whether
something looks wrong (``_findings``). The result, a ``Description``, is printed (``text``) or
written as one HTML page (``_page``) with charts in SVG (``_charts``).
May import: public names of the other rooms.
"""

from cpprb_like.report._describe import Description, describe, describe_saved
from cpprb_like.report._findings import CHECKS, Finding

__all__ = ["CHECKS", "Description", "Finding", "describe", "describe_saved"]
