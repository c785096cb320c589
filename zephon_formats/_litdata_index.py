"""What an `index.json` of LitData says: the chunks, and the columns that their items have.

The description of the format is `litdata` 0.2.76 itself: `streaming/writer.py` (index and chunks), `streaming/serializers.py` (leaves),
`utilities/_pytree.py` (`data_spec`), `types.py` (`config.types`, the types that the writer saw over all rows).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from zephon.plugin import DataError, FileInfo, Store

INDEX = "index.json"
PYTREE, TOKENS, PARQUET, TEMPORAL = "PyTreeLoader", "TokensLoader", "ParquetLoader", "TemporalArrayLoader"

# the numbers of dtypes in `data_format` and in the heads of arrays: litdata's constants.py
# fmt: off
TORCH_DTYPES = (
    "float32", "float32", "float64", "float64", "complex64", "complex64", "complex128", "complex128", "float16", "float16",
    "bfloat16", "uint8", "int8", "int16", "int16", "int32", "int32", "int64", "int64", "bool", "uint16",
)
NUMPY_DTYPES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", "bool",
)
# fmt: on

MEDIA = pa.struct([pa.field("bytes", pa.binary()), pa.field("path", pa.string())])
"""What Hugging Face's Image, Audio and Video features store; `path` is always null here."""
ARRAY = pa.struct([pa.field("data", pa.binary()), pa.field("dtype", pa.string()), pa.field("shape", pa.list_(pa.int64()))])
"""An array whose type and shape are its own; the same as for MDS."""
_MEDIA_FORMATS = frozenset(("jpeg", "image", "pil", "video", "audio", "file", "tifffile", "tiff", "nifti", "mesh", "pdf"))
_NOT_IN_ARROW = _MEDIA_FORMATS | {"jpeg_array", "text", "graph", "tensor", "no_header_tensor", "no_header_numpy"}
_SCALARS: dict[str, pa.DataType] = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "bytes": pa.binary(),
    "null": pa.null(),
}


@dataclass(frozen=True)
class Leaf:
    """One value of an item: its place among the item's leaves, its serializer's name, and the type that it gets here."""

    index: int
    format: str
    kind: pa.DataType
    unsure: bool = False
    """Whether only the data can tell the type, and nobody has looked yet."""


@dataclass(frozen=True)
class Branch:
    """A dict, list or tuple of the item. `kind` is a struct, or a list where it has no names and its parts are of one type."""

    children: tuple[Leaf | Branch, ...]
    kind: pa.DataType


@dataclass(frozen=True)
class Column:
    """A column; `node` None: no chunk that isn't an Arrow one has it."""

    name: str
    kind: pa.DataType
    node: Leaf | Branch | None


@dataclass(frozen=True)
class Stream:
    """One `index.json`, less its chunks."""

    loader: str
    formats: tuple[str, ...]
    columns: tuple[Column, ...]
    compression: str
    level: str
    frame_rows: int
    in_arrow: bool
    """Whether its chunks should be Arrow ones; a chunk itself says whether it is."""
    packed_arrow: bool
    temporal: Any

    @property
    def schema(self) -> pa.Schema:
        """Of all columns."""
        return pa.schema([pa.field(c.name, c.kind) for c in self.columns])

    def leaves(self) -> list[Leaf]:
        """All leaves of an item."""
        return [leaf for column in self.columns for leaf in self.leaves_of(column)]

    def leaves_of(self, column: Column) -> list[Leaf]:
        """The leaves of one column."""
        return _leaves(column.node)


def _leaves(node: Leaf | Branch | None) -> list[Leaf]:
    if node is None:
        return []
    return [node] if isinstance(node, Leaf) else [leaf for child in node.children for leaf in _leaves(child)]


# ---------------------------------------------------------------------------------------------------------- the index


def is_index(content: Any) -> bool:
    """Whether a parsed `index.json` is LitData's (MDS has one of that name too)."""
    return isinstance(content, dict) and isinstance(content.get("chunks"), list) and isinstance(content.get("config"), dict)


