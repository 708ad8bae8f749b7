"""Benchmarks in and out: what comes in is what was in the file, and what goes out comes back."""

from __future__ import annotations

import base64
import csv
import dataclasses
import importlib.util
import io
import json
from collections import Counter
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from experiments.cli import main as rekey
from rekey.benchmark_rows import RowError, settle_answer, split_options
from rekey.benchmarks import detect_format, export_items, import_items, read_items
from rekey.benchmarks_vstar import SUFFIX, shuffled
from rekey.errors import InputError
from rekey.geometry import Box
from rekey.images import load_image
from rekey.lmms_task import parse_letter
from rekey.records import Item, SamplingRecord, Slot, VisualKey, to_json
from rekey.store import write_jsonl


def photo(seed: int, file_format: str = "PNG", **options) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (12, 16, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, file_format, **options)
    return buffer.getvalue()


def text_image(seed: int) -> str:
    return base64.b64encode(photo(seed)).decode()


def tsv(path: Path, header: list[str], *rows: list[str], line_end: str = "\n") -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator=line_end).writerows([header, *rows])
    return path


def by_id(items) -> dict[str, Item]:
    return {item.item_id: item for item in items}


# --------------------------------------------------------------------------- options and answer

def test_empty_options_are_dropped_and_letters_move_up():
    assert settle_answer(("red", " ", "blue", ""), "C") == (("red", "blue"), "B")


@pytest.mark.parametrize("text", ["None", "NA", "null", "1e5", "007", "nan", "True"])
def test_words_that_pandas_eats_stay_options_and_answers(text):
    assert settle_answer((text, "blue"), "A") == ((text, "blue"), "A")
    assert settle_answer((), text) == ((), text)


@pytest.mark.parametrize(("options", "answer", "message"), [
    (("red", "blue"), "C", "answer 'C' has no option; expected one of A, B"),
    (("red", "", "blue"), "B", "answer 'B' has no option; expected one of A, C"),
    (("red", "red "), "A", "options A and B are the same: 'red'"),
    (("red", "blue"), "blue", "it is the text of option B"),
    (("red", "blue"), " ", "no answer"),
    (("red", ""), "A", "only one option"),
])
def test_an_answer_without_an_option_is_refused(options, answer, message):
    with pytest.raises(RowError, match=message.replace("(", r"\(")):
        settle_answer(options, answer)


def test_an_answer_text_counts_only_where_the_format_allows_it_and_never_as_one_letter():
    assert settle_answer(("red", "blue"), "blue", may_be_text=True) == (("red", "blue"), "B")
    with pytest.raises(RowError):
        settle_answer(("H", "D"), "H", may_be_text=True)


def test_options_are_split_out_of_the_text_in_order():
    assert split_options("Is (B) near? (A) yes (see B) (B) no\nAnswer with the option's letter from the "
                         "given choices directly.") == ("Is (B) near?", ("yes (see B)", "no"))
    assert split_options("What is it?") == ("What is it?", ())


