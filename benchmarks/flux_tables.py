"""The lines that `benchmarks.flux_editing` measured, as tables in markdown.

    tables([{"part": "setting", ...}, {"part": "speed", ...}])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

N_EDITS = 268                   # of one instance of V*Bench: 114 attributes and 77 pairs of objects
LARGE_SHARE = 0.045             # of its crops are larger than 512 px
GOAL_MINUTES = 5.0
SPEED = ("canvas", "start", "steps", "batch", "mode", "s/edit", "edits/min", "TF/edit", "TFLOP/s", "floor s",
         "of peak", "peak GB", "first call s")

Line = dict[str, Any]


def tables(lines: Sequence[Line]) -> str:
    """All that was measured so far."""
    def of(part: str) -> list[Line]:
        return [line for line in lines if line["part"] == part]
    blocks = [_setting(line) for line in of("setting")]
    if speed := of("speed"):
        blocks += [_table(SPEED, map(_speed_row, speed)), _projections(of("setting")[0], speed, of("arithmetic"))]
    notes = [f"- arithmetic at {line['canvas_px']} px with {line['text_tokens']} text tokens: "
             f"{line['transformer']:.3g} + {line['controlnet']:.3g} TF a step (transformer, ControlNet), VAE "
             f"{line['encode']:.3g} to encode and {line['decode']:.3g} to decode" for line in of("arithmetic")]
    notes += [f"- loading: {line['load_s']:.1f} s, held {_number(line['held_gb'], '.1f')} GB; {line['n_prompts']} "
              f"prompts encoded in {line['encode_prompts_s']:.1f} s" for line in of("load")]
    notes += [f"- compiling {line['canvas_px']} px, batch {line['batch']}: {line['cold_s']:.0f} s cold, "
              f"{line['first_call_s']:.0f} s again from its cache" for line in of("compiled again")]
    notes += [_cpu(line, speed if is_result(of("setting")[0]) else ()) for line in of("cpu")]
    if notes:
        blocks.append("\n".join(notes))
    if certified := of("certified"):
        blocks.append(_certified(certified))
    if left_out := of("left out"):
        blocks.append("\n".join(["Left out:", "", *(f"- {line['what']}: {line['reason']}" for line in left_out)]))
    return "\n\n".join(blocks) + "\n"


def is_result(setting: Line) -> bool:
    """Whether the times say anything about editing: the real size, the real canvases, a GPU."""
    return setting["random"] != "tiny" and not setting["small"] and setting["device"] == "cuda"


def _setting(line: Line) -> str:
    weights = ", ".join(one["id"] + (f"@{one['revision'][:12]}" if one["revision"] else "")
                        for one in line["weights"].values())
    said = (f"{line['date']}; {line['hardware']}; torch {line['torch']} (CUDA {line['cuda'] or 'none'}), diffusers "
            f"{line['diffusers']}, transformers {line['transformers']}; {weights}; {line['dtype']}, "
            f"{line['text_tokens']} text tokens")
    warnings = []
    if line["random"] == "tiny":
        warnings.append("**A TINY RANDOM MODEL: its times and certificates are no result; this run tried the script. "
                        "Only the CPU side is real.**")
    elif line["small"]:
        warnings.append("**SMALL CANVASES AND FEW STEPS: times and certificates are no result; this run tried the "
                        "script. Only the CPU side is real.**")
    elif line["random"] == "full":
        warnings.append("**RANDOM WEIGHTS of the real size: times and memory are real, pictures would be noise.**")
    if line["device"] == "cpu":
        warnings.append("**ON A CPU: processor time; nothing here says how fast a GPU is.**")
    return "\n\n".join([said, *warnings])


def _speed_row(line: Line) -> tuple[str, ...]:
    return (f"{line['canvas_px']}", line["start"], f"{line['steps']}", f"{line['batch']}", line["mode"],
            f"{line['s_per_edit']:.3f}", f"{60 / line['s_per_edit']:.1f}", f"{line['tf_per_edit']:.3g}",
            f"{line['tflops']:.3g}", _number(line["floor_s"], ".3f"), _number(line["share_of_peak"], ".0%"),
            _number(line["peak_gb"], ".1f"),
            f"{line['first_call_s']:.1f}" + (" (new shape)" if line["first_of_its_shape"] else ""))


def minutes_per_instance(setting: Line, speed: Sequence[Line], flops: Sequence[Line], start: str,
                         mode: str) -> tuple[float, bool] | None:
    """(minutes for one attempt at each of N_EDITS edits, whether both canvases were measured).

    At the usual batches: that of the settings on the small canvas, one edit at a time on the large one, whose time,
    if it was not measured, is the small one's times the ratio of their arithmetic.
    """
    small, large = setting["canvases_px"]

    def seconds(canvas_px: int, batch: int) -> float | None:
        return next((line["s_per_edit"] for line in speed if (line["canvas_px"], line["batch"], line["start"],
                     line["mode"]) == (canvas_px, batch, start, mode)), None)
    at_small, at_large = seconds(small, setting["usual_batch"]), seconds(large, 1)
    if at_small is None:
        return None
    measured = at_large is not None
    if not measured:
        by_canvas = {line["canvas_px"]: line["transformer"] + line["controlnet"] for line in flops}
        at_large = at_small * by_canvas[large] / by_canvas[small]
    n_large = round(LARGE_SHARE * N_EDITS)
    return ((N_EDITS - n_large) * at_small + n_large * at_large) / 60, measured


def _projections(setting: Line, speed: Sequence[Line], flops: Sequence[Line]) -> str:
    notes = []
    for mode in ("eager", "compiled"):
        for start in ("prepaint", "source"):
            found = minutes_per_instance(setting, speed, flops, start, mode)
            if found is None:
                notes.append(f"- {N_EDITS} edits, {start}, {mode}: not measured")
                continue
            minutes, measured = found
            verdict = "held" if minutes < GOAL_MINUTES else "MISSED"
            basis = "" if measured else " (the large canvas by its arithmetic)"
            notes.append(f"- {N_EDITS} edits, one attempt each, {start}, {mode}: {minutes:.2f} minutes{basis}; under "
                         f"{GOAL_MINUTES:.0f} wanted"
                         + (f": {verdict}" if is_result(setting) else ""))
    return "\n".join(notes)


def _cpu(line: Line, speed: Sequence[Line]) -> str:
    seconds, cores = line["seconds"], line["n_cores"]
    total = sum(seconds.values())
    said = (f"- the CPU side of an edit, one process, mean of {line['n_edits']} demo edits (the photograph of "
            f"V*Bench's size): {total:.2f} s ({', '.join(f'{name} {value:.3f}' for name, value in seconds.items())}); "
            f"{total / cores:.3f} s with all {cores} cores")
    fastest = min((one["s_per_edit"] for one in speed), default=None)
    if fastest is None:
        return said
    hides = "hides behind" if total / cores < fastest else "does NOT hide behind"
    return f"{said}: {hides} the fastest painting, {fastest:.3f} s an edit"


def _certified(lines: Sequence[Line]) -> str:
    def row(line: Line) -> tuple[str, ...]:
        failed = ", ".join(f"{name} {n}" for name, n in line["failed_checks"].items()) or "none"
        return (f"{line['canvas_px']}", line["mode"], line["start"], f"{line['n']}", f"{line['passed']}",
                f"{line['share']:.1%} [{line['low']:.1%}, {line['high']:.1%}]", failed)
    return "First attempts on the demo photographs:\n\n" + _table(
        ("canvas", "mode", "start", "edits", "certified", "share", "failed checks"), map(row, lines))


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows))


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