def load_index(store: Store, path: str) -> Any:
    """The parsed file. Raises `DataError` where it isn't JSON."""
    try:
        return json.loads(store.read(path))
    except ValueError as error:
        raise DataError(f"{path!r} is not JSON: {error}", hint="was it written to its end?") from error


def config_of(content: Any, path: str) -> dict[str, Any]:
    """The part of an index that says how to decode its chunks, as plain values.

    Raises:
        DataError: it isn't LitData's, is encrypted, or is of a layout that is not known here.
    """
    if not is_index(content):
        raise DataError(f"{path!r} is not an index of LitData: it has no 'chunks' and 'config'")
    config = content["config"]
    if config.get("encryption"):
        how = config["encryption"]
        raise DataError(
            f"{path!r}: the chunks are encrypted ({how.get('algorithm')}, by {how.get('level')}), which is not read here",
            hint="write them anew without encryption",
        )
    formats = config.get("data_format") or []
    loader = config.get("item_loader")
    if loader is None:  # older than the key; then tokens were told by their format
        loader = TOKENS if len(formats) == 1 and formats[0].startswith("no_header_tensor") else PYTREE
    if loader not in (PYTREE, TOKENS, PARQUET, TEMPORAL):
        raise DataError(f"{path!r}: chunks of the item loader {loader!r} are not known here")
    names = ("data_format", "data_spec", "types", "compression", "compression_level", "compression_batch_size",
             "ipc_compression", "temporal_schema")  # fmt: skip
    return {"item_loader": loader, **{name: config[name] for name in names if config.get(name) is not None}}


def chunks_of(content: Any, path: str) -> Iterator[dict[str, Any]]:
    """File name, rows, bytes and tokens of each chunk. Raises `DataError` where one of them is missing."""
    for number, chunk in enumerate(content["chunks"]):
        try:
            name, rows, dim = chunk["filename"], int(chunk["chunk_size"]), chunk.get("dim")
            nbytes = int(chunk.get("chunk_bytes") or 0)
            made = {"name": str(name), "rows": rows, "bytes": nbytes, "tokens": None if dim is None else int(dim)}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path!r}: entry {number} of 'chunks' is not one of LitData's: {error!r}") from error
        if rows < 0 or nbytes < 0:
            raise DataError(f"{path!r}: entry {number} of 'chunks' has {rows} rows and {nbytes} bytes")
        yield made


def find_indexes(store: Store, files: Sequence[FileInfo]) -> list[tuple[str, bool]]:
    """The index files for `files`, in path order, and whether each was among them (else it lies beside one of them)."""
    found = [(f.path, True) for f in files if base_name(f.path) == INDEX]
    if found:
        return found
    beside = []
    for directory in dict.fromkeys(f.path[: -len(base_name(f.path))] for f in files):
        try:
            store.read(directory + INDEX, 0, 1)
        except DataError:
            continue
        beside.append((directory + INDEX, False))
    return beside


def base_name(path: str) -> str:
    """The last part of a path or URL."""
    return path.rsplit("/", 1)[-1]


# -------------------------------------------------------------------------------------------------------- the columns


@lru_cache(maxsize=64)
def stream_of(text: str) -> Stream:
    """A stream from its configuration as JSON (`config_of`, and what was `seen` in its first chunk).

    Raises:
        DataError: a `data_spec`, type or format that can't be understood, or two columns of one name.
    """
    config = json.loads(text)
    formats = tuple(map(str, config.get("data_format") or ()))
    loader = config["item_loader"]
    types = config.get("types")
    temporal = config.get("temporal_schema")
    if loader == TEMPORAL:
        columns = tuple(Column(name, temporal_kind(temporal["fields"][name]), None) for name in temporal["field_order"])
    elif loader == TOKENS:
        columns = (Column("input_ids", _token_kind(formats), None),)
    elif loader == PARQUET:
        columns = ()
    else:
        columns = _pytree_columns(config, formats, types)
    return Stream(
        loader,
        formats,
        columns,
        str(config.get("compression") or ""),
        str(config.get("compression_level") or "chunk"),
        int(config.get("compression_batch_size") or 256),
        loader == PYTREE and _is_arrow(formats, types),
        bool(config.get("ipc_compression")),
        temporal,
    )