def test_all_191_published_vstar_texts_split_into_their_published_options(data_pack):
    lines = (data_pack / "rekey/vstar/vstar_metadata.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 191
    for row in rows:
        assert split_options(row["source_text"]) == (row["stem"], tuple(row["options"].values()))


# ------------------------------------------------------------------------------ VLMEvalKit TSV

def test_a_tsv_row_comes_in_whole(tmp_path):
    source = tsv(tmp_path / "bench.tsv",
                 ["index", "image", "question", "hint", "A", "B", "C", "answer", "category"],
                 ["7", text_image(7), 'Line one\r\nline "two"\tand tab', "look up",
                  "007", "", "naïve 赤", "C", "c"],
                 line_end="\r\n")
    report = import_items(source, tmp_path / "out")
    (item,) = report.items
    assert report.format == "VLMEvalKit TSV" and not report.rejected
    assert item == read_items(tmp_path / "out")[0]
    assert item.question == 'Hint: look up\nLine one\nline "two"\tand tab'
    assert (item.options, item.answer, item.category) == (("007", "naïve 赤"), "B", "c")
    assert (tmp_path / "out" / item.image).read_bytes() == photo(7)
    assert load_image(tmp_path / "out" / item.image).sha256 == item.image_sha256


def test_images_may_be_references_lists_or_paths(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "p.jpg").write_bytes(photo(3, "JPEG"))
    source = tsv(tmp_path / "bench.tsv", ["index", "image", "image_path", "question", "answer"],
                 ["0", "1", "", "forward reference?", "yes"],
                 ["1", f"['{text_image(1)}']", "", "list of one?", "yes"],
                 ["2", "", "elsewhere/p.jpg", "by name in --images?", "yes"],
                 ["3", "9", "", "dangling?", "yes"],
                 ["4", f"['{text_image(1)}', '{text_image(2)}']", "", "two images?", "yes"])
    report = import_items(source, tmp_path / "out", images=tmp_path / "pictures")
    items = by_id(report.items)
    assert sorted(items) == ["0", "1", "2"]
    assert items["0"].image == items["1"].image
    assert (tmp_path / "out" / items["2"].image).read_bytes() == photo(3, "JPEG")
    assert [row.reason for row in report.rejected] == [
        "no image: the cell refers to row '9', which holds none",
        "2 images in column 'image'; an item has one"]
    assert len(list((tmp_path / "out" / "images").iterdir())) == 2


def test_cells_beyond_csvs_limit_are_read_and_the_limit_is_left_as_it_was(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")
    cell = base64.b64encode(buffer.getvalue()).decode()
    assert len(cell) > csv.field_size_limit() == 131_072
    source = tsv(tmp_path / "b.tsv", ["index", "image", "question", "answer"], ["0", cell, "q?", "a"])
    assert len(import_items(source, tmp_path / "out").items) == 1
    assert csv.field_size_limit() == 131_072


def test_rows_that_cannot_be_items_are_listed_and_the_rest_goes_on(tmp_path):
    header = ["index", "image", "question", "A", "B", "answer"]
    good = text_image(0)
    source = tsv(tmp_path / "b.tsv", header,
                 ["0", good, "q?", "x", "y", "A"], ["1", good, "q?", "x", "y", "E"],
                 ["2", good, "q?", "x", "x", "A"], ["0", good, "q?", "x", "y", "A"], ["4", good, "q?", "x"],
                 ["5", base64.b64encode(photo(0)[:90]).decode(), "q?", "x", "y", "B"],
                 ["6", good, " ", "x", "y", "A"], ["7", good, "free?", "", "", "1e5"])
    report = import_items(source, tmp_path / "out")
    assert [(item.item_id, item.options, item.answer) for item in report.items] == [
        ("0", ("x", "y"), "A"), ("7", (), "1e5")]
    reasons = {row.where: row.reason for row in report.rejected}
    assert len(reasons) == 6
    assert "no option" in reasons["b.tsv line 3 (index 1)"]
    assert "the same" in reasons["b.tsv line 4 (index 2)"]
    assert "used in line 2" in reasons["b.tsv line 5 (index 0)"]
    assert "4 cells where the header has 6" in reasons["b.tsv line 6"]
    assert "damaged or cut off" in reasons["b.tsv line 7 (index 5)"]
    assert reasons["b.tsv line 8 (index 6)"] == "no question"
    listed = (tmp_path / "out" / "rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["where"] for line in listed] == list(reasons)


def test_the_published_mmstar_rows_import_but_for_8_without_option_and_the_duplicates(data_pack, tmp_path):
    source = data_pack / "mm-perturb" / "MMStar_pert_local.tsv"
    report = import_items(source, tmp_path / "out", with_images=False)
    reasons = Counter("no option" if "has no option" in row.reason else row.reason.partition(" ")[0]
                      for row in report.rejected)
    with source.open(newline="", encoding="utf-8") as file:  # an independent count
        rows = list(csv.DictReader(file, delimiter="\t"))
    filled = [[row[letter] for letter in "ABCD" if row[letter]] for row in rows]
    duplicates = {row["index"] for row, options in zip(rows, filled, strict=True)
                  if len(set(options)) < len(options)}
    missing = {row["index"] for row in rows if row["answer"] not in list("ABCD") or not row[row["answer"]]}
    assert len(missing) == 8
    assert {row.item_id for row in report.rejected} == missing | duplicates
    assert reasons == {"no option": 8, "options": len(duplicates - missing)}
    assert len(report.items) == 1500 - len(missing | duplicates)
    item = by_id(report.items)["0"]
    assert item.image == "LMUData/images/MMStar_semantic_flux/0.jpg" and item.image_sha256 == ""
    assert item.answer_text == "The suitcase is beneath the bed."
    assert not any("\r" in item.question for item in report.items)
    assert sum("\n" in row["question"] for row in rows) == 349


def test_the_published_realworldqa_rows_keep_their_two_to_four_options(data_pack, tmp_path):
    report = import_items(data_pack / "mm-perturb" / "RealWorldQA_pert_local.tsv", tmp_path / "out",
                          with_images=False)
    assert len(report.items) + len(report.rejected) == 765
    assert all("are the same" in row.reason for row in report.rejected)
    item = by_id(report.items)["0"]
    assert (item.options, item.answer_text) == (("Left", "Straight", "Right"), "Straight")


def test_a_tsv_whose_images_are_absent_says_what_to_do(data_pack, tmp_path):
    with pytest.raises(InputError) as caught:
        import_items(data_pack / "mm-perturb" / "RealWorldQA_pert_local.tsv", tmp_path / "out")
    assert "none of the 765 rows has its image here" in str(caught.value)
    assert "--images" in str(caught.value) and "--no-images" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_another_column_can_be_the_category_and_l2_stands_in_for_none(tmp_path):
    source = tsv(tmp_path / "b.tsv", ["index", "image", "question", "answer", "category", "l2-category"],
                 ["0", text_image(0), "q?", "a", "coarse", "fine"], ["1", text_image(0), "q?", "a", "", "fine"])
    first = import_items(source, tmp_path / "a").items
    assert [item.category for item in first] == ["coarse", "fine"]
    second = import_items(source, tmp_path / "b", category_column="l2-category").items
    assert [item.category for item in second] == ["fine", "fine"]


def test_ids_that_are_no_file_names_get_files_of_their_own(tmp_path):
    ids = ["a/b", "a b", "A_B", "../up", ".hidden", "赤" * 150, "赤" * 150 + "x", "y" * 300, ""]
    write_jsonl(tmp_path / "rows.jsonl", [
        {"item_id": item_id, "question": "q?", "answer": "a", "image": text_image(n)}
        for n, item_id in enumerate(ids)])
    report = import_items(tmp_path / "rows.jsonl", tmp_path / "out")
    kept = [*ids[:7], "item_0008"]  # an empty id is no id: the row number takes its place
    assert [item.item_id for item in report.items] == kept
    assert len({item.image.lower() for item in report.items}) == len(kept)
    for item in report.items:
        assert Path(item.image).parent == Path("images")
        assert load_image(tmp_path / "out" / item.image).sha256 == item.image_sha256
    assert "300 characters" in report.rejected[0].reason


# --------------------------------------------------------------------------------- V*Bench, rows

@pytest.fixture
def vstar_folder(tmp_path) -> Path:
    """Two categories in a folder with a dot in its name, as the authors publish them."""
    folder = tmp_path / "vstar.v1"
    for category, stem, options in (("direct_attributes", "sa_1.x", ["red", "blue", "green", "white"]),
                                    ("direct_attributes", "sa_2", ["cat", "dog"]),
                                    ("relative_position", "sa_1.x", ["left", "right"])):
        (folder / category).mkdir(parents=True, exist_ok=True)
        (folder / category / f"{stem}.jpg").write_bytes(photo(len(stem), "JPEG"))
        (folder / category / f"{stem}.json").write_text(json.dumps(
            {"target_object": ["thing"], "bbox": [[1, 2, 3, 4]], "question": f"Q {stem}?",
             "options": options}))
    return folder


def test_vstar_folders_import_with_options_shuffled_and_the_first_one_right(vstar_folder, tmp_path):
    report = import_items(vstar_folder, tmp_path / "out")
    items = by_id(report.items)
    assert not report.rejected
    assert sorted(items) == ["direct_attributes/sa_1.x", "direct_attributes/sa_2", "relative_position/sa_1.x"]
    assert [items[i].answer_text for i in sorted(items)] == ["red", "cat", "left"]
    assert {item.category for item in items.values()} == {"direct_attributes", "relative_position"}
    again = import_items(vstar_folder, tmp_path / "again")
    assert again.items == report.items
    assert len({item.image for item in report.items}) == 3


def test_shuffling_puts_the_right_option_everywhere_and_ignores_the_given_order():
    options = ("red", "blue", "green", "white")
    places = Counter(shuffled(options, f"item {i}").index("red") for i in range(2000))
    assert min(places.values()) > 430 and max(places.values()) < 570  # 500 +- 3.6 sd
    assert shuffled(options, "x") == shuffled(options[::-1], "x")


def test_the_authors_question_file_gives_order_letters_and_numbered_ids(vstar_folder, tmp_path):
    write_jsonl(vstar_folder / "test_questions.jsonl", [
        {"image": "direct_attributes/sa_2.jpg", "category": "direct_attributes", "label": "B",
         "question_id": 17, "text": f"What?\n(A) dog\n(B) cat\n{SUFFIX}"}])
    items = by_id(import_items(vstar_folder, tmp_path / "out").items)
    assert (items["vstar_0017"].options, items["vstar_0017"].answer) == (("dog", "cat"), "B")
    assert items["vstar_0017"].image == "images/vstar_0017.jpg"
    assert len(items) == 3


def test_broken_vstar_files_are_rejected_with_their_reason(vstar_folder, tmp_path):
    (vstar_folder / "direct_attributes" / "sa_2.json").write_text("{")
    (vstar_folder / "relative_position" / "sa_1.x.jpg").unlink()
    (vstar_folder / "direct_attributes" / "sa_1.json").write_text('{"question": "q?", "options": ["a", "b"]}')
    report = import_items(vstar_folder, tmp_path / "out")
    assert [(row.where, row.reason.split("(")[0].strip()) for row in report.rejected] == [
        ("direct_attributes/sa_1.json", "no image beside it; expected sa_1.jpg"),  # sa_1.x.jpg is another
        ("direct_attributes/sa_2.json", "not readable as JSON"),
        ("relative_position/sa_1.x.json", "no image beside it; expected sa_1.x.jpg")]


def parquet(path: Path, rows: list[dict]) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("as_struct", [True, False])
def test_vstar_parquet_gets_the_ids_of_the_slot_annotations(tmp_path, as_struct):
    image = {"bytes": photo(1), "path": "a.png"} if as_struct else photo(1)
    source = parquet(tmp_path / "hub" / "data" / "test-00000-of-00001.parquet", [
        {"image": image, "text": f"What color? (A) red (B) blue {SUFFIX}", "label": "B",
         "category": "direct_attributes", "question_id": "5"}])
    for given in (source, tmp_path / "hub"):  # the file, or the folder that the hub client makes
        (item,) = import_items(given, tmp_path / f"out_{given.suffix}").items
        assert (item.item_id, item.question, item.options, item.answer, item.category) == (
            "vstar_0005", "What color?", ("red", "blue"), "B", "direct_attributes")
        assert item.image == "images/vstar_0005.png"


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".json"])
def test_choices_with_an_index_import_from_any_table(tmp_path, suffix):
    (tmp_path / "a.png").write_bytes(photo(1))
    rows = [{"question": "Which?", "choices": ["x", "None"], "answer": 1, "image": "a.png"},
            {"question": "Which?", "choices": ["x", "y"], "answer": 2, "image": "a.png"}]
    if suffix != ".parquet":  # whose columns have one type
        rows.append({"question": "Which?", "choices": ["x", "y"], "answer": True, "image": "a.png"})
    source = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        parquet(source, rows)
    elif suffix == ".jsonl":
        write_jsonl(source, rows)
    else:
        source.write_text(json.dumps(rows))
    report = import_items(source, tmp_path / "out")
    assert [(item.item_id, item.answer_text) for item in report.items] == [("item_0000", "None")]
    reasons = ["answer 2 is no index into 2 choices; expected 0 to 1",
               "answer 'True' has no option; expected one of A, B"]
    assert [row.reason for row in report.rejected] == reasons[:len(rows) - 1]


def test_jsonl_images_may_be_base64_or_data_urls(tmp_path):
    encoded = text_image(1)
    assert len(encoded) > 512
    source = tmp_path / "rows.jsonl"
    write_jsonl(source, [{"question": "q?", "answer": "a", "image": text} for text in
                         (encoded, f"data:image/png;base64,{encoded}", "data:image/png;base64,????")])
    report = import_items(source, tmp_path / "out")
    assert [item.answer for item in report.items] == ["a", "a"]
    assert len(report.rejected) == 1


def test_the_relabeled_vstar_imports_but_for_the_two_contradictions(data_pack, tmp_path):
    report = import_items(data_pack / "rekey/annotations/vstar_relabel_latest_fixed.jsonl", tmp_path / "out",
                          with_images=False)
    assert len(report.items) == 189
    assert [row.item_id for row in report.rejected] == ["vstar_0024", "vstar_0154"]  # named in the peer notes


# --------------------------------------------------------------------------- bad files, as a whole

def bad_sources(folder: Path) -> dict[str, tuple[Path, str]]:
    contents = {
        "empty.tsv": (b"", "no column 'index', 'question', 'answer' in the header (found: nothing)"),
        "commas.tsv": (b"index,question,answer\n0,q,a\n", "no column"),
        "quotes.tsv": (b'index\tquestion\tanswer\n0\t"open\ta\n1\tq\ta\n', "line 2: broken quoting"),
        "latin.tsv": (b"index\tquestion\tanswer\n0\tcaf\xe9\ta\n", "not UTF-8"),
        "header_only.tsv": (b"index\tquestion\tanswer\n", "holds no rows"),
        "twice.tsv": (b"index\tquestion\tanswer\tanswer\n", "more than once"),
        "no_images.tsv": (b"index\tquestion\tanswer\n0\tq\ta\n", "--no-images"),
        "wrong.csv": (b"a,b\n", "unknown kind of file '.csv'"),
        "broken.jsonl": (b'{"question": \n', "line 1: not JSON"),
        "empty.jsonl": (b"", "holds no records"),
        "strange.jsonl": (b'{"prompt": "x"}\n', "columns prompt are of no known layout"),
        "object.json": (b'{"question": "x"}', "expected a list of objects"),
        "broken.json": (b"[", "not readable as JSON"),
        "fake.parquet": (b"PAR1 no", "not readable as Parquet"),
    }
    sources = {"missing": (folder / "missing.tsv", "no such file or folder")}
    for name, (data, message) in contents.items():
        (folder / name).write_bytes(data)
        sources[name] = (folder / name, message)
    (folder / "nothing").mkdir()
    sources["nothing"] = (folder / "nothing", "neither items.jsonl, nor images with JSON")
    return sources


def test_every_bad_source_exits_2_with_one_line_and_writes_nothing(tmp_path):
    source_folder = tmp_path / "in"
    source_folder.mkdir()
    for path, message in bad_sources(source_folder).values():
        result = CliRunner().invoke(rekey, ["items", "import", str(path), "--out", str(tmp_path / "out")])
        assert result.exit_code == 2, (path, result.output)
        errors = [line for line in result.stderr.splitlines() if line]
        assert len(errors) == 1 and message in errors[0] and str(path) in errors[0], result.stderr
        assert [entry.name for entry in tmp_path.iterdir()] == ["in"]


def test_an_existing_folder_is_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    source = tsv(tmp_path / "b.tsv", ["index", "image", "question", "answer"],
                 ["0", text_image(0), "q?", "a"])
    with pytest.raises(InputError, match="exists already"):
        import_items(source, tmp_path / "out")
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_an_import_that_dies_leaves_nothing_behind(tmp_path):
    source = tsv(tmp_path / "b.tsv", ["index", "image", "question", "answer"],
                 *([str(i), text_image(i), "q?", "a"] for i in range(5)))

    def dies(rows):
        yield next(rows)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        import_items(source, tmp_path / "out", progress=dies)
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.tsv"]


def test_item_lines_that_are_none_are_all_named(tmp_path):
    good = {"item_id": "a", "image": "i", "image_sha256": "", "question": "q", "options": ["x", "y"],
            "answer": "B"}
    write_jsonl(tmp_path / "items.jsonl", [
        good, {"item_id": "b"}, [], {**good, "item_id": 3}, {**good, "answer": "C"}, {**good, "options": "xy"},
        {**good, "item_id": "c", "record": {"image_id": "x"}}, good])
    with pytest.raises(InputError) as caught:
        read_items(tmp_path)
    problems = caught.value.problems
    assert [problem.split(" line ")[1][0] for problem in problems[:-1]] == ["2", "3", "4", "5", "6", "7"]
    assert "answer 'C' is no letter of its 2 options" in problems[3]
    assert "item id 'a' appears more than once" in problems[-1]


# -------------------------------------------------------------------------------------- export

@pytest.fixture
def instance(tmp_path) -> Path:
    """An items folder as `rekey generate` makes it, with two items on one image and awkward texts."""
    folder = tmp_path / "instance"
    (folder / "images").mkdir(parents=True)
    slot = Slot("vstar_0001", "A1", "replace", Box(0, 0, 16, 12), Box(4, 2, 10, 9), ("blue cup",))
    key = VisualKey(slot, "replace", "blue cup", "red")
    record = SamplingRecord("vstar_0001", 3, "attribute", "color", (key,))
    items = []
    for i, (question, options, answer) in enumerate([
            ("What color is the cup?", ("red", "None", "1e5", "007"), "A"),
            ('Which "sign"\nis\tit?', ("左", "right"), "B"), ("How many?", (), "3")]):
        name = f"images/vstar_{min(i, 1):04d}.png"
        (folder / name).write_bytes(photo(min(i, 1)))
        item = Item(f"vstar_{i:04d}/seed3", name, load_image(folder / name).sha256, question, options, answer,
                    category="direct_attributes" if i else None)
        items.append(item if i else dataclasses.replace(item, source_answer="blue", record=record))
    write_jsonl(folder / "items.jsonl", map(to_json, items))
    return folder


def test_a_tsv_round_trip_gives_identical_items(instance, tmp_path):
    report = export_items(instance, tmp_path / "Renewed.tsv", "vlmevalkit")
    # pandas, and so VLMEvalKit, reads "None" as empty, and columns C and D as 100000.0 and 7.0.
    assert "'None'" in report.warnings[0] and "column C, D" in report.warnings[1]
    back = import_items(tmp_path / "Renewed.tsv", tmp_path / "back")
    assert list(back.items) == read_items(instance)
    for item in back.items:
        assert (tmp_path / "back" / item.image).read_bytes() == (instance / item.image).read_bytes()


def test_an_exported_tsv_follows_vlmevalkits_rules(instance, tmp_path):
    export_items(instance, tmp_path / "Renewed.tsv", "vlmevalkit")
    with (tmp_path / "Renewed.tsv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", strict=True))
    assert [row["index"] for row in rows] == ["0", "1", "2"]
    assert rows[2]["image"] == "1" and len(rows[1]["image"]) > 64  # a short cell refers to another row
    assert base64.b64decode(rows[1]["image"]) == photo(1)
    assert [rows[0][letter] for letter in "ABCD"] == ["red", "None", "1e5", "007"]
    assert rows[1]["question"] == 'Which "sign"\nis\tit?'
    # VLMEvalKit saves the image under this name; ".jpg", its default, would compress it again.
    assert rows[0]["image_path"] == "vstar_0000.png"


