"""Gymnasium spaces as nests of fields, and cpprb's two helpers for environments.

Dict, Tuple and Graph spaces are branches, other spaces are leaves. cpprb's helpers are for old
programs: ``GymnasiumRecorder`` needs none and handles autoresets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from gymnasium import spaces

from cpprb_like._arguments.arrays import Array, Flags
from cpprb_like.integrations._nests import Branch, Leaf, Path, Tree, field_name, refuse_repeated
from cpprb_like.integrations._steps import SpaceParts
from cpprb_like.typing import FieldSpec

if TYPE_CHECKING:
    import numpy.typing as npt


NamedLeaves: TypeAlias = list[tuple[str, Leaf]]
FIXED = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class Graphs(Branch):
    """A graph with nodes and edges, or one of each environment. No edges may come as None."""

    def __init__(self, path: Path, space: spaces.Graph) -> None:
        children: dict[Any, Tree] = {"nodes": _items_of(space.node_space, (*path, "nodes"))}
        if space.edge_space is not None:
            edges = (*path, "edges")
            children["edges"] = _items_of(space.edge_space, edges)
            children["edge_links"] = Leaf(
                (*path, "edge_links"),
                (2,),
                np.dtype(np.int64),
                axis=edges,
                counts=(*path, "nodes"),
            )
        super().__init__(path, children, None)

    def collect(
        self, value: Any, root: str, n_rows: int | None, unset: Flags | None = None
    ) -> Iterator[Array]:
        are_several = n_rows is not None and isinstance(value, (list, tuple, np.ndarray))
        graphs = value if are_several else [value]
        where = f"field {field_name(root, self.path)!r}"
        for graph in graphs:
            if not isinstance(graph, spaces.GraphInstance):
                each = "" if n_rows is None else " for each environment"
                raise ValueError(
                    f"{where}: expected a GraphInstance{each}, got {type(graph).__name__}"
                )
            if "edges" not in self.children and graph[1:] != (None, None):
                raise ValueError(f"{where}: expected no edges, as in the space, got {graph}")
        for key, child in self.children.items():
            parts = [_part_of(graph, key) for graph in graphs]
            yield from child.collect(parts[0] if n_rows is None else parts, root, n_rows, unset)

    def restore(self, columns: Mapping[str, Array], root: str) -> spaces.GraphInstance:
        parts = {"edges": None, "edge_links": None} | super().restore(columns, root)
        return spaces.GraphInstance(**parts)


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
        case spaces.Text():
            return Leaf(path, (), np.dtype(str), space)
        case spaces.Sequence() if isinstance(space.feature_space, FIXED):
            return _items_of(space.feature_space, path)
        case spaces.Graph() if all(
            isinstance(part, (*FIXED, type(None))) for part in (space.node_space, space.edge_space)
        ):
            return Graphs(path, space)
        case spaces.Graph() | spaces.Sequence() | spaces.OneOf():
            return Leaf(path, (), np.dtype(object), space)
        case _:
            raise NotImplementedError(
                f"cannot store values of {space!r}: expected one of Gymnasium's own spaces"
            )
    children = {key: tree_of(part, (*path, key)) for key, part in parts.items()}
    return Branch(path, children, None if isinstance(space, spaces.Dict) else tuple)


def _items_of(space: spaces.Space[Any], path: Path) -> Leaf:
    """A leaf with any number of items of a space, along an axis of the field's own name."""
    return Leaf(path, space.shape or (), np.dtype(space.dtype), space, axis=path)


def _part_of(value: Any, key: Any) -> Any:
    """The part of a value at a key of its branch."""
    if not isinstance(value, spaces.GraphInstance):
        return value[key]
    part = getattr(value, key)
    return () if part is None and key != "nodes" else part


def parts_of(tree: Tree, n_rows: int | None) -> SpaceParts | None:
    """The structure of a tree for the compiled path.

    None if a leaf is a text, an object, or has any number of items.
    """
    if isinstance(tree, Leaf):
        shape = tree.shape if n_rows is None else (n_rows, *tree.shape)
        is_array = tree.axis is None and tree.dtype.kind not in "OU"
        return SpaceParts(None, None, shape) if is_array else None
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
        Values of Text, Sequence and Graph spaces have any length, as in ``GymnasiumRecorder``.

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
    names = {leaf.path: name for name, leaf in obs}
    following = {path: f"next_{name}" for path, name in names.items()}
    for name, leaf in obs:
        env_dict[name] = _declaration(leaf, names, int_type, float_type)
        env_dict[f"next_{name}"] = _declaration(leaf, following, int_type, float_type)
    names = {leaf.path: name for name, leaf in act}
    for name, leaf in act:
        env_dict[name] = _declaration(leaf, names, int_type, float_type)
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
        may be batches of steps, except values of Text, Sequence, Graph and OneOf spaces.

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
    if isinstance(space, spaces.Dict):
        return field_name("", leaf.path)
    name = f"{root}{first}" if isinstance(space, spaces.Tuple) else f"{root}.{first}"
    return field_name(name, tuple(deeper))


def _declaration(leaf: Leaf, names: dict[Path, str], int_type: Any, float_type: Any) -> FieldSpec:
    """Return the entry of a field, with cpprb's shape: 1 for a single value, unless it is a Box.

    ``names`` has the name of the field at each path.
    """
    if leaf.axis is not None or leaf.is_text:
        number = float_type if isinstance(leaf.space, spaces.Box) else int_type
        return leaf.declaration(names.__getitem__, number)
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
        value = _part_of(value, key)
    is_fixed = leaf.axis is None and not leaf.dtype.hasobject
    return value if is_fixed else next(leaf.collect(value, "", None))
