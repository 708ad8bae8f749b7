"""`rekey evaluate`: put a benchmark to a model."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.cli import EXIT_SOME_FAILED
from experiments.options import command
from experiments.progress import Progress, list_failures
from rekey.evaluate import MAX_NEW_TOKENS


@click.command()
@click.option("--items", required=True, type=click.Path(path_type=Path), metavar="DIR",
              help="A benchmark: the folder of `rekey generate`, `rekey scenes` or `rekey items import`.")
@click.option("--model", required=True, metavar="NAME",
              help="A hub id, a folder, control:NAME or tiny:FAMILY; with --backend openai the server's name for it.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="Responses, one JSON line each, appended; several models and benchmarks may share it.")
@click.option("--prompt", type=click.Choice(("direct", "cot")), default="direct", show_default=True,
              help="The benchmark's own prompt, or the one that asks for steps first.")
@click.option("--thinking", type=click.Choice(("default", "on", "off")), default="default", show_default=True,
              help="For models whose chat template has the switch.")
@click.option("--backend", type=click.Choice(("hf", "vllm", "openai")), default="hf", show_default=True,
              help="transformers here, vLLM here, or any OpenAI-compatible server.")
@click.option("--base-url", metavar="URL", help="openai: the server, such as http://localhost:8000/v1.  The key, if it "
              "needs one, is read from OPENAI_API_KEY and written nowhere.")
@click.option("--processor", metavar="NAME", help="openai: the model's files here, to tell what size of image it sees.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=MAX_NEW_TOKENS, show_default=True)
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), help="Of sampled answers (with --temperature).")
@click.option("--min-pixels", type=click.IntRange(min=1), help="Smallest area of an image.  [default: the model's own]")
@click.option("--max-pixels", type=click.IntRange(min=1), help="Largest area of an image.  [default: the model's own]")
@click.option("--revision", help="A commit or branch of a hub model.")
@click.option("--dtype", type=click.Choice(("auto", "bfloat16", "float16", "float32")), default="auto",
              show_default=True)
@click.option("--device", "device_map", default="auto", show_default=True, metavar="auto|cpu|cuda:N",
              help="hf: where the model runs; auto spreads it over all GPUs.")
@click.option("--attention", type=click.Choice(("auto", "sdpa", "flash_attention_2")), default="auto",
              show_default=True)
@click.option("--zoom-steps", type=click.IntRange(min=1), metavar="N",
              help="hf: let the model cut out and enlarge parts of the picture up to N times (give --prompt cot).")
@click.option("--batch-size", type=click.IntRange(min=1), help="Questions at a time.  [default: 1; vllm: 64]")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True,
              help="hf: processes with a model each, on GPUs in turn; openai: requests at once.")
@click.option("--shard", metavar="i/n", help="Ask the i-th of n parts, into a file of its own beside --out; every "
              "command that reads --out reads its shards as well.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N items: a trial.")
def evaluate(items, model, out, prompt, thinking, backend, base_url, processor, max_new_tokens, temperature, seed,
             min_pixels, max_pixels, revision, dtype, device_map, attention, zoom_steps, batch_size, workers, shard,
             limit) -> None:
    """Put a benchmark to a model; grading comes later, from the stored lines.

    \b
    rekey evaluate --items runs/seed1 --model control:clean --out runs/clean/seed1.jsonl
    rekey evaluate --items runs/seed1 --model Qwen/Qwen3-VL-8B-Instruct --out runs/qwen/seed1.jsonl --shard 2/8
    rekey evaluate --items runs/seed1 --model qwen3-vl --backend openai --base-url http://localhost:8000/v1 \\
                   --workers 16 --out runs/served/seed1.jsonl

    Stopped or killed, the same line goes on where it was, with any number of workers or shards.  Questions that failed
    (a server that did not answer, a broken image) are listed, asked again by the same line, and never count as wrong.
    """
    from experiments.evaluate import EvaluateJob, report_lines
    from experiments.evaluate import evaluate as run
    from probes.backends import VLLM_BATCH, ModelSpec
    from rekey.evaluate import Settings
    from rekey.store import parse_shard
    settings = Settings(prompt, {"on": True, "off": False}.get(thinking), max_new_tokens, temperature, seed)
    spec = ModelSpec(model, backend, revision, dtype, device_map, attention, min_pixels, max_pixels, base_url,
                     processor, zoom_steps)
    spec.check()
    job = EvaluateJob(items, spec, out, settings, batch_size or (VLLM_BATCH if backend == "vllm" else 1), workers,
                      parse_shard(shard) if shard else None, limit)
    click.echo(f"Asking {model} ({backend}) the items of {items}, prompt {prompt}, into {out}")
    with Progress("questions") as progress:
        summary = run(job, progress)
    for line in report_lines(summary):
        click.echo(line)
    list_failures(summary.failures, "the same line asks them again")
    if summary.failures:
        click.get_current_context().exit(EXIT_SOME_FAILED)
    click.echo(f"Next:  {command('regrade', out)}\n"
               f"or     {command('audit', '--original', 'ORIGINAL.jsonl', '--renewed', out, '--out', 'AUDIT')}")
