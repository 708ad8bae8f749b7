"""Files that survive a kill."""

import json

import pytest

from rekey.errors import InputError
from rekey.store import Journal, parse_shard, read_jsonl, shard_of, write_atomic, write_jsonl


def test_a_journal_goes_on_where_it_was(tmp_path):
    path = tmp_path / "j.jsonl"
    with Journal(path) as journal:
        journal.append({"n": 1, "text": "ü"})
    with Journal(path) as journal:
        journal.append({"n": 2})
        assert [line["n"] for line in journal.lines] == [1, 2]
    assert path.read_bytes() == '{"n":1,"text":"ü"}\n{"n":2}\n'.encode()


def test_every_torn_tail_is_cut_and_nothing_else(tmp_path):
    path = tmp_path / "j.jsonl"
    whole = '{"n":1,"text":"ü"}\n{"n":2,"text":"é"}\n'.encode()
    first = whole.index(b"\n") + 1
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        with Journal(path) as journal:
            assert len(journal.lines) == (length >= first) + (length >= len(whole)), length
            journal.append({"n": 9})
        assert [line["n"] for line in read_jsonl(path)] == [1, 2][:len(journal.lines) - 1] + [9]


def test_a_last_line_of_zeros_is_torn_too(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(b'{"n":1}\n\0\0\0\0\n')      # what some file systems leave after a power failure
    with Journal(path) as journal:
        assert journal.lines == [{"n": 1}]


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text('{"n":1}\n{"n":\n{"n":3}\n')
    with pytest.raises(InputError, match=r"j.jsonl line 2: not JSON .* expected one JSON object per line"):
        read_jsonl(path)


def test_lines_can_be_dropped(tmp_path):
    with Journal(tmp_path / "j.jsonl") as journal:
        for n in range(4):
            journal.append({"n": n})
        journal.keep(lambda line: line["n"] % 2)
        journal.append({"n": 5})
    assert [line["n"] for line in read_jsonl(tmp_path / "j.jsonl")] == [1, 3, 5]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "x.jsonl"
    write_jsonl(path, [{"n": 1}])

    def records():
        yield {"n": 2}
        raise RuntimeError("killed")
    with pytest.raises(RuntimeError):
        write_jsonl(path, records())
    write_atomic(tmp_path / "y", "text")
    assert json.loads(path.read_text()) == {"n": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.jsonl", "y"]


def test_shards_are_a_partition():
    records = list(range(11))
    shards = [shard_of(records, (i, 4)) for i in range(1, 5)]
    assert sorted(sum(shards, [])) == records
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert shard_of(records, None) == records


@pytest.mark.parametrize("text", ["0/4", "5/4", "a/b", "3", "1/0", "1/2/3", ""])
def test_bad_shards_are_refused(text):
    with pytest.raises(InputError, match="expected i/n"):
        parse_shard(text)
