"""A list that many requests use: stored once under a name, then named, whole or in part, instead of sent.

`python examples/05_named_set.py http://127.0.0.1:8080`
"""

import sys
from typing import Any

from openai import OpenAI

CITIES = [{"value": "Paris", "id": "fr"}, {"value": "Rome", "id": "it"}, {"value": "Oslo", "id": "no"}]


def main(gateway_url: str) -> None:
    """Store three cities, ask for one of all, then for one of two, then change the list."""
    # the key says whose names these are: the same for storing and for asking
    client = OpenAI(base_url=f"{gateway_url}/v1", api_key="none")
    stored: Any = client.put("/candidate-sets/cities", body={"candidates": CITIES}, cast_to=object)
    print(f"generation {stored['generation']}, {stored['count']} candidates")

    ask(client, "What is the capital of Norway?", candidate_set="cities")
    ask(client, "What is the capital of France?", candidate_set=f"cities@{stored['generation']}", ids=["it", "fr"])

    change = {"add": [{"value": "Bern", "id": "ch"}], "remove": [{"id": "no"}]}
    changed: Any = client.patch("/candidate-sets/cities", body=change, cast_to=object)
    print(f"generation {changed['generation']}, {changed['added']} added, {changed['removed']} removed")


def ask(client: OpenAI, question: str, **constraint: object) -> None:
    """Ask, and print what the gateway says of the answer."""
    response = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        extra_body=constraint,
    )
    report = (response.model_extra or {})["maskfeed"]
    print(f"answer: {report['candidate']}")
    print(f"id {report['id']}, one of {report['candidates']}, generation {report['candidate_set']['generation']}")


if __name__ == "__main__":
    main(sys.argv[1])