def _is_arrow(formats: Sequence[str], types: Any) -> bool:
    if not isinstance(types, Mapping) or not types or any(key_of(f) in _NOT_IN_ARROW for f in formats):
        return False
    return all(_is_json(kind) for kind in types.values())


def _is_json(kind: Any) -> bool:
    """Whether the writer puts values of this type into an Arrow table (`_is_arrow_json_schema` there)."""
    name = kind if isinstance(kind, str) else kind.get("type") if isinstance(kind, Mapping) else None
    if isinstance(kind, Mapping) and name == "struct":
        return all(map(_is_json, (kind.get("fields") or {}).values()))
    if isinstance(kind, Mapping) and name in ("list", "map"):
        return _is_json(kind.get("value", "json"))
    return name in _SCALARS


def _pytree_columns(config: Mapping[str, Any], formats: Sequence[str], types: Any) -> tuple[Column, ...]:
    try:
        spec = json.loads(config["data_spec"])[1]
        seen = {int(number): _type_from(text) for number, text in config.get("seen", {}).items()}
        builder = _Builder(formats, seen)
        parts = _parts(spec)
        is_dict = parts is not None and not _is_positional(spec)
        known = types if is_dict and isinstance(types, Mapping) else {}
        nodes = {
            name: builder.build(child, known.get(name))
            for name, child in (parts if parts is not None else [(_root_name(formats), spec)])
        }
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DataError(f"the index has a 'data_spec' or 'data_format' that can't be understood: {error!r}") from error
    if builder.used != len(formats) or len(nodes) != (1 if parts is None else len(parts)):
        raise DataError(f"the index names {len(formats)} formats for {builder.used} leaves in {len(nodes)} columns")
    arrow = _is_arrow(formats, known)
    columns = [
        Column(name, arrow_type(known[name]) if arrow and name in known else node.kind, node) for name, node in nodes.items()
    ]
    extra = [name for name, kind in known.items() if name not in nodes and (_is_json(kind) or kind_name(kind) == "json")]
    return (*columns, *(Column(name, arrow_type(known[name]), None) for name in extra))


class _Builder:
    """Walks a `data_spec`, numbering its leaves."""

    def __init__(self, formats: Sequence[str], seen: Mapping[int, pa.DataType]) -> None:
        self.formats, self.seen = formats, seen
        self.used = 0

    def build(self, spec: Any, types: Any) -> Leaf | Branch:
        parts = _parts(spec)
        if parts is None:
            number = self.used
            self.used += 1
            name = self.formats[number]
            if number in self.seen:
                return Leaf(number, name, self.seen[number])
            return Leaf(number, name, leaf_kind(name, types), _needs_look(name, types))
        fields = types.get("fields") or {} if isinstance(types, Mapping) else {}
        children = tuple(self.build(child, fields.get(name)) for name, child in parts)
        names = [name for name, _ in parts]
        if len(set(names)) < len(names):
            raise ValueError(f"a dict with two keys of one name among {names}")
        kinds = {child.kind for child in children}
        if _is_positional(spec) and len(kinds) <= 1:
            return Branch(children, pa.list_(kinds.pop() if kinds else pa.null()))
        return Branch(children, pa.struct([pa.field(n, c.kind) for n, c in zip(names, children, strict=True)]))


def _parts(spec: Mapping[str, Any]) -> list[tuple[str, Any]] | None:
    """The children of a node of a `data_spec` with their names; None: it is a leaf."""
    if spec["type"] is None:
        return None
    context = spec["context"]
    if isinstance(context, str) and spec["type"] in ("builtins.dict", "collections.OrderedDict"):
        names = json.loads(context)
    elif spec["type"] == "collections.defaultdict":
        names = context["dict_context"]
    else:
        names = range(len(spec["children_spec"]))
    return list(zip(map(str, names), spec["children_spec"], strict=True))


def _is_positional(spec: Mapping[str, Any]) -> bool:
    return spec["type"] not in ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")


def _root_name(formats: Sequence[str]) -> str:
    """The name of the only column where an item is a bare value."""
    key = key_of(formats[0])
    if key in ("str", "text"):
        return "text"
    return "image" if key in ("jpeg", "image", "pil") else "value"


