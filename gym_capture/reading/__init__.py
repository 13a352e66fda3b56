"""What was captured, as a person or a program looks at it: overviews, conversations, timelines, differences, health.

Everything here stands on `CaptureStore` and `model`: it writes nothing, needs no owner and no Ray, and says the same
of a live directory, one at rest and one with damage. What it returns are structs; `plain_json.plain_json` turns any of
them into JSON values.
"""
