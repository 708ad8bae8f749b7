"""ReKey: regenerate the answer-bearing detail of an image, and know the label by construction.

    slots  = read_slots("slots.jsonl")["vstar_0001"]
    record = Pool(slots).sample(seed=1)
    question = build_question(record)                # no image, no model
"""

__version__ = "0.1.0"
