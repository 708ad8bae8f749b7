"""Chart questions of procedural figures: bars, grouped bars, lines and pies, one value changed.

    twin = FORMS["highest bar"](Draws("an example"))
    paint(twin.a).pixels(), twin.question, twin.answer_a

The statistical charts that the paper takes from MathVista (VisualSwap, Sec. 3).  A value that is asked for is printed,
or lies on a grid line, so that careful reading gives it exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rekey.draws import Draws
from rekey.figure_canvas import SERIES_COLORS, draw_style
from rekey.figure_chart_painting import Chart, letters_fit, paint, plot_box
from rekey.figure_forms import Form, Redraw, Twin, between, near, need, other_than, typical

__all__ = ["FORMS", "paint"]

SIZES = ((560, 400), (600, 420), (520, 420), (640, 440), (500, 400))
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug")
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_YEARS = ("2016", "2017", "2018", "2019", "2020", "2021", "2022", "2023")
_PEOPLE = ("Anna", "Ben", "Chloe", "David", "Ella", "Farid", "Grace", "Hugo")
_CITIES = ("Oslo", "Lima", "Cairo", "Delhi", "Kyoto", "Paris", "Quito", "Seoul")
_FRUIT = ("Apple", "Pear", "Plum", "Kiwi", "Mango", "Peach", "Grape")
_FEW, _MANY = (1, 2, 5), (10, 20, 50)
# Title, title of the value axis, categories, what one is called, steps that the value axis may have.
_TOPICS = (
    ("Visitors to the library", "Visitors", _DAYS, "day", _MANY),
    ("Loaves sold per day", "Loaves", _DAYS, "day", _MANY),
    ("Rainfall by month", "Rainfall (mm)", _MONTHS, "month", _FEW + _MANY[:1]),
    ("Tickets sold per month", "Tickets", _MONTHS, "month", _MANY),
    ("New members per year", "Members", _YEARS, "year", _FEW + _MANY),
    ("Trees planted per year", "Trees", _YEARS, "year", _MANY),
    ("Books read this year", "Books", _PEOPLE, "person", _FEW),
    ("Points in the quiz", "Points", _PEOPLE, "person", _FEW + _MANY[:1]),
    ("Bicycles sold per shop", "Bicycles", _CITIES, "city", _FEW + _MANY),
    ("Flights per day", "Flights", _CITIES, "city", _FEW + _MANY),
    ("Crates delivered", "Crates", _FRUIT, "fruit", _FEW),
    ("Favorite fruit in the survey", "Votes", _FRUIT, "fruit", _FEW),
)
_GROUPED_TOPICS = (
    ("Visitors to the library", "Visitors", _DAYS, "days", _MANY, ("Adults", "Children")),
    ("Bicycles sold per city", "Bicycles", _CITIES, "cities", _FEW + _MANY, ("Online", "In store")),
    ("Points per month", "Points", _MONTHS, "months", _FEW + _MANY[:1], ("Team A", "Team B")),
    ("New members per year", "Members", _YEARS, "years", _FEW, ("Boys", "Girls")),
    ("Rainfall by month", "Rainfall (mm)", _MONTHS, "months", _FEW + _MANY[:1], ("North", "South")),
)
_IN_ORDER = (_MONTHS, _DAYS, _YEARS)
_PIES = (
    ("How students get to school", ("Bus", "Bicycle", "Walking", "Car", "Train")),
    ("Household budget", ("Rent", "Food", "Travel", "Clothes", "Savings")),
    ("Energy sources", ("Wind", "Solar", "Hydro", "Gas", "Coal")),
    ("Favorite subjects", ("Art", "Math", "Music", "History", "Sports")),
    ("Pets in the neighborhood", ("Cats", "Dogs", "Fish", "Birds", "Rabbits")),
)
_WHOLE = "Give a whole number."
_N_STEPS = 10                 # of the value axis


def _style(draws: Draws, colors: Sequence[str]) -> dict[str, Any]:
    # Only the first colors are light enough for a dark ground.
    return draw_style(draws, SIZES, dark=colors == SERIES_COLORS[0])


def _blank(draws: Draws, chart: str, n: int) -> Chart:
    """A chart without values.  Raises Redraw where its letters have no room."""
    topics = _GROUPED_TOPICS if chart == "grouped bar" else [
        topic for topic in _TOPICS if chart == "bar" or topic[2] in _IN_ORDER]
    title, y_title, names, noun, steps, *groups = draws.choice(topics)
    first = draws.below(len(names) - n + 1)
    categories = list(names[first:first + n]) if names in _IN_ORDER else draws.shuffled(names)[:n]
    colors = draws.choice(SERIES_COLORS)
    palette = draws.shuffled(colors)
    # Bars of one series may each have a color of their own.
    many = chart == "bar" and n <= len(palette) and not draws.below(3)
    series = [{"name": name, "values": [0] * n, "colors": palette[:n] if many else [palette[i]] * n}
              for i, name in enumerate(groups[0] if groups else ("",))]
    step = draws.choice(steps)
    blank: Chart = {
        **_style(draws, colors), "chart": chart, "title": title, "y_title": y_title, "categories": categories,
        "noun": noun, "series": series, "printed": chart == "bar" and not draws.below(3), "threshold": None,
        "axis": {"max": step * _N_STEPS, "step": step, "label_every": draws.choice((1, 2))},
        "bar_share": draws.choice((0.56, 0.64, 0.72)), "filled": bool(draws.below(2)),
    }
    blank["plot"] = plot_box(blank)
    if not letters_fit(blank):
        raise Redraw("long words")
    return blank


def _filled(chart: Chart, *heights: Sequence[int]) -> Chart:
    """The chart with the values of its series, given in steps of its axis."""
    series = [{**one, "values": [height * chart["axis"]["step"] for height in values]}
              for one, values in zip(chart["series"], heights)]
    return {**chart, "series": series}


def _heights(draws: Draws, n: int, low: int = 1, high: int = _N_STEPS - 1) -> list[int]:
    return [between(draws, low, high) for _ in range(n)]


def _changed(values: Sequence[int], index: int, value: int) -> list[int]:
    return [*values[:index], value, *values[index + 1:]]


def _moved(draws: Draws, value: int, low: int = 1, high: int = _N_STEPS - 1, by: int = 2) -> int:
    """Another height, some steps away."""
    return other_than(draws, range(max(low, value - by), min(high, value + by) + 1), value)


# ---------------------------------------------------------------------------------- forms

def _bar_value(draws: Draws) -> Twin:
    chart = _blank(draws, "bar", between(draws, 4, 7))
    heights = _heights(draws, len(chart["categories"]))
    index = draws.below(len(heights))
    other, step = _moved(draws, heights[index]), chart["axis"]["step"]
    right = heights[index] * step, other * step
    question = f"What value does the chart show for {chart['categories'][index]}?"
    return Twin(_filled(chart, heights), _filled(chart, _changed(heights, index, other)), question, str(right[0]),
                str(right[1]), near(draws, *right, lowest=step, step=step), _WHOLE)


def _extreme(draws: Draws, chart: Chart) -> Twin:
    """Which category is the highest or lowest; another one overtakes it in the twin."""
    highest, names = bool(draws.below(2)), chart["categories"]
    heights = _heights(draws, len(names), 2, _N_STEPS - 2)
    sign = 1 if highest else -1
    ranked = sorted(range(len(names)), key=lambda i: sign * heights[i], reverse=True)
    first, second = ranked[:2]
    # Only one stands out, the next one is near, and it overtakes by a step or two.
    need(1 <= sign * (heights[first] - heights[second]) <= 3)
    over = heights[first] + sign * between(draws, 1, 2)
    need(1 <= over <= _N_STEPS)
    wrong = draws.shuffled([name for i, name in enumerate(names) if i not in (first, second)])
    question = f"Which {chart['noun']} has the {'highest' if highest else 'lowest'} value?"
    return Twin(_filled(chart, heights), _filled(chart, _changed(heights, second, over)), question, names[first],
                names[second], tuple(wrong))


def _highest_bar(draws: Draws) -> Twin:
    return _extreme(draws, _blank(draws, "bar", between(draws, 4, 7)))


def _extreme_point(draws: Draws) -> Twin:
    return _extreme(draws, _blank(draws, "line", between(draws, 5, 7)))


def _difference(draws: Draws) -> Twin:
    chart = _blank(draws, "bar", between(draws, 4, 7))
    heights, step = _heights(draws, len(chart["categories"])), chart["axis"]["step"]
    high, low = draws.shuffled(range(len(heights)))[:2]
    need(heights[high] >= heights[low] + 2)
    other = _moved(draws, heights[high], heights[low] + 1)
    right = [(height - heights[low]) * step for height in (heights[high], other)]
    mistakes = [(heights[high] + heights[low]) * step, heights[high] * step, heights[low] * step]
    wrong = typical(draws, *mistakes) + near(draws, *right, lowest=step, step=step)
    question = "By how much is the value for {} greater than the value for {}?"
    names = chart["categories"]
    return Twin(_filled(chart, heights), _filled(chart, _changed(heights, high, other)),
                question.format(names[high], names[low]), str(right[0]), str(right[1]), wrong, _WHOLE)


def _bars_above(draws: Draws) -> Twin:
    chart = _blank(draws, "bar", between(draws, 5, 7))
    heights, step = _heights(draws, len(chart["categories"])), chart["axis"]["step"]
    level = between(draws, 3, _N_STEPS - 4)
    index = draws.below(len(heights))
    below, above = level - draws.below(2), level + 1 + draws.below(2)
    heights[index] = below
    # Halfway between grid lines, no bar touches it.
    chart["threshold"] = (level + 0.5) * step
    n_above = sum(height > level for height in heights)
    over = bool(draws.below(2))
    right = [n_above, n_above + 1] if over else [len(heights) - n_above, len(heights) - n_above - 1]
    chart["printed"] = False
    return Twin(_filled(chart, heights), _filled(chart, _changed(heights, index, above)),
                f"How many bars {'rise above' if over else 'stay below'} the dashed line?", str(right[0]),
                str(right[1]), near(draws, *right, highest=len(heights)), _WHOLE)


def _sum(draws: Draws) -> Twin:
    chart = _blank(draws, "bar", between(draws, 3, 4))
    heights, step = _heights(draws, len(chart["categories"])), chart["axis"]["step"]
    index = draws.below(len(heights))
    other = _moved(draws, heights[index])
    right = sum(heights) * step, (sum(heights) - heights[index] + other) * step
    return Twin(_filled(chart, heights), _filled(chart, _changed(heights, index, other)),
                "What is the sum of all values in the chart?", str(right[0]), str(right[1]),
                near(draws, *right, lowest=step, step=step), _WHOLE)


def _ratio(draws: Draws) -> Twin:
    chart = _blank(draws, "bar", between(draws, 4, 6))
    heights = _heights(draws, len(chart["categories"]))
    big, small = draws.shuffled(range(len(heights)))[:2]
    times, heights[small] = between(draws, 1, 4), between(draws, 1, 3)
    other = times + 1
    need(other * heights[small] <= _N_STEPS)
    heights[big] = times * heights[small]
    names = chart["categories"]
    question = f"The value for {names[big]} is how many times the value for {names[small]}?"
    return Twin(_filled(chart, heights), _filled(chart, _changed(heights, big, other * heights[small])), question,
                str(times), str(other), near(draws, times, other, lowest=1), _WHOLE)


def _grouped(draws: Draws) -> Twin:
    chart = _blank(draws, "grouped bar", between(draws, 4, 6))
    names = [series["name"] for series in chart["series"]]
    first, second = _heights(draws, len(chart["categories"])), _heights(draws, len(chart["categories"]))
    need(all(a != b for a, b in zip(first, second)))
    index = draws.below(len(first))
    sign = 1 if first[index] < second[index] else -1
    other = second[index] + sign * between(draws, 1, 2)
    need(1 <= other <= _N_STEPS)
    n_over = sum(a > b for a, b in zip(first, second))
    right = n_over, n_over + sign
    question = f"For how many {chart['noun']} is the bar for “{names[0]}” taller than the bar for “{names[1]}”?"
    return Twin(_filled(chart, first, second), _filled(chart, _changed(first, index, other), second), question,
                str(right[0]), str(right[1]), near(draws, *right, highest=len(first)), _WHOLE)


def _steepest_rise(draws: Draws) -> Twin:
    chart = _blank(draws, "line", between(draws, 5, 7))
    heights, names = _heights(draws, len(chart["categories"])), chart["categories"]
    index = draws.below(len(heights))
    other = _changed(heights, index, _moved(draws, heights[index], by=4))
    spans = [f"From {before} to {after}" for before, after in zip(names, names[1:])]

    def steepest(values: Sequence[int]) -> int:
        rises = [after - before for before, after in zip(values, values[1:])]
        ranked = sorted(range(len(rises)), key=rises.__getitem__, reverse=True)
        need(rises[ranked[0]] >= 2 and rises[ranked[0]] > rises[ranked[1]])
        return ranked[0]
    right = [steepest(values) for values in (heights, other)]
    return Twin(_filled(chart, heights), _filled(chart, other), "Between which two neighboring points does the line "
                "rise the most?", spans[right[0]], spans[right[1]], tuple(draws.shuffled(spans)))


def _pie(draws: Draws) -> tuple[Chart, list[int]]:
    """A pie without values, and values for it."""
    title, names = draws.choice(_PIES)
    n = between(draws, 4, 5)
    shares = [between(draws, 10, 38) for _ in range(n - 1)]
    need(10 <= 100 - sum(shares) <= 40)
    shares.append(100 - sum(shares))
    colors = draws.choice(SERIES_COLORS)
    pie: dict[str, Any] = {
        **_style(draws, colors), "chart": "pie", "title": title, "categories": draws.shuffled(names)[:n],
        "series": [{"name": "", "values": shares, "colors": draws.shuffled(colors)[:n]}], "shown": [True] * n,
        "start": draws.choice((90, 60, 30, 0)),
    }
    return pie, shares


def _sliced(pie: Chart, shares: Sequence[int]) -> Chart:
    return {**pie, "series": [{**pie["series"][0], "values": list(shares)}]}


def _neighbor(draws: Draws, index: int, n: int) -> int:
    # Not across the first boundary, from where sectors are laid out: all of them would turn.
    return other_than(draws, [i for i in (index - 1, index + 1) if 0 <= i < n])


def _missing_share(draws: Draws) -> Twin:
    pie, shares = _pie(draws)
    hidden = draws.below(len(shares))
    # The boundary between the hidden sector and its neighbor moves.
    neighbor, step = _neighbor(draws, hidden, len(shares)), draws.choice((-8, -7, -6, -5, 5, 6, 7, 8))
    other = _changed(_changed(shares, hidden, shares[hidden] - step), neighbor, shares[neighbor] + step)
    need(min(other) >= 9)
    pie["shown"] = [i != hidden for i in range(len(shares))]
    right = shares[hidden], other[hidden]
    wrong = near(draws, *right, lowest=5, step=5)[:3] + near(draws, *right, lowest=5)
    question = f"What percentage does the sector “{pie['categories'][hidden]}” have?"
    return Twin(_sliced(pie, shares), _sliced(pie, other), question, str(right[0]), str(right[1]), wrong,
                "Give a whole number of percent.", "%")


def _largest_share(draws: Draws) -> Twin:
    pie, shares = _pie(draws)
    first = draws.below(len(shares))
    second = _neighbor(draws, first, len(shares))
    step = between(draws, 4, 9)
    other = _changed(_changed(shares, first, shares[first] - step), second, shares[second] + step)
    for values, largest in ((shares, first), (other, second)):
        need(min(values) >= 9 and all(values[largest] - value >= 3 for i, value in enumerate(values) if i != largest))
    names = pie["categories"]
    wrong = draws.shuffled([name for i, name in enumerate(names) if i not in (first, second)])
    return Twin(_sliced(pie, shares), _sliced(pie, other), "Which sector is the largest?", names[first], names[second],
                tuple(wrong))


FORMS: dict[str, Form] = {
    "bar value": _bar_value, "highest bar": _highest_bar, "difference of bars": _difference,
    "bars above a line": _bars_above, "sum of bars": _sum, "ratio of bars": _ratio, "grouped bars": _grouped,
    "extreme point": _extreme_point, "steepest rise": _steepest_rise, "missing share": _missing_share,
    "largest share": _largest_share,
}
