"""Gymnasium spaces as nests of fields, and cpprb's two helpers for environments.

Dict and Tuple spaces are branches, other spaces are leaves. cpprb's helpers are for old programs:
``GymnasiumRecorder`` needs none and handles autoresets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from gymnasium import spaces

from cpprb_like.integrations._nests import Branch, Leaf, Path, Tree, refuse_repeated
from cpprb_like.integrations._steps import SpaceParts
from cpprb_like.typing import FieldSpec

if TYPE_CHECKING:
    import numpy.typing as npt


NamedLeaves: TypeAlias = list[tuple[str, Leaf]]


def tree_of(space: spaces.Space[Any], path: Path = ()) -> Tree:
    """The tree of a space; ``NotImplementedError`` if it is not one of Gymnasium's."""
    parts: dict[Any, spaces.Space[Any]]
    match space:
        case spaces.Dict():
            parts = dict(space.spaces)
        case spaces.Tuple():
            parts = dict(enumerate(space.spaces))
        case spaces.Box() | spaces.Discrete() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return Leaf(path, space.shape or (), np.dtype(space.dtype), space)
        case spaces.Text() if "\0" not in space.character_set:  # NumPy drops NULs at the end
            return Leaf(path, (), np.dtype(f"U{max(1, space.max_length)}"), space)
        case spaces.Text() | spaces.Graph() | spaces.Sequence() | spaces.OneOf():
            return Leaf(path, (), np.dtype(object), space)
        case _:
            raise NotImplementedError(
                f"cannot store values of {space!r}: expected one of Gymnasium's own spaces"
            )
    children = {key: tree_of(part, (*path, key)) for key, part in parts.items()}
    return Branch(path, children, None if isinstance(space, spaces.Dict) else tuple)


def parts_of(tree: Tree, n_rows: int | None) -> SpaceParts | None:
    """The structure of a tree for the compiled path, or None if a leaf is text or an object."""
    if isinstance(tree, Leaf):
        shape = tree.shape if n_rows is None else (n_rows, *tree.shape)
        return None if tree.dtype.kind in "OU" else SpaceParts(None, None, shape)
    children = [parts_of(child, n_rows) for child in tree.children.values()]
    found = tuple(part for part in children if part is not None)
    if len(found) < len(children):
        return None
    return SpaceParts(tuple(tree.children) if tree.made_of is None else None, found, ())


def create_env_dict(
    env: Any,
    *,
    int_type: npt.DTypeLike | None = None,
    float_type: npt.DTypeLike | None = None,
) -> dict[str, FieldSpec]:
    """Return the fields of an environment's steps for ``ReplayBuffer``, as cpprb does.

    Parameters
    ----------
    env : gymnasium.Env
        Environment whose ``observation_space`` and ``action_space`` are read.
    int_type : dtype, optional
        Dtype of Discrete, MultiDiscrete and MultiBinary spaces, by default int32.
    float_type : dtype, optional
        Dtype of Box spaces, rewards and ``done``, by default float32, for images too.

    Returns
    -------
    dict
        ``rew`` and ``done``, then observations, each with its ``next_`` field, then actions. Fields
        are named ``obs`` and ``act``, or ``obs0``, ``obs1``, ... for Tuple spaces, or by the keys
        of Dict spaces. Parts of nested spaces are named by their path, such as ``obs0.camera``.
        Text is a string of fixed width. Values of Graph, Sequence and OneOf spaces are Python
        objects.

    Raises
    ------
    ValueError
        Two fields would have the same name.
    NotImplementedError
        A space is not one of Gymnasium's own.

    Examples
    --------
    >>> import gymnasium
    >>> from cpprb_like import create_env_dict
    >>> list(create_env_dict(gymnasium.make("CartPole-v1")))
    ['rew', 'done', 'obs', 'next_obs', 'act']
    """
    obs, act = _named_leaves(env)
    int_type = np.int32 if int_type is None else int_type
    float_type = np.float32 if float_type is None else float_type
    env_dict: dict[str, FieldSpec] = {
        name: {"shape": 1, "dtype": float_type} for name in ("rew", "done")
    }
    for name, leaf in obs:
        env_dict[name] = _declaration(leaf, int_type, float_type)
        env_dict[f"next_{name}"] = env_dict[name].copy()
    for name, leaf in act:
        env_dict[name] = _declaration(leaf, int_type, float_type)
    return env_dict


