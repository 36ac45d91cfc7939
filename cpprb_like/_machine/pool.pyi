from typing import final

@final
class Pool: ...

@final
class Lease: ...
