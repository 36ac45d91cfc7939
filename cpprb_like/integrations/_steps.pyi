from typing import Any, final

from cpprb_like.buffers import ReplayBuffer

FINAL_NAMES: tuple[str, ...]

@final
class SpaceParts:
    def __init__(
        self,
        keys: tuple[Any, ...] | None,
        children: tuple[SpaceParts, ...] | None,
        shape: tuple[int, ...],
    ) -> None: ...

@final
class Steps:
    @property
    def buffer(self) -> ReplayBuffer | None: ...
    @property
    def none(self) -> Any: ...
    obs: list[Any] | None
    waiting: Any
    n_waiting: int
    def __init__(
        self,
        names: tuple[str, ...],
        obs_parts: SpaceParts | None,
        one_obs_parts: SpaceParts | None,
        act_parts: SpaceParts | None,
        n_rows: int | None,
        mode: str,
    ) -> None: ...
    def attach(self, buffer: ReplayBuffer) -> None: ...
    def wait_for(self, envs: Any) -> None: ...
    def begin(self, obs: object, mask: object, /) -> Any: ...
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
