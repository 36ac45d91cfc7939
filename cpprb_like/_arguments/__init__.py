"""Arguments of calls: integers, discount factors, dtypes and arrays of other libraries.

``checks`` reads numbers, ``foreign_arrays`` reads arrays of other libraries, and
``narrow_dtypes`` knows the dtypes of ml_dtypes. Nothing here knows of buffers.
May import: ``_c``.
"""
