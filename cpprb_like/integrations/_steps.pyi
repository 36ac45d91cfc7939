from typing import Any, final

from cpprb_like.buffers import ReplayBuffer

@final
class Steps:
    @property
    def buffer(self) -> ReplayBuffer | None: ...
    @property
    def nobody(self) -> Any: ...
    obs: list[Any] | None
    waiting: Any
    n_waiting: int
    def __init__(
        self,
        names: tuple[str, ...],
        obs_shape: tuple[int, ...] | None,
        act_shape: tuple[int, ...] | None,
        n_rows: int | None,
        mode: str,
    ) -> None: ...
    def attach(self, buffer: ReplayBuffer) -> None: ...
    def wait_for(self, envs: Any) -> None: ...
    def add(
        self,
        action: object,
        obs: object,
        reward: object,
        terminated: object,
        truncated: object,
        info: object,
        extra: dict[str, object],
        /,
    ) -> Any: ...