def test_images_that_other_tools_misread_are_exported_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a.jpg").write_bytes(photo(1, "JPEG", exif=exif))
    write_jsonl(tmp_path / "rows.jsonl", [{"question": "q?", "answer": "a", "image": "a.jpg"}])
    (item,) = import_items(tmp_path / "rows.jsonl", tmp_path / "own").items
    export_items(tmp_path / "own", tmp_path / "o.tsv", "vlmevalkit")
    with (tmp_path / "o.tsv").open(newline="") as file:
        row = next(csv.DictReader(file, delimiter="\t"))
    naive = np.asarray(Image.open(io.BytesIO(base64.b64decode(row["image"]))).convert("RGB"))
    assert np.array_equal(naive, load_image(tmp_path / "own" / item.image).pixels)
    assert row["image_path"].endswith(".png")


def test_a_changed_image_stops_the_export(instance, tmp_path):
    (instance / "images" / "vstar_0000.png").write_bytes(photo(99))
    for to, out in (("vlmevalkit", "o.tsv"), ("lmms-eval", "o"), ("vstar", "o2")):
        with pytest.raises(InputError, match="pixels are not those"):
            export_items(instance, tmp_path / out, to)
        assert not (tmp_path / out).exists()


def test_a_vstar_round_trip_keeps_everything_but_the_record(instance, tmp_path):
    report = export_items(instance, tmp_path / "folders", "vstar")
    assert [row.item_id for row in report.rejected] == ["vstar_0002/seed3"]  # free form does not fit
    annotation = json.loads((tmp_path / "folders/items/vstar_0000_seed3.json").read_text())
    assert annotation["options"][0] == "red"
    assert annotation["bbox"] == [[4, 2, 6, 7]] and annotation["target_object"] == ["blue cup"]
    assert detect_format(tmp_path / "folders").startswith("V*Bench")
    back = by_id(import_items(tmp_path / "folders", tmp_path / "back").items)
    for item in read_items(instance)[:2]:
        twin = back[item.item_id]
        assert (twin.question.split(), twin.options, twin.answer, twin.image_sha256) == (
            item.question.split(), item.options, item.answer, item.image_sha256)


