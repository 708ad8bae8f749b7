"""The published ReKey tables, from raw logs."""

import csv
import gzip
import json

import pytest
from click.testing import CliRunner

from experiments.published_tables import (
    TABLE_1,
    TABLE_2,
    discordant,
    gap,
    main,
    percent,
    read_answers,
    read_lines,
    spread,
    table,
)
from rekey.errors import InputError
from rekey.stats import mcnemar


@pytest.fixture(scope="module")
def logs(data_pack):
    folder = data_pack / "rekey" / "logs"
    return [folder / "table1_standard.jsonl.gz", folder / "table2_llava.jsonl.gz"], folder / "items.jsonl.gz"


@pytest.fixture(scope="module")
def published(logs):
    lines = read_lines(*logs)
    read = read_answers(lines, "paper")
    return lines, read, {(cell.model, cell.condition, cell.split): cell for cell in table(lines, read)}


def test_every_cell_of_tables_1_and_2(published):
    _, _, cells = published
    for model, (original, relabel, mean, sd) in TABLE_1.items():
        assert percent(cells[model, "original", "all"].accuracy) == f"{original:.1f}"
        assert percent(cells[model, "relabel", "all"].accuracy) == f"{relabel:.1f}"
        assert spread(cells[model, "rekey", "all"]) == f"{mean:.1f} +- {sd:.1f}"
        assert cells[model, "rekey", "all"].n == 573 and cells[model, "rekey", "all"].n_seeds == 3
    for split, (mean, sd) in TABLE_2.items():
        assert spread(cells["llava15", "rekey", split]) == f"{mean:.1f} +- {sd:.1f}"


def test_figure_6_and_the_mcnemar_counts(published, data_pack):
    lines, read, cells = published
    expected = json.loads((data_pack / "rekey" / "expected" / "expected_tables.json").read_text(encoding="utf-8"))
    for model in TABLE_1:
        attribute, position = (cells[model, "rekey", split] for split in ("attribute", "position"))
        bars = expected["fig6"][model]
        assert abs(100 * attribute.mean - bars["attr"]) <= 0.0051 and abs(100 * position.mean - bars["pos"]) <= 0.0051
        assert gap(attribute, position) == f"{bars['gap']:+.1f}"
        counts = expected["mcnemar_original_vs_relabel"][model]
        assert discordant(lines, read, model) == (counts["b_orig_only"], counts["c_relab_only"])
        assert mcnemar(counts["b_orig_only"], counts["c_relab_only"]) == pytest.approx(counts["p_exact"], rel=0.01)


def test_the_command_writes_every_cell_and_prints_the_tables(logs, tmp_path):
    files, items = logs
    words = [word for file in files for word in ("--logs", str(file))]
    result = CliRunner().invoke(main, [*words, "--items", str(items), "--out", str(tmp_path), "--parser", "strict"])
    assert result.exit_code == 0, result.output
    assert "Qwen3.6-Plus, rekey" in result.output and "75.7 +- 5.4  75.7 +- 5.4" in result.output
    rows = list(csv.DictReader((tmp_path / "table.csv").open(encoding="utf-8")))
    assert len(rows) == (8 * 3 + 1) * 3 and set(rows[0]) >= {"model", "mode", "condition", "split", "n", "accuracy"}
    (gemini,) = (row for row in rows
                 if (row["model"], row["condition"], row["split"]) == ("gemini31pro", "rekey", "all"))
    assert gemini["n"] == "573" and 20 <= int(gemini["unparsed"]) <= 40 and float(gemini["mean"]) < 0.75


# ------------------------------------------------------------------------------------ logs of our own

ITEM = {"item": 1, "condition": "original", "seed": None, "options": {"A": "red", "B": "blue"}}
ROW = {"item": 1, "condition": "original", "model": "mine", "mode": "nothink_cot", "seed": None, "line": 0,
       "category": "direct_attributes", "gold": "B", "response": "It is a blue bag. Answer: B, not a red one"}


def write(path, rows, compress=False):
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if compress else data)
    return path


def test_logs_of_another_model_give_a_row_and_no_published_table(tmp_path):
    logs = write(tmp_path / "logs.jsonl", [ROW | {"response": "A"}, ROW | {"line": 1}])
    items = write(tmp_path / "items.jsonl.gz", [ITEM], compress=True)
    words = ["--logs", str(logs), "--items", str(items), "--out", str(tmp_path / "out")]
    assert CliRunner().invoke(main, words).exit_code == 0
    rows = list(csv.DictReader((tmp_path / "out" / "table.csv").open(encoding="utf-8")))
    assert [(row["split"], row["n"], row["accuracy"], row["sd"]) for row in rows] == [
        ("all", "1", "1", ""), ("attribute", "1", "1", ""), ("position", "0", "", "")]


@pytest.mark.parametrize("rows, items, message", (
    ([ROW | {"item": 7}], [ITEM], "no item 7 of condition original, seed None, which mine answered"),
    ([{"item": 1}], [ITEM], "line 1: has no model; expected model, mode"),
    ([ROW], [3], "line 1: is not an object")))
def test_bad_logs_are_one_clear_line(tmp_path, rows, items, message):
    with pytest.raises(InputError, match=message):
        read_lines([write(tmp_path / "logs.jsonl", rows)], write(tmp_path / "items.jsonl", items))


def test_files_that_are_none_are_one_clear_line(tmp_path):
    items = write(tmp_path / "items.jsonl", [ITEM])
    with pytest.raises(InputError, match="nowhere.jsonl: no such file"):
        read_lines([tmp_path / "nowhere.jsonl"], items)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match="empty.jsonl: is empty; expected JSON lines with model"):
        read_lines([tmp_path / "empty.jsonl"], items)
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b'{"item": 1}\n' * 50)[:30])
    with pytest.raises(InputError, match="torn.jsonl.gz: is damaged .*expected JSON lines, plain or gzipped"):
        read_lines([tmp_path / "torn.jsonl.gz"], items)
