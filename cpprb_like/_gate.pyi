from typing import final

@final
class Gate: ...