def test_our_own_folder_imports_into_an_identical_one(instance, tmp_path):
    assert list(import_items(instance, tmp_path / "copy").items) == read_items(instance)
    (instance / "images" / "vstar_0000.png").write_bytes(photo(99))
    report = import_items(instance, tmp_path / "checked")
    assert [row.item_id for row in report.rejected] == ["vstar_0000/seed3"]
    assert [path.name for path in (tmp_path / "checked" / "images").iterdir()] == ["vstar_0001.png"]


# ----------------------------------------------------------------------------------- lmms-eval

def load_task(folder: Path, name: str) -> dict:
    """The task as lmms-eval loads it: `!function utils.x` is the function of the file beside it."""
    yaml = pytest.importorskip("yaml")
    spec = importlib.util.spec_from_file_location("exported_utils", folder / "utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: getattr(
        module, loader.construct_scalar(node).removeprefix("utils.")))
    return yaml.load((folder / f"{name}.yaml").read_text(encoding="utf-8"), Loader)


def test_the_lmms_eval_task_runs_on_its_own_data(instance, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    export_items(instance, tmp_path / "ReKey seed-3", "lmms-eval")
    folder = tmp_path / "ReKey seed-3"
    task = load_task(folder, "rekey_seed_3")
    assert task["task"] == "rekey_seed_3" and task["output_type"] == "generate_until"
    table = pq.read_table(folder / task["dataset_kwargs"]["data_files"]["test"])
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["image"] == {"_type": "Image"} and list(features) == table.column_names
    docs = table.to_pylist()
    for doc, item in zip(docs, read_items(instance), strict=True):
        doc["image"] = Image.open(io.BytesIO(doc["image"]["bytes"]))  # what `datasets` does
        (visual,) = task["doc_to_visual"](doc)
        assert np.array_equal(np.asarray(visual), load_image(instance / item.image).pixels)
        assert task["doc_to_target"](doc) == item.answer
    settings = task["lmms_eval_specific_kwargs"]["default"]
    assert task["doc_to_text"](docs[0], settings) == (
        "What color is the cup?\nA. red\nB. None\nC. 1e5\nD. 007\n"
        "Answer with the option's letter from the given choices directly.")
    assert task["doc_to_text"](docs[2], settings).endswith("using a single word or phrase.")
    assert task["process_results"](docs[0], ["A"]) == {"accuracy": 1.0, "unparsed": 0.0}
    assert task["process_results"](docs[1], ["I can't see it"]) == {
        "accuracy": 0.0, "unparsed": 1.0, "accuracy_direct_attributes": 0.0}
    assert task["process_results"](docs[2], ["3."])["accuracy"] == 1.0
    metrics = {metric["metric"] for metric in task["metric_list"]}
    assert metrics == {"accuracy", "unparsed", "accuracy_direct_attributes"}


@pytest.mark.parametrize(("reply", "letter"), [
    ("C", "C"), ("c", "C"), ("(B)", "B"), ("B.", "B"), ("Answer: **D**", "D"), (r"\boxed{C}", "C"),
    ("Based on the image, the answer is D.", "D"), ("A dog is visible, so (C)", "C"),
    ("B. It is a red bag", "B"),
    ("I considered (A), but it is incorrect. Final answer: D.", "D"), ("yellow", "D"), ("Yellow.", "D"),
    ("<think>A or B? (A)</think>\n\nB", "B"), ("<think>it is A", None), ("I can't see a dog", None),
    ("Cannot determine", None), ("", None), ("E", None), ("a dog with a red collar", None),
])
def test_replies_are_read_as_a_person_would(reply, letter):
    assert parse_letter(reply, ["red", "blue", "white", "yellow"]) == letter


# --------------------------------------------------------------------------------------- command

def test_the_command_says_format_counts_rejects_and_what_comes_next(tmp_path):
    source = tsv(tmp_path / "b.tsv", ["index", "image", "question", "A", "B", "answer", "category"],
                 ["0", text_image(0), "q?", "x", "y", "A", "c1"],
                 ["1", text_image(1), "q?", "x", "y", "F", "c1"])
    runner = CliRunner()
    result = runner.invoke(rekey, ["items", "import", str(source), "--out", str(tmp_path / "own")])
    assert result.exit_code == 3, result.output
    assert "VLMEvalKit TSV" in result.stdout and "1 items (1 c1)" in result.stdout
    assert "Next:  rekey items export" in result.stdout
    assert "1 rejected" in result.stderr and "answer 'F' has no option" in result.stderr
    for to, out in (("vlmevalkit", "o.tsv"), ("lmms-eval", "lmms"), ("vstar", "folders")):
        result = runner.invoke(rekey, ["items", "export", str(tmp_path / "own"), "--to", to,
                                       "--out", str(tmp_path / out)])
        assert result.exit_code == 0, result.output
        assert "1 items written" in result.stdout and "Next: " in result.stdout


def test_export_mistakes_exit_2(tmp_path, instance, monkeypatch):
    runner = CliRunner()
    for arguments, message in ((["--to", "vlmevalkit", "--out", "x.csv"], "ends in .tsv"),
                               (["--to", "lmms-eval", "--out", "x", "--task", "a b"], "task name 'a b'")):
        monkeypatch.chdir(tmp_path)
        result = runner.invoke(rekey, ["items", "export", str(instance), *arguments])
        assert result.exit_code == 2 and message in result.stderr, result.output
        assert [entry.name for entry in tmp_path.iterdir()] == ["instance"]


def test_every_items_command_shows_an_example():
    group = rekey.get_command(click.Context(rekey), "items")
    for name in group.commands:
        assert f"rekey items {name} " in CliRunner().invoke(rekey, ["items", name, "--help"]).stdout
