"""The published ReKey tables from raw response logs, under the published parser and under the strict one.

    python -m experiments.published_tables --logs table1.jsonl.gz --logs table2.jsonl.gz --items items.jsonl.gz \\
        --out runs/published

Any logs of that form: one JSON line per response with model, mode, condition, seed, item, line, category, gold and
response, and one per item with condition, seed, item and options.  Writes table.csv, one row per model, mode,
condition and split; prints the published cells beside the same cells re-derived by either parser.

The published rule takes the last lone letter a to d of either case, so that the article "a" counts as answer A;
a response without one is wrong; of several responses to an item the last one counts (paper 000, App. C and its logs).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from experiments.progress import aligned
from experiments.study import Command
from experiments.tables import as_csv, percent
from rekey import store
from rekey.answers import PARSERS, parse_answer
from rekey.errors import InputError
from rekey.stats import mcnemar, mean_and_sd

SPLITS = {"all": None, "attribute": "direct_attributes", "position": "relative_position"}
CONDITIONS = ("original", "relabel", "rekey")
FIELDS = ("model", "mode", "condition", "seed", "item", "line", "category", "gold", "response")

# Paper 000, in percent: Table 1 (original, relabel, ReKey mean, sd), Table 2, and the McNemar counts of App. A.
NAMES = {"qwen36plus": "Qwen3.6-Plus", "gpt55": "GPT-5.5", "opus47": "Claude Opus 4.7", "gemini31pro": "Gemini 3.1 Pro",
         "seed20lite": "Seed-2.0-Lite", "kimi": "Kimi K2.6", "mimo25": "MiMo v2.5", "llama4mav": "Llama 4 Maverick",
         "llava15": "LLaVA-1.5-13B"}
TABLE_1 = {"qwen36plus": (90.6, 74.3, 75.7, 5.4), "gpt55": (86.9, 75.9, 77.1, 2.1), "opus47": (78.5, 59.7, 67.2, 3.9),
           "gemini31pro": (88.0, 69.6, 75.0, 3.3), "seed20lite": (91.6, 74.3, 79.9, 2.6),
           "kimi": (81.7, 63.4, 72.6, 0.8), "mimo25": (78.0, 66.5, 73.6, 4.7), "llama4mav": (61.3, 51.8, 56.9, 0.6)}
TABLE_2 = {"all": (42.6, 2.4), "attribute": (33.2, 3.9), "position": (56.2, 3.3)}


@dataclass(frozen=True)
class Line:
    """One response of a log, with the options it was given."""

    model: str
    mode: str
    condition: str
    seed: int | None
    item: int
    category: str
    gold: str
    response: str
    options: dict[str, str]


@dataclass(frozen=True)
class Cell:
    """What one model did on one condition and split: accuracy over all responses, mean and sd over seeds."""

    model: str
    mode: str
    condition: str
    split: str
    n: int
    n_seeds: int
    accuracy: float | None
    mean: float | None
    sd: float | None
    unparsed: int


def read_lines(logs: Sequence[Path], items: Path) -> list[Line]:
    """Responses with their items; of several to one item the one on the last line."""
    asked = {(row["condition"], row.get("seed"), row["item"]): row
             for row in _read(items, ("condition", "item", "options"))}
    last: dict[tuple, dict] = {}
    for path in logs:
        for row in _read(path, FIELDS):
            key = tuple(row[name] for name in ("model", "mode", "condition", "seed", "item"))
            if key not in last or last[key]["line"] <= row["line"]:
                last[key] = row
    lines = []
    for key, row in last.items():
        item = asked.get((row["condition"], row["seed"], row["item"]))
        if item is None:
            raise InputError(f"{items}: no item {row['item']} of condition {row['condition']}, seed {row['seed']}, "
                             f"which {row['model']} answered; give the items that the logs are about")
        lines.append(Line(*key, row["category"], row["gold"], row["response"], item["options"]))
    return lines


def _read(path: Path, fields: Iterable[str]) -> list[dict]:
    rows = store.read_jsonl(path)
    if not rows:
        raise InputError(f"{path}: is empty; expected JSON lines with {', '.join(fields)}")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or (missing := [name for name in fields if name not in row]):
            found = f"has no {missing[0]}" if isinstance(row, dict) else "is not an object"
            raise InputError(f"{path} line {number}: {found}; expected {', '.join(fields)}")
    return rows


def read_answers(lines: Sequence[Line], parser: str) -> list[str | None]:
    """The letter of every response, or None."""
    return [parse_answer(line.response, line.options, parser, cot="cot" in line.mode) for line in lines]


def table(lines: Sequence[Line], read: Sequence[str | None]) -> list[Cell]:
    """One cell per model, mode, condition and split.  read: the letter of each response."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for number, line in enumerate(lines):
        groups.setdefault((line.model, line.mode, line.condition), []).append(number)
    cells = []
    for key, numbers in groups.items():
        for split, category in SPLITS.items():
            chosen = [n for n in numbers if category in (None, lines[n].category)]
            by_seed: dict[int | None, list[bool]] = {}
            for n in chosen:
                by_seed.setdefault(lines[n].seed, []).append(read[n] == lines[n].gold)
            mean, sd = mean_and_sd([sum(right) / len(right) for right in by_seed.values()])
            right = sum(map(sum, by_seed.values()))
            cells.append(Cell(*key, split, len(chosen), len(by_seed), right / len(chosen) if chosen else None, mean, sd,
                              sum(read[n] is None for n in chosen)))
    return cells


