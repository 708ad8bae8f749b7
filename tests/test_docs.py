"""Every `rekey` line in the documentation is run, in the order in which it stands."""

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from test_generate import sources  # noqa: F401  (a fixture)

from experiments.cli import main
from probes.families import family_table

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# These have tests of their own, or need a server, or 28 GB of weights.
SKIPPED = ("rekey demo", "rekey plot swap", "rekey controls train", "rekey controls score",
           "rekey generate --slots slots.jsonl --images photos --seed 1 --out runs/flux",
           "rekey evaluate --items seed1 --model qwen3-vl --backend openai")


def commands(page: Path) -> list[str]:
    """Lines of code blocks (fenced or indented) that call rekey, without comments and redirections."""
    lines = re.findall(r"^(?: {4})?(rekey [a-z].*)$", page.read_text(encoding="utf-8"), re.M)
    return [line for text in lines if not (line := re.split(r"\s{2,}#|\s>\s", text)[0].strip()).startswith(SKIPPED)]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_the_commands_of_a_page_work(page, sources, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    shutil.copytree(sources, tmp_path, dirs_exist_ok=True)
    shutil.copy(ROOT / "tests" / "data" / "label_studio_export.json", "project-1.json")
    todo = commands(page)
    if page.name == "items.md":
        todo.insert(0, "rekey generate --slots slots.jsonl --images photos --seed 1 --out runs/seed1")
    for line in todo:
        if " import project-1.json" in line:
            Path("slots.jsonl").unlink()
        result = CliRunner().invoke(main, shlex.split(line)[1:], catch_exceptions=False)
        assert result.exit_code == 0, f"{line}\n{result.output}"
        if " import project-1.json" in line:               # the export shows other images than those at hand
            shutil.copy(sources / "slots.jsonl", "slots.jsonl")
    assert todo or page.name in ("demo.md", "difficulty.md", "certificates.md", "attention.md")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["models.md", "attention.md", "editors.md"])
def test_the_python_of_a_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for file, size in (("photo.jpg", (120, 160)), ("other.jpg", (90, 120))):
        Image.fromarray(rng.integers(0, 255, (*size, 3), np.uint8)).save(file)
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / name).read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    names: dict = {}
    for block in blocks:
        exec(compile(block, name, "exec"), names)


def test_the_table_of_families_is_the_one_in_the_code():
    assert family_table() in (ROOT / "docs" / "models.md").read_text(encoding="utf-8")


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
