"""Arguments of calls: integers, discount factors, dtypes and arrays of other libraries.

``checks`` reads numbers, ``foreign_arrays`` reads arrays of other libraries, and
``narrow_dtypes`` reads the dtypes of ml_dtypes. No module here depends on buffers.
May import: ``_c``.
"""
