"""An audit in tables and sentences.

    print(as_text(audit))                   # the main table, and what each model's numbers can bear
    as_markdown(audit)                      # all tables
"""

from __future__ import annotations

from experiments.progress import aligned
from experiments.tables import counts, drop_text, estimate, interval, markdown_table, p_text, percent, points
from rekey.audit import ALPHA, Audit, ModelAudit

Rows = list[tuple[str, ...]]


def main_table(audit: Audit) -> Rows:
    """One row per model: Table 1 of ReKey with what it lacks."""
    rows: Rows = [("model", "n", "original", "relabel", "renewed, mean ± sd (binomial sd)", "change [95%]", "p",
                   "p, Holm")]
    for model in audit.models:
        relabel = "-" if model.relabel is None else estimate(model.relabel.accuracy)
        renewed = percent(model.renewed.mean)
        if model.renewed.sd is not None:
            renewed += f" ± {percent(model.renewed.sd)}"
        rows.append((model.name, str(model.drop.n), estimate(model.original.accuracy), relabel,
                     f"{renewed} ({percent(model.renewed.binomial_sd)})", drop_text(model.drop), p_text(model.drop.p),
                     p_text(model.p_holm)))
    return rows


def seeds_table(model: ModelAudit) -> Rows:
    rows: Rows = [("benchmark", "n", "accuracy [95%]", "over chance", "unread / cut off / failed")]
    named = [("original", model.original), *([("relabel", model.relabel)] if model.relabel else []),
             *((instance.name, instance.score) for instance in model.instances)]
    for name, score in named:
        rows.append((name, str(score.n), estimate(score.accuracy), estimate(score.corrected), counts(score)))
    return rows


def parts_table(model: ModelAudit) -> Rows:
    rows: Rows = [("part", "images", "original", "renewed", "change [95%]", "unread / cut off / failed")]
    for part in model.parts:
        rows.append((f"{part.split}: {part.name}", str(part.n_images), percent(part.original.accuracy.value),
                     percent(part.renewed.accuracy.value), drop_text(part.drop), counts(part.renewed)))
    return rows


def sentences(model: ModelAudit) -> list[str]:
    """What the numbers say of one model, and what they cannot."""
    return [text for text in (_verdict(model), _of_images(model), _relabel(model), _stale(model), _power(model),
                              _sensitivity(model), _looks(model)) if text]


def _verdict(model: ModelAudit) -> str:
    drop = model.drop
    if drop.p is None:
        return "no image has an answer to both its original and a renewed item"
    seeds = f"{len(model.instances)} seed{'s' if len(model.instances) > 1 else ''}"
    pairs = "" if drop.only_original is None else (
        f"; only the original right {drop.only_original}, only the renewed {drop.only_renewed}")
    found = ("the original items are answered better than fresh draws of them" if model.p_holm <= ALPHA else
             "it is not shown that the original items are answered better than fresh draws of them")
    return (f"this benchmark: {found} (exact test on {drop.n} images, {seeds}, one-sided p {p_text(drop.p)}, Holm "
            f"{p_text(model.p_holm)}{pairs}); change {drop_text(drop)} points")


def _of_images(model: ModelAudit) -> str:
    drop = model.drop_images
    if drop.value is None:
        return ""
    return (f"images like these: change {points(-drop.value)}{interval(-drop.high, -drop.low, points)} points "
            f"(bootstrap over {drop.n} images)")


def _relabel(model: ModelAudit) -> str:
    gap = model.relabel_gap
    if gap is None or gap.drop is None:
        return ""
    return (f"relabel, other questions on the same images: change {drop_text(gap)} points (McNemar "
            f"{gap.only_original} / {gap.only_renewed}, two-sided p {p_text(gap.p_two_sided)}); part of it may be "
            "another difficulty")


def _stale(model: ModelAudit) -> str:
    stale = model.stale
    if stale is None:
        return ""
    if stale.p is None:
        return f"stale answers: none; no wrong answer to the {stale.n_items} items that offer the old one"
    return (f"stale answers: {stale.n_stale} of {stale.n_items} items that offer the old color "
            f"({percent(stale.rate)}%); of {stale.n_wrong} wrong answers {percent(stale.rate_of_wrong)}%, expected "
            f"{percent(stale.expected)}% if the old color drew no more than any of its name (exact, p "
            f"{p_text(stale.p)})")


def _power(model: ModelAudit) -> str:
    plan = model.plan
    if plan is None:
        return ""
    if not plan.power:
        return (f"power: the renewed score leaves no room for a drop of {100 * plan.target:g} points on these "
                f"{plan.n_images} images")
    found = ", ".join(f"{name} in {100 * power:.0f}%" for name, power in plan.power.items())
    images = f"{plan.images_needed:,} images" if plan.images_needed else "no number of images up to 20,000"
    seeds = f"{plan.seeds_needed} seeds" if plan.seeds_needed else "no number of seeds"
    smallest = "none" if plan.smallest_drop is None else f"{100 * plan.smallest_drop:.1f} points"
    return (f"power with {plan.n_images} images, {plan.n_seeds} seeds: a drop of {found} of audits; found four times "
            f"in five: {smallest}; for {100 * plan.target:g} points it takes {images} at these seeds, or {seeds} on "
            "these images")


def _sensitivity(model: ModelAudit) -> str:
    one = model.sensitivity
    if not one.n_uncertain:
        return "every answer was read"
    return (f"had the unread, cut-off and failed answers ({one.n_uncertain}) been wrong: p {p_text(one.all_wrong)}; "
            f"right: {p_text(one.all_right)}; at worst for the finding {p_text(one.worst)}, at best {p_text(one.best)}")


def _looks(model: ModelAudit) -> str:
    if len(model.looks) < 2:
        return ""
    shown = ", ".join(f"seed {look.n_seeds} p {p_text(look.p)} (level {look.level:.3f})" for look in model.looks)
    first = next((look.n_seeds for look in model.looks if look.found), None)
    verdict = f"found after seed {first}" if first else "not found so far"
    return f"if looked at after every seed: {verdict}: {shown}"


def as_text(audit: Audit) -> str:
    """For the terminal: the main table and the sentences."""
    blocks = [aligned(main_table(audit))]
    for model in audit.models:
        blocks.append("\n".join((model.name, *(f"  {text}" for text in sentences(model)))))
    return "\n\n".join(blocks + [f"note: {note}" for note in audit.notes])


def as_markdown(audit: Audit) -> str:
    """All tables and sentences."""
    parts = [f"# Audit\n\nParser: {audit.parser}. Accuracy in percent, changes in percentage points, 95% intervals. "
             "Tests are exact, for these images, and one-sided: the original higher.\n",
             markdown_table(main_table(audit))]
    for model in audit.models:
        parts += [f"\n## {model.name}\n", "".join(f"- {text}\n" for text in sentences(model)),
                  markdown_table(seeds_table(model)), "\nIntervals of parts are exploratory: not corrected for their "
                  "number.\n", markdown_table(parts_table(model))]
    parts += [f"\nNote: {note}\n" for note in audit.notes]
    return "\n".join(parts)
