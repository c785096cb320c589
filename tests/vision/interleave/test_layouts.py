"""Rows of every layout become the same canonical segments, and rows that make no sense are named."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from vision.interleave.samples import documents, group, interleaved, png, ref

from zephon.errors import DataError, RecipeError
from zephon.testing import check_operator
from zephon_vision import columns
from zephon_vision.interleave import Interleave
from zephon_vision.probe_images import ProbeImages

A, B = png(20, 30, 1), png(30, 20, 2)
BYTES_A, BYTES_B = (A, None), (B, None)


def test_chat_messages_with_string_content_take_their_images_from_the_column() -> None:
    rows = [
        {
            "messages": [
                {"role": "system", "content": "Be short."},
                {"role": "user", "content": "<image>What? <image>"},
                {"role": "assistant", "content": "A cat."},
            ],
            "images": ["a/1.jpg", "a/2.jpg"],
        },
        {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}], "images": []},
    ]
    assert documents(interleaved(rows, media_root="/media")) == [
        [
            ("system", 0, False, "Be short."),
            ("user", 1, False, (None, "a/1.jpg")),
            ("user", 1, False, "What? "),
            ("user", 1, False, (None, "a/2.jpg")),
            ("assistant", 2, True, "A cat."),
        ],
        [("user", 0, False, "Hi"), ("assistant", 1, True, "Ho")],
    ]


def test_chat_messages_with_parts_have_their_images_in_them_or_in_the_column() -> None:
    url = "data:image/png;base64," + base64.b64encode(A).decode()
    parts = [
        {"type": "text", "text": "Compare <image> "},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": " with "},
        {"type": "image", "image": "b.png"},
    ]
    inline = {"messages": json.dumps([{"role": "user", "content": parts}, {"role": "assistant", "content": "Same."}])}
    want = [
        ("user", 0, False, "Compare <image> "),
        ("user", 0, False, BYTES_A),
        ("user", 0, False, " with "),
        ("user", 0, False, (None, "b.png")),
        ("assistant", 1, True, "Same."),
    ]
    assert documents(interleaved([inline])) == [want]
    placed = [
        {"type": "text", "text": "Compare <image> "},
        {"type": "image"},
        {"type": "text", "text": " with "},
        {"type": "image"},
    ]
    columnar = {
        "messages": [
            {"role": "user", "content": placed},
            {"role": "assistant", "content": [{"type": "text", "text": "Same."}]},
        ],
        "images": [{"bytes": A, "path": None}, {"bytes": None, "path": "b.png"}],
    }
    assert documents(interleaved([columnar])) == [want]


def test_a_chat_without_an_image_column_has_its_placeholder_as_text() -> None:
    rows = [
        {"messages": [{"role": "user", "content": "What is <image> in HTML?"}, {"role": "assistant", "content": "Nothing."}]}
    ]
    assert documents(interleaved(rows))[0][0] == ("user", 0, False, "What is <image> in HTML?")


def test_messages_may_say_themselves_whether_they_are_trained() -> None:
    turns = [{"role": "user", "content": "Q", "weight": None}, {"role": "assistant", "content": "no", "weight": 0}]
    rows = [
        {
            "messages": [
                *turns,
                {"role": "user", "content": "Q", "weight": 1},
                {"role": "assistant", "content": "yes", "weight": 1},
            ]
        }
    ]
    assert [s[2] for s in documents(interleaved(rows))[0]] == [False, False, True, True]


def test_an_empty_answer_stays_a_turn() -> None:
    rows = [{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": None}]}]
    assert documents(interleaved(rows)) == [[("user", 0, False, "Q"), ("assistant", 1, True, "")]]


@pytest.mark.parametrize("as_json", [False, True])
def test_llava_conversations(as_json: bool) -> None:
    talk: Any = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A cat."}]
    rows = [{"id": "1", "image": "coco/1.jpg", "conversations": json.dumps(talk) if as_json else talk}]
    assert documents(interleaved(rows)) == [
        [
            ("user", 0, False, (None, "coco/1.jpg")),
            ("user", 0, False, "\nWhat?"),
            ("assistant", 1, True, "A cat."),
        ]
    ]


def test_llava_images_may_be_a_list_or_missing_and_train_all_marks_all_text() -> None:
    talk = [{"from": "human", "value": "<image><image>?"}, {"from": "gpt", "value": "Yes"}]
    rows: list[dict[str, Any]] = [
        {"image": ["1.jpg", "2.jpg"], "conversations": talk, "system": "Look."},
        {"image": None, "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}], "system": None},
    ]
    made = documents(interleaved(rows, train="all"))
    assert made[0] == [
        ("system", 0, True, "Look."),
        ("user", 1, False, (None, "1.jpg")),
        ("user", 1, False, (None, "2.jpg")),
        ("user", 1, True, "?"),
        ("assistant", 2, True, "Yes"),
    ]
    assert len(made[1]) == 2


@pytest.mark.parametrize("order", [("user", "assistant"), ("assistant", "user")])
def test_finevision_pairs_are_read_by_name(order: tuple[str, str]) -> None:
    said = [{"user": "Q1 <image>", "assistant": "A1"}, {"user": "Q2", "assistant": "A2"}]
    pair = pa.struct([pa.field(name, pa.string()) for name in order])
    image = pa.struct([pa.field("path", pa.string()), pa.field("bytes", pa.binary())])  # this order differs, too
    schema = pa.schema([("images", pa.list_(image)), ("texts", pa.list_(pair)), ("source", pa.string())])
    rows = [{"images": [ref(20, 30, 1), ref(30, 20, 2)], "texts": said, "source": "x"}]
    assert documents(interleaved(rows, schema)) == [
        [
            ("user", 0, False, BYTES_A),
            ("user", 0, False, BYTES_B),
            ("user", 0, False, "Q1 <image>"),
            ("assistant", 1, True, "A1"),
            ("user", 2, False, "Q2"),
            ("assistant", 3, True, "A2"),
        ]
    ]


def test_obelics_documents() -> None:
    rows = [{"images": ["1.jpg", None, "2.jpg", None], "texts": [None, "One.", None, "Two."], "metadata": "[]"}]
    assert documents(interleaved(rows)) == [
        [(None, 0, False, (None, "1.jpg")), (None, 0, True, "One."), (None, 0, False, (None, "2.jpg")), (None, 0, True, "Two.")]
    ]


def test_obelics_with_neither_image_nor_text_has_a_missing_image() -> None:
    rows = [{"images": [{"bytes": A, "path": None}, None, None], "texts": [None, "One.", None]}]
    assert documents(interleaved(rows))[0][2] == (None, 0, False, (None, None))


def test_mmc4_puts_images_before_the_sentence_that_they_match() -> None:
    infos = [
        {"image_name": "x.png", "raw_url": "http://x/x.png", "matched_text_index": 1, "matched_sim": 0.3},
        {"image_name": "y.png", "raw_url": "http://x/y.png", "matched_text_index": 1, "matched_sim": 0.2},
    ]
    rows = [{"text_list": ["One.", "Two.", "Three."], "image_info": infos, "similarity_matrix": [[0.1]]}]
    assert documents(interleaved(rows)) == [
        [
            (None, 0, True, "One. "),
            (None, 0, False, (None, "x.png")),
            (None, 0, False, (None, "y.png")),
            (None, 0, True, "Two. "),
            (None, 0, True, "Three."),
        ]
    ]


@pytest.mark.parametrize(
    ("row", "ref_"),
    [
        ({"image": {"bytes": A, "path": "1.png"}, "caption": "A cat."}, (A, "1.png")),
        ({"jpg": A, "txt": b"A cat.", "__key__": "1"}, BYTES_A),
        ({"png": A, "txt": "A cat."}, BYTES_A),
        ({"image": A, "text": "A cat."}, BYTES_A),
        ({"image": base64.b64encode(A).decode(), "text": "A cat."}, BYTES_A),
        ({"image": "cats/1.png", "text": "A cat."}, (None, "cats/1.png")),
        ({"picture": {"bytes": A, "path": None}, "text": "A cat."}, BYTES_A),
    ],
)
def test_image_and_caption(row: dict[str, Any], ref_: Any) -> None:
    assert documents(interleaved([row])) == [[(None, 0, False, ref_), (None, 0, True, "A cat.")]]


def test_webdataset_members_with_json_are_looked_into_row_by_row() -> None:
    talk = {"conversations": [{"from": "human", "value": "<image>?"}, {"from": "gpt", "value": "!"}], "image": "k.jpg"}
    rows = [
        {"__key__": "1", "1.jpg": B, "0.jpg": A, "json": json.dumps({"texts": [{"user": "Q", "assistant": "A"}]}).encode()},
        {"__key__": "2", "1.jpg": None, "0.jpg": A, "json": json.dumps(talk).encode()},
        {"__key__": "3", "1.jpg": None, "0.jpg": B, "json": json.dumps({"caption": "B"}).encode()},
    ]
    made = documents(interleaved(rows))
    assert made[0][:2] == [("user", 0, False, BYTES_A), ("user", 0, False, BYTES_B)]
    assert made[1][0] == ("user", 0, False, BYTES_A)
    assert made[2] == [(None, 0, False, BYTES_B), (None, 0, True, "B")]


def test_json_rows_may_hold_their_images_themselves() -> None:
    value = {"images": ["x.jpg", None], "texts": [None, "t"]}
    assert documents(interleaved([{"json": json.dumps(value)}])) == [[(None, 0, False, (None, "x.jpg")), (None, 0, True, "t")]]


FORMS: list[tuple[str, Any, Any]] = [
    ("binary", pa.array([[A, B]], pa.list_(pa.binary())), [BYTES_A, BYTES_B]),
    ("large_binary", pa.array([[A, B]], pa.large_list(pa.large_binary())), [BYTES_A, BYTES_B]),
    ("views", pa.array([[A, B]], pa.list_(pa.binary_view())), [BYTES_A, BYTES_B]),
    ("nested", pa.array([[[A], [], [B]]], pa.list_(pa.list_(pa.binary()))), [BYTES_A, BYTES_B]),
    ("paths", pa.array([["a.png", "b.png"]]), [(None, "a.png"), (None, "b.png")]),
    ("path views", pa.array([["a.png", "b.png"]], pa.list_(pa.string_view())), [(None, "a.png"), (None, "b.png")]),
    ("json", pa.array(['["a.png", "b.png"]']), [(None, "a.png"), (None, "b.png")]),
    ("only bytes", pa.array([[{"bytes": A}, {"bytes": B}]]), [BYTES_A, BYTES_B]),
    ("only paths", pa.array([[{"path": "a.png"}, {"path": "b.png"}]]), [(None, "a.png"), (None, "b.png")]),
    ("nulls", pa.array([[None, {"bytes": None, "path": None}]], pa.list_(columns.IMAGE_REF)), [(None, None), (None, None)]),
    ("base64", pa.array([[base64.b64encode(A).decode(), base64.encodebytes(B).decode()]]), [BYTES_A, BYTES_B]),
    ("fixed", pa.array([[A, B]], pa.list_(pa.binary(), 2)), [BYTES_A, BYTES_B]),
    ("dictionary", pa.array([["a.png", "b.png"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))), [(None, "a.png"), (None, "b.png")]),
]  # fmt: skip


@pytest.mark.parametrize(("array", "want"), [f[1:] for f in FORMS], ids=[f[0] for f in FORMS])
def test_images_in_all_forms(array: Any, want: Any) -> None:
    texts = pa.array([[{"user": "Q", "assistant": "A"}]])
    made = Interleave().bind()(pa.RecordBatch.from_arrays([array, texts], names=["images", "texts"]))
    assert [s[3] for s in documents(made)[0]][:2] == want
    # a slice of a larger group is the same
    three = pa.RecordBatch.from_arrays(
        [pa.concat_arrays([array] * 3), pa.concat_arrays([texts] * 3)], names=["images", "texts"]
    )
    assert documents(Interleave().bind()(three.slice(1, 1))) == documents(made)


@pytest.mark.parametrize("text", ["data:image/png;base64,{}", "data:;base64,{}", "{}", "  {}"])
@pytest.mark.parametrize("newlines", [False, True])
def test_base64_with_and_without_prefix_and_newlines(text: str, newlines: bool) -> None:
    encoded = base64.encodebytes(A).decode() if newlines else base64.b64encode(A).decode()
    rows = [{"image": text.format(encoded), "caption": "x"}]
    if text.startswith(" "):
        rows = [{"image": text.format(encoded).strip(), "caption": "x"}]
    assert documents(interleaved(rows))[0][0][3] == BYTES_A


def error_of(rows: list[dict[str, Any]], **settings: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        Interleave(**settings).bind()(group(rows))
    return caught.value


GOOD = {"messages": [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "A"}], "images": ["1.jpg"]}


@pytest.mark.parametrize(("images", "text"), [(0, "<image>"), (1, "<image><image>"), (2, "<image>"), (1, "none")])
def test_images_and_placeholders_must_match_one_to_one(images: int, text: str) -> None:
    bad = {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "A"}], "images": ["1.jpg"] * images}
    error = error_of([GOOD, GOOD, bad])
    assert "images don't match their places" in error.message
    assert error.where.row == 102


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"image": "http://example.org/1.jpg", "caption": "x"}, "the network is off"),
        ({"image": "../../etc/passwd", "caption": "x"}, "leads out of media_root"),
        ({"image": "/etc/passwd", "caption": "x"}, "leads out of media_root"),
        ({"image": "file:///media/%2e%2e%2fetc/passwd", "caption": "x"}, "leads out of media_root"),
        ({"image": "file://localhost/etc/passwd", "caption": "x"}, "leads out of media_root"),
        ({"image": "file:///media/%FF.jpg", "caption": "x"}, "are not UTF-8"),
        ({"conversations": [{"from": "alien", "value": "x"}]}, "unknown role"),
        ({"conversations": "[{"}, "no JSON"),
        ({"messages": [{"role": "user", "content": [{"type": "video", "video": "x.mp4"}]}]}, "'video'"),
        ({"images": ["a.jpg"], "texts": ["both"]}, "overlap"),
        ({"images": ["a.jpg", None], "texts": [None]}, "not parallel"),
        ({"text_list": ["a"], "image_info": [{"matched_text_index": 3, "image_name": "x"}]}, "matches no text"),
        ({"json": "[1, 2]"}, "is no object"),
        ({"json": '{"a": 1}'}, "no known layout; it has a (other)"),
        ({"json": "nope"}, "is broken"),
    ],
)
def test_rows_that_make_no_sense_are_named(row: dict[str, Any], message: str) -> None:
    error = error_of([row], media_root="/media")
    assert message in error.message
    assert error.where.row == 100


@pytest.mark.parametrize(
    "rows",
    [
        [{"image": "http://example.org/1.jpg", "caption": "x"}, {"image": "https://example.org/2.jpg", "caption": "x"}],
        [{"image": "../1.jpg", "caption": "x"}, {"image": "../2.jpg", "caption": "x"}],
        [{"conversations": [{"from": "alien", "value": "x"}]}, {"conversations": [{"from": "robot", "value": "x"}]}],
        [{"messages": [{"role": "user", "content": [{"type": t}]}]} for t in ("video", "audio")],
        [{"messages": [{"role": "user", "content": [{"type": "image", "index": n}]}], "images": ["a.jpg"]} for n in (3, 4)],
    ],
    ids=["URLs", "paths", "roles", "parts", "numbers"],
)
def test_errors_of_one_kind_are_counted_as_one(rows: list[dict[str, Any]]) -> None:
    first, second = (error_of([row], media_root="/media").message for row in rows)
    assert first != second
    # by what stands before the colon
    assert first.partition(":")[0] == second.partition(":")[0]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_base64_that_is_cut_off_is_a_bad_image_and_no_path(cut: int, tmp_path: Path) -> None:
    jpeg = base64.b64encode(b"\xff\xd8\xff\xe0" + bytes(range(200))).decode()
    assert jpeg.startswith("/")
    root = str(tmp_path)
    made = interleaved([{"image": jpeg[: -cut - 4], "caption": "x"}, {"image": "ok.jpg", "caption": "x"}], media_root=root)
    assert made.num_rows == 2
    assert check_operator(ProbeImages(media_root=root), [made])[0].column("image_info").to_pylist()[0][0]["error"] is not None


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///media/a%20b/%C3%BC.jpg", "a b/ü.jpg"),
        ("file://localhost/media/1.jpg", "1.jpg"),
        ("file://a%2520b.jpg", "a%20b.jpg"),
        ("a%20b.jpg", "a%20b.jpg"),
    ],
)
def test_a_file_url_is_the_path_that_it_stands_for(url: str, path: str) -> None:
    assert documents(interleaved([{"image": url, "caption": "x"}], media_root="/media"))[0][0][3] == (None, path)


def test_urls_are_only_kept_when_allowed() -> None:
    rows = [{"image": "https://example.org/1.jpg", "caption": "x"}]
    assert documents(interleaved(rows, allow_network=True, media_root="/m"))[0][0][3] == (None, "https://example.org/1.jpg")
    assert "does not fetch" in str(error_of(rows))


def test_lone_surrogates_become_replacement_characters() -> None:
    rows = [{"json": r'{"caption": "a\ud800b \ud83d\ude42", "image": "x.png"}'}]
    assert documents(interleaved(rows))[0][1][3] == "a\ufffdb 🙂"


def test_a_schema_of_no_known_layout_says_what_it_found() -> None:
    rows = group([{"foo": 1, "bar": ["x"]}])
    with pytest.raises(RecipeError, match=r"foo: int64, bar: list<.*string>") as caught:
        Interleave().output_schema(rows.schema)
    assert "messages, llava" in str(caught.value)
    with pytest.raises(RecipeError, match="layout 'llava'"):
        Interleave(layout="llava").bind()(rows)
    with pytest.raises(RecipeError, match="did you mean 'obelics'"):
        Interleave(layout="obelisc")


def test_text_alone_is_not_taken_where_images_may_hide_beside_it() -> None:
    assert documents(interleaved([{"text": "only text"}])) == [[(None, 0, True, "only text")]]
    with pytest.raises(RecipeError, match="thumbnail: binary"):
        Interleave().output_schema(group([{"text": "x", "thumbnail": b"1"}]).schema)


def test_columns_may_be_named_and_others_kept() -> None:
    rows = [{"shot": A, "said": "hello", "id": 7}]
    made = interleaved(rows, layout="caption", image_column="shot", text_column="said", keep="id")
    assert documents(made) == [[(None, 0, False, BYTES_A), (None, 0, True, "hello")]]
    assert made.column("id").to_pylist() == [7]
    talk = [{"turns": [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": "A"}], "pic": "1.png"}]
    assert len(documents(interleaved(talk, image_column="pic", text_column="turns"))[0]) == 2


def test_provenance_and_schema_are_kept() -> None:
    rows = group([GOOD] * 5)
    made = Interleave().bind()(rows)
    assert made.column("_row").to_pylist() == list(range(100, 105))
    assert made.schema == Interleave().output_schema(rows.schema)
    made.validate(full=True)


def test_images_in_order_are_not_copied() -> None:
    rows = group([{"image": ref(20, 30, 1), "caption": str(n)} for n in range(50)])
    made = Interleave().bind()(rows)
    given = rows.column("image").field("bytes").buffers()[2].address
    data: Any = made.column(columns.IMAGES)
    assert data.values.field("bytes").buffers()[2].address == given
    assert np.array_equal(data.offsets.to_numpy(), np.arange(51))