def discordant(lines: Sequence[Line], read: Sequence[str | None], model: str) -> tuple[int, int]:
    """Items that a model had right in the original alone, and in the relabel alone."""
    right = {condition: {line.item for line, letter in zip(lines, read) if letter == line.gold and
                         (line.model, line.mode, line.condition) == (model, "standard", condition)}
             for condition in ("original", "relabel")}
    return len(right["original"] - right["relabel"]), len(right["relabel"] - right["original"])


# ------------------------------------------------------------------------------------------ printing

def spread(cell: Cell | None) -> str:
    """"75.7 +- 5.4", or the mean alone where there is one seed."""
    if cell is None:
        return "-"
    return percent(cell.mean) + ("" if cell.sd is None else f" +- {100 * cell.sd:.1f}")


def report(lines: Sequence[Line], read: dict[str, list[str | None]]) -> str:
    """Published cells beside those that either parser gives on the same responses.  read: letters by parser."""
    found = {parser: {(cell.model, cell.condition, cell.split): cell for cell in table(lines, letters)
                      if cell.mode == "standard"} for parser, letters in read.items()}

    def cell(parser: str, model: str, condition: str = "rekey", split: str = "all") -> Cell | None:
        return found[parser].get((model, condition, split))

    models = [model for model in TABLE_1 if cell("paper", model, "original")]
    first = [("Table 1", "published", "paper", "strict", "unparsed by strict")]
    tests = [("original against relabel", "only original", "only relabel", "p, paper", "p, strict")]
    splits = [("Figure 6, ReKey", "attribute", "position", "gap", "under strict")]
    for model in models:
        original, relabel, mean, sd = TABLE_1[model]
        for condition, printed in zip(CONDITIONS, (f"{original:.1f}", f"{relabel:.1f}", f"{mean:.1f} +- {sd:.1f}")):
            strict = cell("strict", model, condition)
            first.append((f"{NAMES[model]}, {condition}", printed, spread(cell("paper", model, condition)),
                          spread(strict), str(strict.unparsed) if strict else "-"))
        pair = discordant(lines, read["paper"], model)
        tests.append((NAMES[model], *map(str, pair), f"{mcnemar(*pair):.2g}",
                      f"{mcnemar(*discordant(lines, read['strict'], model)):.2g}"))
        parts = {name: [cell(name, model, split=split) for split in ("attribute", "position")] for name in read}
        splits.append((NAMES[model], *(spread(part).split(" ")[0] for part in parts["paper"]), gap(*parts["paper"]),
                       gap(*parts["strict"])))
    shown = [first, tests, splits] if models else []
    if cell("paper", "llava15"):
        shown.append([("Table 2, LLaVA-1.5-13B", "published", "paper", "strict")] + [
            (split, f"{mean:.1f} +- {sd:.1f}", *(spread(cell(name, "llava15", split=split)) for name in PARSERS))
            for split, (mean, sd) in TABLE_2.items()])
    return "\n\n".join(map(aligned, shown))


def gap(attribute: Cell | None, position: Cell | None) -> str:
    if attribute is None or position is None or attribute.mean is None or position.mean is None:
        return "n/a"
    return f"{100 * (position.mean - attribute.mean):+.1f}"


EXPLANATION = """\
paper and strict read the same responses.  Where they differ, the published rule has mostly taken a refusal for an
answer: the article "a" (or the d of "I'd") is its last lone letter.  Such a response is "unparsed" under strict: not
correct, and counted in the last column.  The published average drop (9.9) comes from rounded cells; unrounded it is
9.8."""


def csv_rows(cells: Sequence[Cell]) -> list[tuple]:
    names = [field.name for field in dataclasses.fields(Cell)]
    return [tuple(names), *(tuple(getattr(cell, name) for name in names) for cell in cells)]


@click.command("published_tables", cls=Command)
@click.option("--logs", required=True, multiple=True, type=click.Path(path_type=Path), metavar="FILE",
              help="Response lines, plain or gzipped; more than once for more files.")
@click.option("--items", required=True, type=click.Path(path_type=Path), metavar="FILE", help="What was asked.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Where table.csv goes.")
@click.option("--parser", type=click.Choice(PARSERS), default="paper", show_default=True, help="Of table.csv.")
def main(logs: tuple[Path, ...], items: Path, out: Path, parser: str) -> None:
    """Re-derive the published ReKey tables from response logs."""
    lines = read_lines(logs, items)
    read = {name: read_answers(lines, name) for name in PARSERS}
    store.write_atomic(out / "table.csv", as_csv(csv_rows(table(lines, read[parser]))))
    if text := report(lines, read):
        click.echo(f"{text}\n\n{EXPLANATION}\n")
    click.echo(f"{len(lines)} responses; {out / 'table.csv'} holds every model, mode, condition and split "
               f"(parser {parser})")


if __name__ == "__main__":
    main()
