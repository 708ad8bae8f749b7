"""The direction of imports, and what `rekey --help` loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = {"rekey": set(), "editors": {"rekey"}, "probes": {"rekey"}, "experiments": {"rekey", "editors", "probes"}}
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
           for package in ALLOWED for path in sorted((ROOT / package).rglob("*.py"))}


def imports(path: Path, top_level_only: bool = False) -> set[str]:
    """Full names of our modules that a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] in ALLOWED}


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module):
    package = module.split(".")[0]
    used = {name.split(".")[0] for name in imports(MODULES[module])} - {package}
    assert used <= ALLOWED[package], f"{module} imports {used - ALLOWED[package]}"


def test_imports_make_no_cycle():
    graph = {module: imports(path, top_level_only=True) & set(MODULES) for module, path in MODULES.items()}
    state: dict[str, str] = {}

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert state.get(module) != "open", f"cycle: {' -> '.join((*trail, module))}"
        if state.get(module) != "done":
            state[module] = "open"
            for other in sorted(graph[module]):
                visit(other, (*trail, module))
            state[module] = "done"
    for module in graph:
        visit(module, ())
    assert graph["rekey.sampling"]


def test_help_loads_nothing_heavy():
    code = ("import sys; from experiments.cli import main\n"
            "try: main(['--help'])\nexcept SystemExit: pass\n"
            "print(sorted({m.split('.')[0] for m in sys.modules} & {'numpy', 'cv2', 'torch', 'PIL', 'skimage',"
            " 'scipy', 'matplotlib', 'jinja2', 'pyarrow', 'transformers'}))")
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert "generate" in shown
    assert shown.strip().endswith("[]")


def test_modules_stay_small():
    long = {module: n for module, path in MODULES.items()
            if (n := len(path.read_text(encoding="utf-8").splitlines())) > 400}
    assert not long, f"a file of more than 400 lines usually holds two ideas: {long}"
