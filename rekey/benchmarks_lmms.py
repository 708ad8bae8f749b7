"""Export to lmms-eval: a folder that `lmms-eval --include_path FOLDER --tasks NAME` runs.

    write_lmms_folder(Path("renewed_lmms"), items, portable_image, "rekey_seed1")

The folder holds NAME.yaml, utils.py (`rekey.lmms_task`, copied) and data/test.parquet with columns
item_id, image, question, options, answer, category.  Nothing in it names this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from rekey import lmms_task
from rekey.benchmark_rows import PortableImage, Rejected
from rekey.errors import InputError
from rekey.records import Item

ROWS_AT_ONCE = 16
MAX_NEW_TOKENS = 16
"""As lmms-eval's own vstar_bench task."""

_YAML = """\
# Written by `rekey items export`.  Run it with
#     lmms-eval --include_path THIS_FOLDER --tasks {task} --model ...
# lmms-eval 0.7 finds data/test.parquet beside this file; run older versions from this folder.
# Its response cache (--use_cache) does not look at images: give every instance its own.
dataset_path: parquet
dataset_kwargs:
  data_files:
    test: data/test.parquet
task: {task}
test_split: test
output_type: generate_until
doc_to_visual: !function utils.doc_to_visual
doc_to_text: !function utils.doc_to_text
doc_to_target: !function utils.doc_to_target
generation_kwargs:
  max_new_tokens: {max_new_tokens}
  temperature: 0
  do_sample: false
process_results: !function utils.process_results
metric_list:
{metrics}
lmms_eval_specific_kwargs:
  default:
    pre_prompt: ""
    post_prompt: {letter_suffix}
    free_form_post_prompt: {free_form_suffix}
metadata:
  - version: 1.0
"""
_METRIC = """\
  - metric: {name}
    aggregation: mean
    higher_is_better: {higher}"""


def write_lmms_folder(folder: Path, items: Iterable[Item], portable_image: PortableImage,
                      task: str) -> list[Rejected]:
    """Write the task folder and return the items left out, those without an image."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", task):
        raise InputError(f"task name {task!r}: expected letters, digits, '_' and '-' only; give another "
                         "with --task")
    image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    text = pa.string()
    schema = pa.schema([("item_id", text), ("image", image_type), ("question", text),
                        ("options", pa.list_(text)), ("answer", text), ("category", text)])
    # `datasets` decodes the image column to a PIL image because of this entry.
    features = {name: {"dtype": "string", "_type": "Value"} for name in schema.names}
    features["image"] = {"_type": "Image"}
    features["options"] = {"feature": {"dtype": "string", "_type": "Value"}, "_type": "Sequence"}
    schema = schema.with_metadata({"huggingface": json.dumps({"info": {"features": features}})})

    rejected, categories, rows = [], set(), []
    data = folder / "data" / "test.parquet"
    data.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(data, schema) as writer:
        for item in items:
            image = portable_image(item)
            if image is None:
                rejected.append(Rejected(item.item_id, item.item_id, "has no image"))
                continue
            categories.add(item.category)
            rows.append({"item_id": item.item_id, "image": {"bytes": image[1], "path": image[0]},
                         "question": item.question, "options": list(item.options), "answer": item.answer,
                         "category": item.category or ""})
            if len(rows) == ROWS_AT_ONCE:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                rows = []
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, schema))
    by_category = sorted({lmms_task.category_metric(name) for name in categories if name})
    metrics = [_METRIC.format(name=name, higher="true") for name in ("accuracy", *by_category)]
    metrics.append(_METRIC.format(name="unparsed", higher="false"))
    (folder / f"{task}.yaml").write_text(_YAML.format(
        task=task, max_new_tokens=MAX_NEW_TOKENS, metrics="\n".join(metrics),
        letter_suffix=json.dumps(lmms_task.LETTER_SUFFIX),
        free_form_suffix=json.dumps(lmms_task.FREE_FORM_SUFFIX)), encoding="utf-8")
    (folder / "utils.py").write_text(Path(lmms_task.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    return rejected
