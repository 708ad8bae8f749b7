"""`rekey doctor`: what is here and what is missing, before the job starts; and whether a model can be probed here.

    rekey doctor
    rekey doctor --model Qwen/Qwen3-VL-8B-Instruct        # the self-check of `probes.selfcheck`, as a table
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import textwrap
import time
from collections import Counter
from importlib import metadata
from pathlib import Path

import click

from experiments.cli import EXIT_INPUT, EXIT_SOME_FAILED
from experiments.options import n_cores
from rekey.errors import InputError

NEEDED = ("numpy", "pillow", "scipy", "scikit-image", "opencv-python-headless", "matplotlib", "click", "tqdm",
          "jinja2", "pyarrow", "math-verify")
FOR_MODELS = ("torch", "torchvision", "transformers", "accelerate", "diffusers", "peft", "safetensors",
              "torchmetrics")
OPTIONAL = {"flash-attn": "FlashAttention-2; SDPA is used without it",
            "vllm": "batch evaluation",
            "openai": "asking a model behind a server",
            "scikit-learn": "two of the demo's photos"}
COLUMNS = (7, 34, 33, 21)           # status, what is compared, measured, limit
COLUMN_GAP = 2
TABLE_WIDTH = sum(COLUMNS) + COLUMN_GAP * (len(COLUMNS) - 1)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("."), show_default=True,
              help="Where runs will write.")
@click.option("--model", metavar="NAME",
              help="Load this model (a hub id, a folder, or tiny:FAMILY) and check that the probes are right with it.")
@click.option("--dtype", type=click.Choice(("auto", "float32", "bfloat16", "float16")), default="auto",
              show_default=True, help="auto: bfloat16 on a GPU, float32 on a CPU.")
@click.option("--attention", type=click.Choice(("auto", "sdpa", "flash_attention_2")), default="auto",
              show_default=True, help="The attention kernel.")
@click.option("--device-map", default="auto", show_default=True, metavar="MAP",
              help="Where the weights go: auto (all GPUs), cpu, cuda:0, ...")
@click.option("--max-pixels", type=click.IntRange(min=1), metavar="N",
              help="The largest image, in pixels.  [default: as the model ships]")
@click.pass_context
def doctor(ctx: click.Context, out: Path, model: str | None, **loading) -> None:
    """Say what works here: packages, GPU, disk, cores.  Exit 2 where something needed is missing.

    With --model: load it and run the self-check instead: is the recorded attention the model's own, does a
    continued or swapped state give what reading everything again gives, what does its chat template do to
    reasoning?  Exit 3 where a check failed: with this model, machine and precision the probes would be wrong.

    \b
    rekey doctor --out /scratch/me/runs
    rekey doctor --model tiny:qwen3_vl
    rekey doctor --model Qwen/Qwen3-VL-8B-Instruct --dtype bfloat16
    """
    if model is not None:
        ctx.exit(_check_model(model, loading))
    given = [name for name in loading if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT]
    if given:
        options = ", ".join("--" + name.replace("_", "-") for name in given)
        raise InputError(f"{options}: says how to load a model, but no --model is given; add --model NAME")
    missing = []
    click.echo(f"Python      {sys.version.split()[0]}  {sys.executable}")
    for package in (*NEEDED, *FOR_MODELS):
        version = _version(package)
        click.echo(f"{'ok' if version else 'MISSING':10}  {package} {version or ''}")
        if version is None:
            missing.append(package)
    for package, use in OPTIONAL.items():
        version = _version(package)
        click.echo(f"{'ok' if version else '-':10}  {package} {version or f'(optional: {use}; pip install {package})'}")
    click.echo(f"cores       {n_cores()}")
    click.echo(f"GPU         {_gpu()}")
    click.echo(f"disk        {_disk(out)}")
    hub = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    offline = os.environ.get("HF_HUB_OFFLINE", "0") not in ("0", "")
    click.echo(f"model hub   cache {hub} ({'exists' if Path(hub).exists() else 'empty'}), "
               f"{'offline' if offline else 'online unless HF_HUB_OFFLINE=1'}")
    click.echo(f"Slurm       {shutil.which('sbatch') or 'no sbatch on the path'}")
    needed = [p for p in missing if p in NEEDED]
    if not os.access(_existing(out), os.W_OK):
        click.echo(f"rekey: {out}: cannot be written; give another --out", err=True)
        ctx.exit(EXIT_INPUT)
    if needed:
        click.echo(f"rekey: {', '.join(needed)} missing; install with:  pip install -c constraints.txt -e .", err=True)
        ctx.exit(EXIT_INPUT)
    if missing:
        click.echo(f"Renewing images works; models need {', '.join(missing)}; in the repository:  "
                   "pip install -c constraints.txt -e '.[models]'")
    click.echo("Next:  rekey demo --out demo")


def _check_model(name: str, loading: dict) -> int:
    """Load a model, print its self-check row by row; the exit status."""
    lacking = [package for package in ("torch", "transformers") if importlib.util.find_spec(package) is None]
    if lacking:
        raise InputError(f"--model {name}: {' and '.join(lacking)} not installed; in the repository:  "
                         "pip install -c constraints.txt -e '.[models]'")
    from probes.selfcheck import checks
    from probes.vlm import load_vlm
    click.echo(f"Loads {name}, then runs the self-check on it.")
    began = time.perf_counter()
    vlm = load_vlm(name, **loading)
    about = vlm.describe()
    text = vlm.model.config.get_text_config()
    limits = "none" if vlm.limits is None else f"{about['min_pixels']:,} to {about['max_pixels']:,} pixels"
    click.echo(f"model       {about['class']}, {text.num_hidden_layers} layers, {text.num_attention_heads} heads\n"
               f"weights     {about['dtype']} on {', '.join(about['devices'])}\n"
               f"attention   {about['attention']}: {about['attention_reason']}\n"
               f"images      {limits}\n"
               f"loaded in   {time.perf_counter() - began:.0f} s\n")
    began, rows = time.perf_counter(), []
    click.echo(_row("status", "what is compared", "measured", "limit") + f"\n{'-' * TABLE_WIDTH}")
    for check in checks(vlm):
        rows.append(check)
        click.echo(_row(check.status, check.name, check.measured, check.limit))
        if check.detail:
            indent = " " * (COLUMNS[0] + COLUMN_GAP)
            click.echo(textwrap.fill(check.detail, TABLE_WIDTH, initial_indent=indent, subsequent_indent=indent))
    failed = [check for check in rows if check.failed]
    counts = Counter(check.status for check in rows)
    click.echo(f"\n{counts['ok']} ok, {counts['FAILED']} failed, {counts['skipped']} skipped, {counts['note']} notes; "
               f"{time.perf_counter() - began:.0f} s")
    for check in failed:
        why = f"; {check.detail}" if check.detail else ""
        click.echo(f"rekey: {name}: {check.name}: {check.measured}, expected {check.limit}{why}", err=True)
    if failed:
        click.echo("Refused: with this model, machine and precision the probes would give wrong numbers.\n"
                   "Next:  the same line with --dtype float32, or --attention sdpa, to see where it comes from.")
        return EXIT_SOME_FAILED
    given = "".join(f", {key}={value!r}" for key, value in loading.items() if value not in ("auto", None))
    click.echo(f"Next, in Python:  from probes.vlm import load_vlm\n"
               f"                  vlm = load_vlm({name!r}{given})")
    return 0


def _row(*cells: str) -> str:
    """Cells in the columns of the table."""
    return (" " * COLUMN_GAP).join(cell.ljust(width) for cell, width in zip(cells, COLUMNS)).rstrip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu() -> str:
    if importlib.util.find_spec("torch") is None:
        return "unknown (torch is not installed)"
    import torch
    if not torch.cuda.is_available():
        return f"none that torch {torch.__version__} can use; the classical editor needs none"
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return "; ".join(f"{device.name}, {device.total_memory / 2**30:.0f} GiB" for device in devices)


def _existing(out: Path) -> Path:
    """The folder itself, or the nearest above it that exists."""
    return next(p for p in (out.resolve(), *out.resolve().parents) if p.exists())


def _disk(out: Path) -> str:
    place = _existing(out)
    free = shutil.disk_usage(place).free / 2**30
    locked = "" if os.access(place, os.W_OK) else ", NOT WRITABLE"
    return f"{free:.1f} GiB free at {place}{locked} (an instance of 191 photos takes about 1.2 GiB)"
