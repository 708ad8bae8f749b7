"""`rekey attend`: trace the attention of stored trials."""

from __future__ import annotations

from pathlib import Path

import click

from experiments.cli import EXIT_SOME_FAILED
from experiments.options import Listed, command
from experiments.progress import Progress, list_failures

N_WINDOW = 100                   # as in `probes.trace_store`, which --help does not load


@click.command()
@click.option("--trials", required=True, type=click.Path(path_type=Path), metavar="FILE|DIR",
              help="Trials of `rekey probe`: their file, or its folder.")
@click.option("--model", required=True, metavar="NAME", help="The model that answered, as for `rekey probe`.")
@click.option("--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Where the traces go.")
@click.option("--conditions", multiple=True, metavar="NAME", help="Only these, as tables name them: base, probe, "
              "multi-turn, \"null swap, probe\", ...  Repeatable.  [default: all]")
@click.option("--pairs", type=click.Path(path_type=Path), metavar="FILE|DIR",
              help="The pairs, if they have moved since the trials were run.")
@click.option("--layers", type=Listed(int, -1000), metavar="N,N,...",
              help="Only these layers, from 0; negative ones from the end.  [default: all]")
@click.option("--mean-heads", is_flag=True, help="Keep the mean over heads alone: 1/heads of the disk.")
@click.option("--window", type=click.IntRange(min=1), default=N_WINDOW, show_default=True, metavar="TOKENS",
              help="On either side of the phrase, for the maps over the image.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only trials of the first N pairs.")
@click.option("--revision", help="A commit or branch of a hub model.")
@click.option("--dtype", type=click.Choice(("auto", "bfloat16", "float16", "float32")), default="auto",
              show_default=True, help="auto: as the trials were run.")
@click.option("--device", "device_map", default="auto", show_default=True, metavar="auto|cpu|cuda:N")
@click.option("--attention", type=click.Choice(("auto", "sdpa", "flash_attention_2")), default="auto",
              show_default=True)
def attend(trials, model, out, conditions, pairs, layers, mean_heads, window, limit, revision, dtype, device_map,
           attention) -> None:
    """Attention traces of stored trials: every layer, head and step, and maps over the image.

    \b
    rekey attend --trials runs/probe --model control:grounded --out runs/probe/traces
    rekey attend --trials runs/probe --model Qwen/Qwen3-VL-8B-Thinking --conditions probe --conditions multi-turn \\
                 --mean-heads --out runs/probe/traces

    Nothing is generated: what was said is read once more, as it was said, and comes out as decoding would have recorded
    it.  Traces that are there are kept; trials that could not be traced are listed and tried again by the same line.
    """
    from experiments.attend import AttendJob, report_lines
    from experiments.attend import attend as run
    from probes.backends import ModelSpec
    spec = ModelSpec(model, revision=revision, dtype=dtype, device_map=device_map, attention=attention)
    job = AttendJob(trials, spec, out, conditions, pairs, layers, not mean_heads, window, limit)
    click.echo(f"Tracing the trials of {model} in {trials}, {', '.join(conditions) or 'all conditions'}, into {out}")
    with Progress("trials") as progress:
        summary = run(job, progress)
    for line in report_lines(summary):
        click.echo(line)
    list_failures(summary.failures, "the same line tries them again")
    if summary.failures:
        click.get_current_context().exit(EXIT_SOME_FAILED)
    click.echo(f"Next:  {command('plot', out)}")
