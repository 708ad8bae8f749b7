"""`rekey doctor`: what is here and what is missing, before the job starts."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path

import click

from experiments.cli import EXIT_INPUT
from experiments.options import n_cores

NEEDED = ("numpy", "pillow", "scipy", "scikit-image", "opencv-python-headless", "matplotlib", "click", "tqdm",
          "jinja2", "pyarrow")
FOR_MODELS = ("torch", "torchvision", "transformers", "accelerate", "diffusers", "safetensors")
OPTIONAL = {"flash-attn": "FlashAttention-2; SDPA is used without it",
            "vllm": "batch evaluation",
            "scikit-learn": "two of the demo's photos"}


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("."), show_default=True,
              help="Where runs will write.")
def doctor(out: Path) -> None:
    """Say what works here: packages, GPU, disk, cores.  Exit 2 where something needed is missing.

    \b
    rekey doctor --out /scratch/me/runs
    """
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
        click.get_current_context().exit(EXIT_INPUT)
    if needed:
        click.echo(f"rekey: {', '.join(needed)} missing; install with:  pip install -c constraints.txt -e .", err=True)
        click.get_current_context().exit(EXIT_INPUT)
    if missing:
        click.echo(f"Renewing images works; models need {', '.join(missing)}; in the repository:  "
                   "pip install -c constraints.txt -e '.[models]'")
    click.echo("Next:  rekey demo --out demo")


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
