"""`ft schema`: the JSON Schema that editors read."""

import json

from firmtoken.schema.json_schema import part_json_schema, profile_json_schema


def print_schema(part: str) -> int:
    """Of a whole profile, or of a `hardware` or `model` file."""
    schema = profile_json_schema() if part == "profile" else part_json_schema(part)
    print(json.dumps(schema, indent=2))
    return 0