# ----------------------------------------------------------------------------------------------------------- the types


def key_of(format_name: str) -> str:
    """A serializer's name without what follows the colon."""
    return format_name.split(":", 1)[0]


def kind_name(kind: Any) -> str:
    """The name of a type in `config.types`."""
    return str(kind.get("type", "json")) if isinstance(kind, Mapping) else str(kind)


def arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type of a type in `config.types`. What has no single type is a string that holds its JSON text."""
    name = kind_name(kind)
    if isinstance(kind, Mapping):
        if name == "list":
            return pa.list_(arrow_type(kind.get("value", "json")))
        if name == "map":
            return pa.map_(pa.string(), arrow_type(kind.get("value", "json")))
        if name == "struct":
            return pa.struct([pa.field(n, arrow_type(k)) for n, k in (kind.get("fields") or {}).items()])
    return _SCALARS.get(name, pa.string())


def leaf_kind(format_name: str, types: Any) -> pa.DataType:
    """The Arrow type of a leaf, from its serializer and, for JSON and pickles, from what the writer saw.

    Raises:
        ValueError: a dtype that Arrow has no type for.
    """
    key = key_of(format_name)
    if key in _MEDIA_FORMATS:
        return MEDIA
    if key in ("no_header_numpy", "no_header_tensor"):
        return pa.list_(number_type(dtype_of(format_name)))
    if key == "json":
        return pa.string() if types is None else arrow_type(types)
    if key == "pickle":
        return pa.string() if types is None or not _is_json(types) else arrow_type(types)
    fixed: dict[str, pa.DataType] = {
        "jpeg_array": pa.list_(MEDIA),
        "numpy": ARRAY,
        "tensor": ARRAY,
        "text": pa.string(),
        **_SCALARS,
    }
    return fixed.get(key, pa.binary())  # a graph, or a serializer of the user's own: its bytes


def _needs_look(format_name: str, types: Any) -> bool:
    key = key_of(format_name)
    return key in ("numpy", "tensor") or (
        key == "pickle" and (types is None or not _is_json(types) or kind_name(types) == "null")
    )


def dtype_of(format_name: str) -> str:
    """The dtype's name in `no_header_numpy:2` and the like. Raises `ValueError`."""
    key, _, number = format_name.partition(":")
    table = NUMPY_DTYPES if "numpy" in key else TORCH_DTYPES
    if not number.isdigit() or int(number) >= len(table):
        raise ValueError(f"the format {format_name!r} has a dtype that is not known here")
    return table[int(number)]


def number_type(dtype: str) -> pa.DataType:
    """The Arrow type of a number; a complex one is a pair (real, imaginary). Raises `ValueError`."""
    if dtype.startswith("complex"):
        return pa.list_(pa.float32() if dtype == "complex64" else pa.float64(), 2)
    if dtype == "bfloat16":
        raise ValueError("Arrow has no type for bfloat16")
    return pa.type_for_alias(dtype)  # type: ignore[call-overload, no-any-return]


def _token_kind(formats: Sequence[str]) -> pa.DataType:
    try:
        dtype = dtype_of(formats[0])
        return pa.list_(pa.int32() if "int" in dtype else number_type(dtype))
    except (ValueError, IndexError) as error:
        raise DataError(f"the index is one of tokens, but its format {list(formats)} is not: {error}") from error


def temporal_kind(field: Mapping[str, Any]) -> pa.DataType:
    """The type of a field of a temporal set: a list over frames, of numbers or of fixed-size lists of them."""
    import numpy as np  # noqa: PLC0415 - only for the spelling of dtypes such as '<f4'

    kind = number_type(np.dtype(field["dtype"]).name)
    for size in reversed(field["shape"]):
        kind = pa.list_(kind, size)
    return pa.list_(kind)


def type_text(kind: pa.DataType) -> str:
    """A type as text that `stream_of` reads back from `seen`."""
    return base64.b64encode(pa.schema([pa.field("", kind)]).serialize().to_pybytes()).decode()


def _type_from(text: str) -> pa.DataType:
    kind: pa.DataType = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0).type
    return kind