def create_before_add_func(env: Any) -> Callable[..., dict[str, Any]]:
    """Return a function that gives the parts of a step the names of ``create_env_dict``.

    Parameters
    ----------
    env : gymnasium.Env
        Environment whose ``observation_space`` and ``action_space`` are read.

    Returns
    -------
    callable
        ``f(obs, act, next_obs, rew, done)`` returns the keywords for ``ReplayBuffer.add``. Parts
        may be batches of steps, except values of Graph, Sequence and OneOf spaces.

    Raises
    ------
    ValueError, NotImplementedError
        As for ``create_env_dict``.

    Examples
    --------
    >>> import gymnasium
    >>> from cpprb_like import ReplayBuffer, create_before_add_func, create_env_dict
    >>> env = gymnasium.make("CartPole-v1")
    >>> rb = ReplayBuffer(100, create_env_dict(env))
    >>> before_add = create_before_add_func(env)
    >>> obs, info = env.reset(seed=0)
    >>> next_obs, rew, terminated, truncated, info = env.step(0)
    >>> rb.add(**before_add(obs, 0, next_obs, rew, terminated))
    0
    """
    obs_leaves, act_leaves = _named_leaves(env)

    def before_add(obs: Any, act: Any, next_obs: Any, rew: Any, done: Any) -> dict[str, Any]:
        return {
            **{name: _part(obs, leaf) for name, leaf in obs_leaves},
            **{name: _part(act, leaf) for name, leaf in act_leaves},
            **{f"next_{name}": _part(next_obs, leaf) for name, leaf in obs_leaves},
            "rew": rew,
            "done": done,
        }

    return before_add


def _named_leaves(env: Any) -> tuple[NamedLeaves, NamedLeaves]:
    """Return the leaves of the observation and the action space, with their field names."""
    obs, act = (
        [(_name(leaf, space, root), leaf) for leaf in tree_of(space).leaves()]
        for space, root in ((env.observation_space, "obs"), (env.action_space, "act"))
    )
    names = ["rew", "done", *(name for name, _ in obs + act), *(f"next_{name}" for name, _ in obs)]
    try:
        refuse_repeated(tuple(names), "spaces")
    except ValueError as error:
        raise ValueError(f"{error}; GymnasiumRecorder keeps them apart") from None
    return obs, act


def _name(leaf: Leaf, space: spaces.Space[Any], root: str) -> str:
    if not leaf.path:
        return root
    first, *deeper = leaf.path
    name = f"{root}{first}" if isinstance(space, spaces.Tuple) else f"{first}"
    return ".".join([name, *map(str, deeper)])


def _declaration(leaf: Leaf, int_type: Any, float_type: Any) -> FieldSpec:
    """Return the entry of a field, with cpprb's shape: 1 for a single value, unless it is a Box."""
    match leaf.space:
        case spaces.Box():
            return {"shape": leaf.shape, "dtype": float_type}
        case spaces.MultiBinary(n=shape):
            return {"shape": shape, "dtype": int_type}
        case spaces.Discrete() | spaces.MultiDiscrete():
            return {"shape": leaf.shape or 1, "dtype": int_type}
        case _:
            return {"shape": 1, "dtype": leaf.dtype}


def _part(value: Any, leaf: Leaf) -> Any:
    """Return the part of an observation or action that belongs to a leaf."""
    for key in leaf.path:
        value = value[key]
    return next(leaf.collect(value, "", None)) if leaf.dtype.hasobject else value
