"""A trace comes back from its file as it was, and no character of its text is cut."""

import numpy as np
import pytest
from traces import CELLS, fake_trace

from probes.trace_store import iter_traces, read_trace, token_texts, trace_path, windows_of, write_trace
from rekey.errors import InputError

ARRAYS = ("scores", "images", "region", "sink", "template", "question", "generated", "query_index")


@pytest.mark.parametrize("condition", CELLS)
def test_a_trace_comes_back_as_it_was(tmp_path, condition):
    trace = fake_trace(condition)
    again = read_trace(write_trace(tmp_path, trace))
    for name in ("key", "model", "pair_id", "cell", "condition", "follows", "n_asked", "t_phrase", "t_after", "texts",
                 "windows", "image", "image_before", "seed", "made_with", "reread"):
        assert getattr(again, name) == getattr(trace, name), name
    for name in ARRAYS:
        assert np.array_equal(getattr(again.attention, name), getattr(trace.attention, name)), name
    assert again.maps.keys() == trace.maps.keys()
    assert all(np.array_equal(again.maps[name], trace.maps[name]) for name in trace.maps)
    assert (again.attention.t_swap, again.attention.layers) == (trace.t_phrase, trace.attention.layers)


def test_equal_traces_make_equal_bytes(tmp_path):
    first = write_trace(tmp_path / "1", fake_trace()).read_bytes()
    assert write_trace(tmp_path / "2", fake_trace()).read_bytes() == first
    assert write_trace(tmp_path / "3", fake_trace(seed=1)).read_bytes() != first


def test_a_write_that_fails_leaves_the_trace_that_was_there(tmp_path, monkeypatch):
    before = write_trace(tmp_path, fake_trace()).read_bytes()

    def half(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(np, "savez", half)
    with pytest.raises(OSError):
        write_trace(tmp_path, fake_trace())
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


def test_only_rows_that_reread_are_said_to(tmp_path):
    assert {name: fake_trace(name).reread for name in CELLS} == {
        "base": False, "probe": True, "multi-turn": True, "natural": True, "splice": False, "no swap, probe": False,
        "null swap, probe": False}


def test_windows_hold_what_there_is():
    assert windows_of(50, 200, 210, 500) == {"before": (100, 200), "phrase": (200, 210), "after": (210, 310)}
    assert windows_of(50, 60, 70, 75) == {"before": (50, 60), "phrase": (60, 70), "after": (70, 75)}
    assert windows_of(50, 50, 50, 55, 3) == {"before": (50, 50), "phrase": (50, 50), "after": (50, 53)}
    trace = fake_trace(n_before=30, n_phrase=6, n_after=20)
    assert [int(trace.window(name, 25).sum()) for name in ("before", "phrase", "after")] == [25, 6, 19]


def test_a_file_that_is_no_trace_is_named(tmp_path):
    with pytest.raises(InputError, match="holds no attention traces"):
        list(iter_traces(tmp_path))
    path = write_trace(tmp_path, fake_trace())
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match=f"{path.name}: is no attention trace"):
        read_trace(path)
    np.savez(trace_path(tmp_path, "other"), scores=np.zeros(3))
    with pytest.raises(InputError, match="other.npz: is no attention trace"):
        read_trace(trace_path(tmp_path, "other"))


def by_bytes(pieces):
    """ids and a decoder that, like byte-level ones, joins the tokens' bytes."""
    def decode(ids):
        return b"".join(pieces[n] for n in ids).decode("utf-8", "replace")
    return list(range(len(pieces))), decode


def test_split_characters_come_whole_with_the_token_that_completes_them():
    kite = "🪁".encode()
    ids, decode = by_bytes([b"a", kite[:1], kite[1:3], kite[3:], b" b", "看".encode()[:2], "看".encode()[2:] + b"!"])
    assert token_texts(ids, decode) == ("a", "", "", "🪁", " b", "", "看!")


def test_a_token_that_ends_one_character_and_begins_another_shows_the_first():
    one, two = "看".encode(), "图".encode()
    ids, decode = by_bytes([one[:1], one[1:] + two[:1], two[1:], b"."])
    assert token_texts(ids, decode) == ("", "看", "图", ".")


def test_bytes_that_are_no_character_do_not_hold_up_the_text():
    ids, decode = by_bytes([b"\xff", b"a", *[b"\xf0"] * 9, b"z"])
    texts = token_texts(ids, decode)
    assert texts[-1].endswith("z") and sum("a" in text for text in texts) == 1
    assert "".join(texts) == decode(ids)
